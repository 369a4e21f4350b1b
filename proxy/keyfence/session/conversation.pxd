# C types for conversation.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.reply_queue cimport ReplyQueue
from keyfence.session.reply_slots cimport ReplySlots
from keyfence.session.base cimport SessionBase
from keyfence.resp.requests cimport RequestReader


@cython.final
cdef class Room:
    cdef public Py_ssize_t slots
    cdef public Py_ssize_t backlog
    cdef public Py_ssize_t shared_requests
    cdef public Py_ssize_t shared
    cdef public Py_ssize_t shared_request
    cdef public Py_ssize_t shared_reply


cdef class Conversation(SessionBase):
    cdef public ReplyQueue answers
    cdef public bint opaque
    cdef public object transaction
    cdef public bint held
    cdef public bint is_behind
    cdef readonly Room room
    cdef readonly RequestReader reader
    cdef bytes _raw
    cdef object _deferred
    cdef str _closing_then
    cdef readonly bint streaming
    cdef long long _shared_bytes
    cdef long long _reply_bytes
    cdef public bint is_doubtful
    cdef public bint was_doubtful
    cdef bint _at_barrier
    cdef object _barrier

    @cython.locals(at=Py_ssize_t)
    cpdef object from_upstream(self, bytes data)
    cpdef object _read_requests(self)
    @cython.locals(held=Py_ssize_t)
    cpdef Py_ssize_t backlog(self) except -1
    @cython.locals(slots=ReplySlots)
    cpdef bint _may_judge(self) except -1
    cdef bint _has_room(self, long long awaited) except -1
    cdef bint exceeds_share(self, Py_ssize_t size, Py_ssize_t count) except -1
    cdef bint needs_own(self) except -1
    cpdef object _to_upstream(self, bytes request, long long count)
    cpdef object _large_request(self)
    cpdef object _splice_when_answered(self)
    @cython.locals(answers=ReplyQueue)
    cpdef bint may_leave_own(self) except -1
    cpdef object _close_when_answered(self)
    cpdef object _after_slot(self)
