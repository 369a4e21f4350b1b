# C types for reply_queue.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.reply_slots cimport Confirm, Drop, Forward, Inspect, Local, Replace, ReplySlots
from keyfence.session.conversation.identity cimport Identity
from keyfence.resp.replies cimport ReplyFramer

cdef int _PUSH, _STATUS, _UNDECIDED, _PASSED, _ANSWER, _DROPPED, _WHOLE, _SILENCED, _ENDED
cdef ReplyFramer _UNUSED


@cython.final
cdef class ReplyQueue:
    cdef public list to_client
    cdef public object closing
    cdef readonly ReplySlots slots
    cdef public int resp
    cdef public int mode
    cdef public bint monitoring
    cdef public bint takes_notices
    cdef public object subscriptions
    cdef readonly bint slot_done
    cdef ReplyFramer _framer
    cdef bytearray _captured
    cdef int _frame
    cdef bint _in_shared_reply
    cdef bytes _kept
    cdef list _late_pushes

    cpdef object forward(self, long long count)
    cpdef object local(self, bytes reply)
    cdef bint _is_silent(self) except -1
    cdef bint _is_between_replies(self) except -1
    cpdef bint is_at_rest(self) except -1
    cpdef object let_out(self)
    @cython.locals(done=bint)
    cpdef bint feed_shared(self, bytes data, long long completed, bint whole) except -1
    cpdef Py_ssize_t feed(self, bytes data, Py_ssize_t at, Identity client) except -1
    cdef bytes _piece(self, bytes data, Py_ssize_t at, Py_ssize_t end, Identity client)
    @cython.locals(framer=ReplyFramer, end=Py_ssize_t, begin=Py_ssize_t)
    cdef Py_ssize_t _forward_replies(
        self, bytes data, Py_ssize_t at, Forward head, Identity client
    ) except -1
    cdef Py_ssize_t _drop_reply(
        self, bytes data, Py_ssize_t at, Drop head, Identity client
    ) except -1
    cdef Py_ssize_t _forward_push(self, bytes data, Py_ssize_t at, Identity client) except -1
    cdef object _take_push(self, bytes data, Py_ssize_t at, Py_ssize_t end, Identity client)
    cdef Py_ssize_t _capture(self, bytes data, Py_ssize_t at, Identity client) except -1
    @cython.locals(framer=ReplyFramer, end=Py_ssize_t, piece=bytes, owner=cython.int)
    cdef Py_ssize_t _follow_frame(self, bytes data, Py_ssize_t at, Identity client) except -1
    @cython.locals(count=cython.int)
    cdef bint _is_message(self, bytes frame) except -1
    cdef int _owner_of_frame(self, Identity client) except -1
    cdef int _owner_of_reply(self, bytes word, Identity client) except -1
    cdef object _end_frame(self)
    cdef object _slot_done(self)
