# The C types of _produce.py.
cdef class Producer:
    cdef public long long epoch
    cdef public long long coordinator_epoch
    cdef public long long last_timestamp
    cdef public long long txn_first_offset
    cdef readonly int count
    cdef int newest
    cdef long long ring[20]  # of each batch: last sequence, last offset, offset delta, timestamp

    cpdef long long last_sequence(self)
    cdef int slot_of(
        self, long long epoch, long long base_sequence, long long last_sequence, bint transactional
    ) noexcept
    cpdef int check(
        self, long long epoch, long long base_sequence, bint transactional, bint client
    ) noexcept
    cpdef bint add(
        self, long long epoch, long long last_sequence, long long last_offset, long long offset_delta,
        long long timestamp, bint transactional
    ) noexcept
    cdef int enter(self, long long epoch) noexcept

cdef long long last_sequence_of(long long sequence, long long increment) noexcept nogil
