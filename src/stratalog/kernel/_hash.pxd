# What the other modules of the kernel call in _hash.py.
cdef unsigned int join(unsigned int crc_a, unsigned int crc_b, unsigned long long len_b) noexcept nogil
