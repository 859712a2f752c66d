# The C helpers of native.h, as the compiled kernel modules see them.
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "native.h" nogil:
    void stratalog_native_init()
    uint32_t stratalog_crc(uint32_t crc, const unsigned char *data, size_t length)
    uint64_t stratalog_be64(const unsigned char *data)
    uint32_t stratalog_be32(const unsigned char *data)
    void stratalog_put64(unsigned char *data, uint64_t value)
    void stratalog_put32(unsigned char *data, uint32_t value)
    void stratalog_key_hash(
        const unsigned char *data, size_t length, uint64_t point_a, uint64_t point_b,
        unsigned long long *hash_a, unsigned int *hash_b
    )
    uint64_t stratalog_slot(uint64_t hash, uint64_t slots)
    void stratalog_prefetch(const void *data)
    unsigned long long *stratalog_table_new(size_t words)
    void stratalog_table_free(unsigned long long *table)

cdef extern from "native.h":
    object stratalog_new_tuple(object cls, Py_ssize_t size)
    void stratalog_set_item(object target, Py_ssize_t index, object item)
