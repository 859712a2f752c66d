# The C types of _dump.py.
cdef long long _int32(long long v) noexcept
cdef long long _add64(long long a, long long b) noexcept
cdef long long _sequence(long long base, long long delta) noexcept
cdef int _next_record(const unsigned char *src, long long *st) noexcept
cdef int _next_header(const unsigned char *src, long long *st) noexcept
cdef bint _goes_on(const unsigned char *src, Py_ssize_t p, Py_ssize_t end) noexcept
cdef int _character_length(const unsigned char *src, Py_ssize_t p, Py_ssize_t end) noexcept
cdef long long _varint(
    const unsigned char *src, Py_ssize_t p, Py_ssize_t end, int longest, long long *st
) noexcept
cdef Py_ssize_t _text(unsigned char *dst, Py_ssize_t o, const char *s) noexcept
cdef Py_ssize_t _number(unsigned char *dst, Py_ssize_t o, long long v) noexcept
cdef bint _valid_utf8(const unsigned char *src, Py_ssize_t p, Py_ssize_t end) noexcept
cdef Py_ssize_t _string(
    unsigned char *dst, Py_ssize_t o, const unsigned char *src, Py_ssize_t p, Py_ssize_t n
) noexcept
cdef Py_ssize_t _truth(unsigned char *dst, Py_ssize_t o, bint v) noexcept
cdef Py_ssize_t _time_name(unsigned char *dst, Py_ssize_t o, long long attributes) noexcept
cdef Py_ssize_t _print_header(
    unsigned char *dst, Py_ssize_t o, const unsigned char *src, long long *st, bint valid
) noexcept
cdef Py_ssize_t _print_record(
    unsigned char *dst, Py_ssize_t o, const unsigned char *src, long long *st
) noexcept
cdef int _print_records(
    const unsigned char *src, unsigned char *dst, Py_ssize_t room, long long *st, dict gaps
) except? -1
