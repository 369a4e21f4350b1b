# C types for client.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.downstream.context cimport ServerContext
from keyfence.downstream.flow cimport Flow
from keyfence.upstream.dedicated cimport Owner
from keyfence.upstream.links cimport Links
from keyfence.session.conversation.routing cimport Route
from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.reply_queue cimport ReplyQueue
from keyfence.session.passthrough cimport Passthrough
from keyfence.telemetry.traffic cimport Traffic

cdef int _ARRIVING, _HALF_CLOSED, _DISMISSED, _CLOSING
cdef int _SERVE, _REJECT, _END, _DISMISS, _LEAVE, _LOSE
cdef int _TAKES_REQUESTS, _TAKES_REPLIES, _IS_CLIENT


cdef class Client(Owner):
    cdef readonly ServerContext _context
    cdef str _listener
    cdef readonly object _known
    cdef str _host
    cdef object _quota
    cdef object _opens
    cdef str _counted_as
    cdef object _counters
    cdef Traffic _traffic
    cdef readonly object _transport
    cdef readonly Passthrough _session
    cdef readonly Links _links
    cdef readonly Flow _flow
    cdef object _half_closed
    cdef public double idle_since
    cdef public double partial_since
    cdef long long _unread
    cdef object _timed
    # Integers stand together, so that no space is left between them.
    cdef int _port
    cdef readonly int _life
    cdef public bint active
    cdef int _until_timed
    cdef bint _asks
    cdef bint _must_renew
    cdef readonly double connected_at

    @cython.locals(before=Py_ssize_t)
    cpdef object data_received(self, bytes data)
    cdef object _note_partial(self, Py_ssize_t before, Py_ssize_t came)
    cdef object _guarded(self, object step, object argument)
    @cython.locals(session=Passthrough, conversation=Conversation, outlet=ReplyQueue, chunks=list, data=object, ended=bint)
    cpdef object _flush(self)
    @cython.locals(route=Route, chunks=list, counts=list)
    cdef object _send(self, Conversation conversation)
    @cython.locals(conversation=Conversation)
    cpdef object _settle_reading(self)
