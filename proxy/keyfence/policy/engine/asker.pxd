# C types for asker.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython


@cython.final
cdef class Asker:
    cdef readonly int service
    cdef readonly tuple values
    cdef readonly long long database
    cdef object _peer
    cdef readonly object sender
    cdef readonly object transaction
