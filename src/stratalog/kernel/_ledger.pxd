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

    cpdef bint fits(
        self, long long size, long long last_offset, long long max_timestamp, long long now_ms
    )
    cpdef int took(
        self, object data, long long size, long long base_offset, long long last_offset, long long count,
        long long min_timestamp, long long max_timestamp
    )
