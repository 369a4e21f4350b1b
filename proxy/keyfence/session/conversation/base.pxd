# C types for base.py. The same source runs uncompiled; nothing here changes what it does.
from keyfence.session.conversation.routing cimport Route


cdef class Outlet:
    cdef public list to_client
    cdef public object closing


cdef class SessionBase:
    cdef public str service
    cdef public object caller
    cdef public object profile
    cdef readonly Outlet outlet
    cdef readonly Route route
    cdef public list to_upstream
    cdef public list counts
    cdef public bint shapeable
    cdef public bint reopen
    cdef public str opaque_as
    cdef public bint wants_turn
    cdef public double turn_ends
    cdef public object question

    cpdef object from_client(self, bytes data)
    cpdef object from_upstream(self, bytes data)
    cpdef object from_shared(self, bytes data, long long completed, bint whole)
    cpdef bint turn_is_over(self) except -1
    cpdef object settle(self)
    cpdef bint wants_input(self) except -1
    cpdef Py_ssize_t backlog(self) except -1
