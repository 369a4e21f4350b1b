# C types for routing.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython


@cython.final
cdef class Route:
    cdef readonly bint sharing
    cdef readonly bint roams
    cdef public bint is_shared
    cdef public bint knows_id
    cdef public bint is_named
    cdef public bint watching
    cdef public bint marks_next
    cdef public bint reopen
    cdef public bint is_behind
    cdef public bint took_others
    cdef bint _greets
    cdef public str pinned
    cdef object _clock
    cdef double _until

    cpdef bint takes(self, object command, bint is_trusted=*, bint has_one_reply=*) except -1
    cpdef object needs_own(self)
    cpdef object stay(self)
    cpdef object begins_work(self)
    cpdef bint may_share(self) except -1
