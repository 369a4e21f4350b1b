# C types for exchange.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer

cdef int _PUSH, _PROVEN_EACH


cdef class Share


cdef class Sharer:
    cpdef object shared_replies(self, Share link, bytes data, long long completed, bint whole)
    cpdef object shared_turn(self, Share link)


cdef class Share:
    cdef public Sharer sharer
    cdef public long long awaited
    cdef public bint is_notified


@cython.freelist(64)
@cython.final
cdef class Due:
    cdef public Share share
    cdef public long long count
    cdef public bint shapeable
    cdef public object barrier
    cdef public Due behind


@cython.final
cdef class Exchange:
    cdef public list output
    cdef readonly Due due
    cdef readonly bint is_open
    cdef readonly long long held
    cdef object _on_fault
    cdef object _on_dropped
    cdef ReplyFramer _framer
    cdef Due _due_last
    cdef list _owners
    cdef dict _withdrawn
    cdef long long _unproven
    cdef object _answers_echo
    cdef bytes _barrier_reply
    cdef bint _keeps
    cdef list _kept
    cdef long long _kept_bytes
    cdef list _notified

    @cython.locals(count="long long")
    cpdef object send(self, Share share, list chunks, list counts, bint shapeable)
    @cython.locals(due=Due)
    cdef object _expect(self, Share share, long long count, bint shapeable, object barrier)
    cdef object _append(self, Due due)
    cdef object _add_barrier(self, bint shapeable)
    @cython.locals(due=Due, behind=Due)
    cpdef object open(self)
    cpdef object receive(self, bytes data)
    @cython.locals(notified=list, share=Share)
    cpdef object end_turn(self)
    @cython.locals(
        framer=ReplyFramer, at=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, entry=Due,
        share=Share, completed="long long", piece=bytes, whole=bint, raw="const char *", doubt=object,
    )
    cdef object _hand_out(self, bytes data)
    cdef object _deliver(self, Share share, bytes piece, long long completed, bint whole)
