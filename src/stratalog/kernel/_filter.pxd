# The C types of _filter.py.
cdef bint _among(const long long *offsets, Py_ssize_t n, long long offset) noexcept nogil
cdef Py_ssize_t put_kept_records(
    unsigned char *dst, Py_ssize_t at, const unsigned char *src, const long long *starts,
    const long long *stamps, const unsigned char *marks, Py_ssize_t n, Py_ssize_t count, Py_ssize_t end,
    long long base_timestamp, bint verbatim
) noexcept nogil
