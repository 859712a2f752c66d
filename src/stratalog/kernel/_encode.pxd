# The C types of _encode.py.
cdef Py_ssize_t varint_length(unsigned long long v) noexcept nogil
cdef Py_ssize_t put_varint(unsigned char *dst, Py_ssize_t p, unsigned long long v) noexcept nogil
cdef unsigned long long zigzag_difference(long long a, long long b) noexcept nogil
cdef object _wrong(Py_ssize_t index, str field, object value, str wanted)
cdef bytes _header_bytes(object headers, Py_ssize_t index)
cdef bytes one_record(
    object value, object key, object headers, long long timestamp, long long base_offset, int leader_epoch,
    int timestamp_type
)
cdef object _grow(bytearray target, Py_ssize_t size)
cdef long long _timestamp(object stamp, Py_ssize_t index) except? -2
cdef unsigned int put_header(
    unsigned char *dst, Py_ssize_t at, Py_ssize_t size, long long base_offset, long long leader_epoch,
    long long attributes, long long last_delta, long long base_timestamp, long long max_timestamp,
    long long producer_id, long long producer_epoch, long long base_sequence, long long count
) noexcept nogil
cdef unsigned int _whole_crc(const unsigned char *dst, Py_ssize_t size, unsigned int crc) noexcept nogil
cdef bint _is_null(const unsigned char *valid, Py_ssize_t bit) noexcept nogil
cdef const unsigned char *_memory(const unsigned char[::1] data) noexcept
cdef Py_ssize_t _put_field(
    unsigned char *dst, Py_ssize_t p, const unsigned char *data, Py_ssize_t start, Py_ssize_t n
) noexcept nogil
cdef (Py_ssize_t, Py_ssize_t) _plain_rows(
    unsigned char *dst, Py_ssize_t limit, Py_ssize_t row, Py_ssize_t rows,
    const int *value_ends, const unsigned char *value_from, Py_ssize_t value_bytes,
    const int *key_ends, const unsigned char *key_from, Py_ssize_t key_bytes, const long long *timestamps
) noexcept nogil
cdef Py_ssize_t _field_size(Py_ssize_t n) noexcept nogil
cdef bint _short(const unsigned char[::1] valid, Py_ssize_t bit, Py_ssize_t rows)
