# The C helpers of native.h, and how the kernel's sources use them. native.py has the same for the interpreter.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy


cdef extern from "native.h" nogil:
    void native_init "stratalog_native_init"()
    uint32_t stratalog_crc(uint32_t crc, const unsigned char *data, size_t length)
    uint64_t stratalog_be64(const unsigned char *data)
    uint32_t stratalog_be32(const unsigned char *data)
    void stratalog_put64(unsigned char *data, uint64_t value)
    void stratalog_put32(unsigned char *data, uint32_t value)
    void stratalog_key_hash(
        const unsigned char *data, size_t length, uint64_t point_a, uint64_t point_b,
        unsigned long long *hash_a, unsigned int *hash_b
    )
    uint64_t slot_of "stratalog_slot"(uint64_t hash, uint64_t slots)
    void stratalog_copy_short(unsigned char *dst, const unsigned char *src, size_t length, size_t room)
    void stratalog_prefetch(const void *data)
    unsigned long long *stratalog_table_new(size_t words)
    void stratalog_table_free(unsigned long long *table)
    long long stratalog_pwrite(int fd, const unsigned char *data, size_t length, long long position)
    long long stratalog_receive(int fd, unsigned char *data, size_t length)
    long long stratalog_send(int fd, const unsigned char *data, size_t length)

cdef extern from "native.h":
    object stratalog_new_tuple(object cls, Py_ssize_t size)
    void stratalog_set_item(object target, Py_ssize_t index, object item)


cdef inline long long get64(const unsigned char *src, Py_ssize_t p) noexcept nogil:
    return <long long>stratalog_be64(src + p)

cdef inline long long get32(const unsigned char *src, Py_ssize_t p) noexcept nogil:
    return <int>stratalog_be32(src + p)

cdef inline long long get_u32(const unsigned char *src, Py_ssize_t p) noexcept nogil:
    return stratalog_be32(src + p)

cdef inline long long get16(const unsigned char *src, Py_ssize_t p) noexcept nogil:
    return <short>((src[p] << 8) | src[p + 1])

cdef inline int put64(unsigned char *dst, Py_ssize_t p, long long value) noexcept nogil:
    stratalog_put64(dst + p, <uint64_t>value)
    return 0

cdef inline int put32(unsigned char *dst, Py_ssize_t p, long long value) noexcept nogil:
    stratalog_put32(dst + p, <uint32_t>value)
    return 0

cdef inline int put16(unsigned char *dst, Py_ssize_t p, long long value) noexcept nogil:
    dst[p] = (value >> 8) & 0xFF
    dst[p + 1] = value & 0xFF
    return 0

cdef inline Py_ssize_t copy_bytes(
    unsigned char *dst, Py_ssize_t at, const unsigned char *src, Py_ssize_t p, Py_ssize_t n
) noexcept nogil:
    memcpy(dst + at, src + p, n)
    return at + n

cdef inline Py_ssize_t copy_short(
    unsigned char *dst, Py_ssize_t at, const unsigned char *src, Py_ssize_t p, Py_ssize_t n, Py_ssize_t room
) noexcept nogil:
    stratalog_copy_short(dst + at, src + p, n, room)
    return at + n

cdef inline unsigned int crc_of(const unsigned char *src, Py_ssize_t p, Py_ssize_t end) noexcept nogil:
    return stratalog_crc(0, src + p, end - p)

cdef inline (unsigned long long, unsigned int) key_hash(
    const unsigned char *src, Py_ssize_t p, Py_ssize_t size, unsigned long long point_a, unsigned long long point_b
) noexcept nogil:
    cdef unsigned long long a = 0
    cdef unsigned int b = 0
    stratalog_key_hash(src + p, size, point_a, point_b, &a, &b)
    return a, b
