# What _dump_read.py gives to the printer in C.
cdef long long big_endian(const unsigned char *src, Py_ssize_t p, int n) noexcept
cdef long long int32(long long v) noexcept
cdef long long add64(long long a, long long b) noexcept
cdef long long sequence(long long base, long long delta) noexcept
cdef long long varint(const unsigned char *src, Py_ssize_t p, Py_ssize_t end, long long *st) noexcept
cdef long long varlong(const unsigned char *src, Py_ssize_t p, Py_ssize_t end, long long *st) noexcept
cdef int next_record(const unsigned char *src, long long *st) noexcept
cdef int next_header(const unsigned char *src, long long *st) noexcept
cdef int character_length(const unsigned char *src, Py_ssize_t p, Py_ssize_t end) noexcept
