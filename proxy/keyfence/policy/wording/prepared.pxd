# C types for prepared.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.shapes.short_names cimport ShortNames

cdef bytes _IS_PLAIN
cdef Py_ssize_t _LONGEST


cdef class Filler:
    cdef readonly object text

    cpdef bytes fill(self, bytes key)


cdef class ShownKey(Filler):
    cdef bint _as_sent
    cdef ShortNames _names

    @cython.locals(shown=bytes)
    cpdef bytes fill(self, bytes key)


@cython.final
cdef class Prepared:
    cdef tuple _pieces
    cdef tuple _fillers

    @cython.locals(parts=list, at=Py_ssize_t, filler=Filler)
    cpdef bytes reply(self, bytes key)


@cython.locals(size=Py_ssize_t, raw="const unsigned char *", plain="const unsigned char *", at=Py_ssize_t)
cdef bint _is_plain(bytes key) except -1
