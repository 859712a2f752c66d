# The C types of _wire.py.
cdef class WirePlan:
    cdef public object cls
    cdef public int slots
    cdef public bint flexible
    cdef public Py_ssize_t least
    cdef public list rows
    cdef public list children
    cdef public list defaults
    cdef int[::1] table
    cdef int fields

cdef class Cursor:
    cdef object source
    cdef const unsigned char[::1] view
    cdef const unsigned char *src
    cdef Py_ssize_t p
    cdef Py_ssize_t end
    cdef Py_ssize_t most
    cdef Py_ssize_t left

    cdef int need(self, Py_ssize_t size) except -1
    cdef long long varint(self) except? -2
    cdef Py_ssize_t length(self, int kind, bint compact) except? -2
    cdef object single(self, WirePlan plan, int i, bint nullable)
    cdef object cut(self, Py_ssize_t at, Py_ssize_t size)
    cdef object field(self, WirePlan plan, int i)
    cdef object struct(self, WirePlan plan)

cdef class Sink:
    cdef bytearray data
    cdef object gaps
    cdef Py_ssize_t elsewhere
    cdef unsigned char *dst
    cdef Py_ssize_t n
    cdef Py_ssize_t room

    cdef int grow(self, Py_ssize_t size) except -1
    cdef int varint(self, long long value) except -1
    cdef int length(self, Py_ssize_t size, int kind, bint compact) except -1
    cdef object raw(self, object source)
    cdef int single(self, WirePlan plan, int i, object value, bint nullable) except -1
    cdef int field(self, WirePlan plan, int i, object value) except -1
    cdef int struct(self, WirePlan plan, object value) except -1
