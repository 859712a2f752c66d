# The C types of _decode.py.
cdef (unsigned long long, Py_ssize_t) read_varint(
    const unsigned char *src, Py_ssize_t p, Py_ssize_t end, int longest
) noexcept nogil
cdef Py_ssize_t read_record(
    const unsigned char *src, Py_ssize_t p, Py_ssize_t end, long long *f, long long base_timestamp
) noexcept nogil
cdef bint wanted(const long long *table, Py_ssize_t i, const long long *bounds) noexcept nogil
cdef Py_ssize_t body_end(
    const long long *table, Py_ssize_t i, Py_ssize_t body, Py_ssize_t size
) noexcept nogil
cdef tuple _headers(const unsigned char *src, Py_ssize_t p, Py_ssize_t stop, Py_ssize_t count)
cdef object _record(
    const unsigned char *src, long long *f, Py_ssize_t end, type cls, object timestamp, object offset,
    object partition, object kind, str topic
)
