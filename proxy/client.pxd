# C types for client.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from proxy.links cimport Links


cdef class Client:
    cdef readonly object _gate
    cdef str _listener
    cdef readonly object _known
    cdef readonly str _shown
    cdef object _place
    cdef str _counted_as
    cdef object _counters
    cdef bint _is_served
    cdef readonly object _transport
    cdef readonly object _session
    cdef readonly Links _links
    cdef bint _upstream_full
    cdef readonly bint _reading
    cdef readonly bint _full
    cdef bint _ended
    cdef object _linger
    cdef public bint active
    cdef public double idle_since
    cdef public double partial_since
    cdef readonly bint _dismissed

    @cython.locals(before=Py_ssize_t)
    cpdef object data_received(self, bytes data)
    cdef object _note_partial(self, Py_ssize_t before, Py_ssize_t came)
    cpdef object upstream_data(self, bytes data)
    cpdef object shared_replies(self, bytes data, long long completed, bint whole)
    cpdef object shared_turn(self)
    cdef object _guarded(self, object step, object told)
    @cython.locals(chunks=list, data=bytes)
    cpdef object _flush(self)
    @cython.locals(chunks=list, counts=list, chunk=bytes)
    cdef object _send(self, object session)
    @cython.locals(wanted=bint)
    cpdef object _settle_reading(self)
