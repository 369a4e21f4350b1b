# C types for reply_slots.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython


cdef class ReplySlot:
    cdef ReplySlot behind
    cdef readonly Py_ssize_t held


@cython.final
cdef class Forward(ReplySlot):
    cdef public long long count


@cython.final
cdef class Drop(ReplySlot):
    cdef public long long count


@cython.final
cdef class Local(ReplySlot):
    cdef readonly bytes data


@cython.final
cdef class Replace(ReplySlot):
    cdef readonly bytes data
    cdef readonly object seen
    cdef readonly bint answers


@cython.final
cdef class Inspect(ReplySlot):
    cdef readonly object seen
    cdef readonly bint silent


@cython.final
cdef class Confirm(ReplySlot):
    cdef public long long count
    cdef readonly bytes word
    cdef readonly object confirmed


@cython.final
cdef class ReplySlots:
    cdef readonly ReplySlot head
    cdef ReplySlot _last
    cdef public long long held_bytes
    cdef public long long awaited

    cdef object _append(self, ReplySlot slot)
    cdef object _drop_head(self)
    @cython.locals(last=ReplySlot, run=Forward)
    cpdef object forward(self, long long count)
    @cython.locals(head=ReplySlot, run=Forward)
    cpdef bint answer_run(self, long long count) except -1
    @cython.locals(slot=ReplySlot)
    cpdef ReplySlot pop(self)
    cpdef list ready(self)
