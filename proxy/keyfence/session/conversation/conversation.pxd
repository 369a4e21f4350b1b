# C types for conversation.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.reply_queue cimport ReplyQueue
from keyfence.session.conversation.reply_slots cimport ReplySlots
from keyfence.session.conversation.base cimport SessionBase
from keyfence.resp.requests cimport RequestReader

cdef int _READING, _AWAITING_ALL, _BECOMING_OPAQUE, _OPAQUE, _CLOSING
cdef int _EVALUATING, _AWAITS_MORE, _HOLDS_NOTHING
cdef Py_ssize_t _NO_LIMIT


@cython.final
cdef class Room:
    cdef public Py_ssize_t slots
    cdef public Py_ssize_t backlog
    cdef public Py_ssize_t shared_requests
    cdef public Py_ssize_t shared
    cdef public Py_ssize_t shared_request
    cdef public Py_ssize_t shared_reply


cdef class Conversation(SessionBase):
    cdef public ReplyQueue replies
    cdef readonly int state
    cdef public object transaction
    cdef public bint takes_notices
    cdef public bint is_behind
    cdef readonly Room room
    cdef readonly RequestReader reader
    cdef public bint partly_sent
    cdef object _deferred
    cdef bytes _unread
    cdef object _closing_then
    cdef long long _shared_bytes
    cdef long long _reply_bytes
    cdef public bint is_doubtful
    cdef public bint was_doubtful
    cdef bint _at_barrier
    cdef object _barrier

    @cython.locals(at=Py_ssize_t)
    cpdef object from_upstream(self, bytes data)
    cpdef object _read_requests(self)
    cpdef Py_ssize_t backlog(self) except -1
    @cython.locals(slots=ReplySlots)
    cpdef bint may_evaluate(self) except -1
    cdef bint _has_room(self, long long awaited) except -1
    cpdef object doubt_replies(self)
    cpdef object mark_shapeable(self, bint fits)
    cdef bint exceeds_share(self, Py_ssize_t size, Py_ssize_t count) except -1
    cdef Py_ssize_t largest_request(self) except -1
    cpdef object send(self, object request, long long count)
    cpdef object _large_request(self)
    cpdef object _pass_unread_when_answered(self)
    cpdef bint may_leave_own(self) except -1
    cpdef object _close_when_answered(self)
    cpdef object _after_slot(self)
