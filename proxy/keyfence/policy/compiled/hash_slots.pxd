# C types for hash_slots.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

cdef int _SLOTS, _OPEN, _CLOSE
cdef const unsigned short[::1] _CRC


@cython.locals(
    raw="const unsigned char *", begin=Py_ssize_t, stop=Py_ssize_t, at=Py_ssize_t, crc="unsigned int"
)
cpdef int slot_in(bytes data, Py_ssize_t start, Py_ssize_t end) except -1
