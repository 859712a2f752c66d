# The C types of _hash.py.
cdef unsigned int _crc(const unsigned char[::1] data, unsigned int crc)
cdef unsigned int join(unsigned int crc_a, unsigned int crc_b, unsigned long long len_b) noexcept nogil
cdef unsigned int _murmur2(const unsigned char *data, Py_ssize_t size) noexcept nogil
cdef unsigned long long _xxh64(const unsigned char *data, Py_ssize_t p, Py_ssize_t end) noexcept nogil
