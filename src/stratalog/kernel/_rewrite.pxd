# What _filter.py calls in _rewrite.py.
cdef Py_ssize_t copy_bytes(
    unsigned char *dst, Py_ssize_t at, const unsigned char *src, Py_ssize_t p, Py_ssize_t n
) noexcept nogil
cdef unsigned int put_batch_header(
    unsigned char *dst, Py_ssize_t at, Py_ssize_t size, const long long *t, Py_ssize_t i, long long attributes,
    long long base_timestamp, long long max_timestamp, long long count
) noexcept nogil
cdef Py_ssize_t put_kept_records(
    unsigned char *dst, Py_ssize_t at, const unsigned char *src, const long long *starts, const long long *stamps,
    const unsigned char *marks, Py_ssize_t n, Py_ssize_t count, Py_ssize_t end, long long base_timestamp,
    bint verbatim
) noexcept nogil
