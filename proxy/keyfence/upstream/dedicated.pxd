# C types for dedicated.py when it is compiled. They do not change its behaviour.
cimport cython


cdef class DedicatedLink


cdef class Receiver:
    cpdef object upstream_data(self, DedicatedLink link, bytes data)


@cython.final
cdef class DedicatedLink:
    cdef object _upstream
    cdef object _settings
    cdef Receiver _receiver
    cdef readonly object _transport
    cdef object _connecting
    cdef list _waiting
    cdef object _handshake
    cdef bint _is_open
    cdef bint _paused
    cdef bint _ended
    cdef bint _full
    cdef bint _may_wait

    cpdef object send(self, list chunks)
    cpdef Py_ssize_t unsent(self) except -1
    cpdef object data_received(self, bytes data)
