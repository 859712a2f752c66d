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

cdef extern from "native.h":
    object stratalog_new_tuple(object cls, Py_ssize_t size)
    void stratalog_set_item(object target, Py_ssize_t index, object item)
