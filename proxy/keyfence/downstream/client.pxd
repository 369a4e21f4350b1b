# C types for client.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.upstream.links cimport Links, Owner
from keyfence.session.conversation.routing cimport Route
from keyfence.session.conversation.base cimport Outlet, SessionBase
from keyfence.telemetry.traffic cimport Traffic

cdef Py_ssize_t _MAX_UNSENT


cdef class ServerContext:
    cdef public object identities
    cdef public object upstream
    cdef public object telemetry
    cdef public object counters
    cdef public object sessions
    cdef public object quotas
    cdef public set clients
    cdef public object ids
    cdef public object ask
    cdef public bint draining
    cdef public bint reads_on
    cdef public bint sharing
    cdef public object pools
    cdef readonly object turns


cdef class Client(Owner):
    cdef readonly ServerContext _context
    cdef str _listener
    cdef readonly object _known
    cdef str _host
    cdef int _port
    cdef object _quota
    cdef str _counted_as
    cdef object _counters
    cdef Traffic _traffic
    cdef bint _is_served
    cdef readonly object _transport
    cdef readonly SessionBase _session
    cdef readonly Links _links
    cdef bint _upstream_full
    cdef readonly bint _reading
    cdef readonly bint _full
    cdef bint _upstream_paused
    cdef bint _closing
    cdef bint _ended
    cdef object _linger
    cdef public bint active
    cdef public double idle_since
    cdef public double partial_since
    cdef readonly bint _dismissed
    cdef int _until_timed
    cdef double _read_at
    cdef double _timed_from
    cdef double _sent_at
    cdef bint _asks
    cdef readonly double connected_at

    @cython.locals(before=Py_ssize_t, session=SessionBase)
    cpdef object data_received(self, bytes data)
    cdef object _note_partial(self, Py_ssize_t before, Py_ssize_t came)
    cdef object _guarded(self, object step, object argument)
    @cython.locals(session=SessionBase, outlet=Outlet, chunks=list, data=bytes)
    cpdef object _flush(self)
    @cython.locals(route=Route, chunks=list, counts=list, chunk=bytes)
    cdef object _send(self, SessionBase session)
    @cython.locals(wanted=bint)
    cpdef object _settle_reading(self)
