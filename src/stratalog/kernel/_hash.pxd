# The C types of _hash.py.
cdef unsigned int _crc(const unsigned char[::1] data, unsigned int crc)
cdef unsigned int _times(unsigned int a, unsigned int b) noexcept nogil
cdef unsigned int join(unsigned int crc_a, unsigned int crc_b, unsigned long long len_b) noexcept nogil
cdef const unsigned char *_start(bytes key) noexcept
cdef unsigned int _murmur2(const unsigned char *data, Py_ssize_t size) noexcept nogil
cdef unsigned int _mul32(unsigned int a, unsigned int b) noexcept nogil
cdef unsigned long long _mul(unsigned long long a, unsigned long long b) noexcept nogil
cdef unsigned long long _add(unsigned long long a, unsigned long long b) noexcept nogil
cdef unsigned long long _rotate(unsigned long long a, int bits) noexcept nogil
cdef unsigned long long _little(const unsigned char *data, Py_ssize_t p, Py_ssize_t n) noexcept nogil
cdef unsigned long long _round(unsigned long long acc, unsigned long long lane) noexcept nogil
cdef unsigned long long _xxh64(const unsigned char *data, Py_ssize_t p, Py_ssize_t end) noexcept nogil
