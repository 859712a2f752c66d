# What _encode_arrow.py and _ledger.py call in _encode.py.
cdef Py_ssize_t varint_length(unsigned long long v) noexcept nogil
cdef Py_ssize_t put_varint(unsigned char *dst, Py_ssize_t p, unsigned long long v) noexcept nogil
cdef unsigned long long zigzag_difference(long long a, long long b) noexcept nogil
cdef int put_header(
    unsigned char *dst, Py_ssize_t size, long long base_offset, int leader_epoch, int attributes, int count,
    long long base_timestamp, long long max_timestamp, long long producer_id, int producer_epoch, int base_sequence
) noexcept nogil
cdef unsigned int whole_crc(unsigned char *dst, Py_ssize_t size) noexcept nogil
cdef bytes one_record(
    object value, object key, object headers, long long timestamp, long long base_offset, int leader_epoch,
    int timestamp_type
)
