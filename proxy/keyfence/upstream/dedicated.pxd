# C types for dedicated.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer
from keyfence.upstream.exchange cimport Sharer


cdef class DedicatedLink


cdef class Owner(Sharer):
    cpdef object upstream_data(self, DedicatedLink link, bytes data)


@cython.final
cdef class DedicatedLink:
    cdef readonly bint is_closed
    cdef public bint is_kept
    cdef public bint is_doubted
    cdef object _upstream
    cdef object _settings
    cdef Owner _owner
    cdef readonly object _transport
    cdef object _attempt
    cdef list _waiting
    cdef object _handshake
    cdef bint _is_open
    cdef bint _paused
    cdef bint _ended
    cdef bint _full
    cdef bint _may_wait
    cdef long long _pongs
    cdef ReplyFramer _framer
    cdef bytes _pong
    cdef object _answered
    cdef public object login
    cdef public bint is_logging_in
    cdef public object logged_in_as

    cpdef object send(self, list chunks)
    cdef object _write(self, list chunks)
    cpdef Py_ssize_t unsent(self) except -1
    cpdef object data_received(self, bytes data)
