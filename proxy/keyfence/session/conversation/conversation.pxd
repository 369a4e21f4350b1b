# C types for conversation.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.reply_queue cimport ReplyQueue
from keyfence.session.conversation.reply_slots cimport ReplySlots
from keyfence.session.conversation.identity cimport Identity
from keyfence.session.conversation.routing cimport Route
from keyfence.resp.requests cimport RequestReader

cdef int _READING, _AWAITING_ALL, _BECOMING_OPAQUE, _OPAQUE, _CLOSING
cdef int _EVALUATING, _AWAITS_MORE, _HOLDS_NOTHING
cdef int _NO_DOUBT, _UNPROVEN, _PAST, _OPEN
cdef Py_ssize_t _NO_LIMIT


@cython.final
cdef class Room:
    cdef public Py_ssize_t slots
    cdef public Py_ssize_t backlog
    cdef public Py_ssize_t shared_requests
    cdef public Py_ssize_t shared
    cdef public Py_ssize_t shared_request
    cdef public Py_ssize_t shared_reply


cdef class Conversation:
    cdef readonly ReplyQueue replies
    cdef public object profile
    cdef readonly Route route
    cdef public list to_upstream
    cdef public list counts
    cdef public bint shapeable
    cdef public bint wants_turn
    cdef public double turn_ends
    cdef public object question
    cdef public object transaction
    cdef readonly Room room
    cdef readonly RequestReader reader
    # Integers stand in pairs, so that no space is left between them.
    cdef readonly int state
    cdef public bint partly_sent
    cdef object _deferred
    cdef list _unread
    cdef object _closing_then
    cdef long long _shared_bytes
    cdef long long _reply_bytes
    cdef readonly int doubt
    cdef bint _at_barrier
    cdef object _barrier

    cpdef bint turn_is_over(self) except -1
    cpdef bint yields(self) except -1
    cpdef object settle(self)
    cpdef bint wants_input(self) except -1
    cpdef Py_ssize_t backlog(self) except -1
    @cython.locals(slots=ReplySlots)
    cpdef bint may_evaluate(self) except -1
    cdef bint _has_room(self, long long awaited) except -1
    cpdef object doubt_replies(self)
    cpdef object mark_shapeable(self, bint fits)
    cdef bint exceeds_share(self, Py_ssize_t size, Py_ssize_t count) except -1
    cdef Py_ssize_t largest_request(self) except -1
    cpdef object send(self, object request, long long count)
    cpdef bint stream(self) except -1
    cpdef object _pass_unread_when_answered(self)
    cpdef bint may_leave_own(self) except -1
    cpdef bint from_client(self, bytes data) except -1
    cpdef bint from_shared(self, bytes data, long long completed, bint whole) except -1
    cpdef Py_ssize_t from_upstream(self, bytes data, Py_ssize_t at, Identity client) except -1
    cpdef bint after_slot(self) except -1
    cpdef object close_when_answered(self)
