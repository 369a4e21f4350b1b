# C types for short_names.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

cdef int _TEXT, _HELD, _KIND, _COLON
cdef Py_ssize_t _SHORT
cdef bytes _MASKED

ctypedef const unsigned char *Text


@cython.final
cdef class ShortNames:
    cdef readonly tuple made_of
    cdef readonly dict heads
    cdef tuple _begun
    cdef tuple _beginnings
    cdef object _words
    cdef bytes _lengths
    cdef int _shortest
    cdef bytes _kinds_of
    cdef bytes _may_begin

    @cython.locals(
        size=Py_ssize_t, raw=Text, kinds_of=Text, may_begin=Text, at=Py_ssize_t, all_of=int, run=int,
        longest=int, kinds=int, head=bytes, secret=bytes,
    )
    cpdef bytes shown(self, bytes name)
    @cython.locals(size=Py_ssize_t, lengths=Text, number=int)
    cdef bytes _secret(self, bytes text, int all_of)
