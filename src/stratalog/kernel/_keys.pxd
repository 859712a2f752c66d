# The C types of _keys.py.
cdef class KeyMap:
    cdef unsigned long long *words
    cdef unsigned long long slots
    cdef unsigned long long most_slots
    cdef unsigned long long point_a
    cdef unsigned long long point_b
    cdef long long used
    cdef long long limit
    cdef long users
    cdef readonly long long capacity
    cdef readonly long long base_offset
    cdef public long long latest_offset
    cdef readonly bint full
    cdef bytearray marks
    cdef unsigned char *superseded
    cdef unsigned long long watched

cdef class DropSet:
    cdef const unsigned char[::1] blob
    cdef long long[::1] ends
    cdef unsigned long long[::1] table
    cdef unsigned long long slots
    cdef unsigned long long point_a
    cdef unsigned long long point_b
    cdef Py_ssize_t count

cdef (unsigned long long, unsigned int) _hash_view(
    const unsigned char[::1] key, unsigned long long point_a, unsigned long long point_b
)
cdef int find_many(
    KeyMap keys, const unsigned long long *a, const unsigned int *b, Py_ssize_t n, long long *found
) noexcept nogil
cdef Py_ssize_t put_many(
    KeyMap keys, const unsigned long long *a, const unsigned int *b, const long long *numbers, Py_ssize_t n
) noexcept nogil
cdef bint _grow(KeyMap keys) noexcept nogil
cdef int begin(KeyMap keys, bint change) except -1
cdef bint _drops_view(DropSet keys, const unsigned char[::1] key)
cdef bint drops(DropSet keys, const unsigned char *src, Py_ssize_t p, Py_ssize_t size) noexcept nogil
