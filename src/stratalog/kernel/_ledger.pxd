# The C types of _ledger.py.
cdef class BlockSums:
    cdef public long long start
    cdef public long long end
    cdef public unsigned int crc
    cdef public long long first_offset
    cdef public long long last_offset
    cdef public long long records
    cdef public long long batches
    cdef public long long min_timestamp
    cdef public long long max_timestamp
    cdef public long long next_offset
    cdef public bint contiguous

    cpdef int add(
        self, long long position, long long size, object data, long long first_offset, long long last_offset,
        long long count, long long min_timestamp, long long max_timestamp
    )

cdef class Ledger:
    cdef public long long size
    cdef public long long next_offset
    cdef public long long last_position
    cdef public long long bytes_since_entry
    cdef public long long max_timestamp
    cdef public long long offset_of_max_timestamp
    cdef public long long interval_bytes
    cdef public long long roll_bytes
    cdef public long long roll_offset
    cdef public long long roll_timestamp
    cdef public long long roll_now_ms
    cdef public long long room_until
    cdef public BlockSums sums
    cdef public bint in_doubt

    cpdef int append_one(
        self, object pwrite, object value, object key, object headers, long long timestamp, int leader_epoch,
        int timestamp_type, long long now_ms, long long max_bytes
    )
    cpdef bint fits(
        self, long long size, long long last_offset, long long max_timestamp, long long now_ms
    )
    cpdef int took(
        self, object data, long long size, long long base_offset, long long last_offset, long long count,
        long long min_timestamp, long long max_timestamp
    )

cdef class DirectWrite:
    cdef object file

    cpdef int write(self, bytes data, long long position) except -1

cdef class Appender:
    cdef object writer
    cdef object lock
    cdef object now_ms
    cdef object ends
    cdef dict waiting
    cdef object made
    cdef object partition
    cdef public bint ready
    cdef bint simple
    cdef Ledger ledger
    cdef object pwrite
    cdef bint keyed
    cdef int leader_epoch
    cdef int timestamp_type
    cdef long long max_bytes
    cdef bint needs_key
    cdef bint acks_wait

    cdef object _append(self, object value, object key, object headers, object timestamp)
