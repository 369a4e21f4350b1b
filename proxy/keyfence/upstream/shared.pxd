# C types for shared.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer

cdef int _PUSH, _ALONE, _PROVEN_EACH


cdef class SharedConnection


cdef class Sharer:
    cpdef object shared_replies(self, bytes data, long long completed, bint whole)
    cpdef object shared_turn(self)


@cython.final
cdef class SharedLink:
    cdef public Sharer sharer
    cdef public long long awaited
    cdef public bint is_notified
    cdef public bint is_timed
    cdef bint _is_refused
    cdef readonly object _pool
    cdef readonly SharedConnection _connection

    @cython.locals(connection=SharedConnection)
    cpdef object send(self, list chunks, list counts, bint shapeable=*)


@cython.freelist(64)
@cython.final
cdef class Due:
    cdef readonly SharedLink link
    cdef public long long count
    cdef readonly bint shapeable
    cdef readonly object barrier
    cdef public Due behind


@cython.final
cdef class SharedConnection:
    cdef readonly dict links
    cdef readonly bint is_closed
    cdef object _upstream
    cdef object _profile
    cdef object _on_refused
    cdef object _loop
    cdef readonly object _transport
    cdef object _connecting
    cdef object _greeting
    cdef object _login_timer
    cdef ReplyFramer _framer
    cdef Due _due
    cdef Due _due_last
    cdef list _waiting
    cdef long long _held
    cdef list _owners
    cdef dict _gone
    cdef bint _flush_due
    cdef int _alone
    cdef bint _full
    cdef bint _proven
    cdef object _idle_since
    cdef bint _worked
    cdef SharedLink _timed
    cdef long long _unproven
    cdef object _barrier_form
    cdef bytes _barrier_reply
    cdef bint _keeps
    cdef list _kept
    cdef long long _kept_bytes

    @cython.locals(count="long long")
    cpdef object send(self, SharedLink link, list chunks, list counts, bint shapeable)
    cdef object _expect(self, Due due)
    cdef object _send_barrier(self)
    @cython.locals(due=Due, behind=Due)
    cdef object _withdraw(self)
    cdef object _flush_soon(self)
    cpdef object _flush(self)
    @cython.locals(notified=list, link=SharedLink)
    cpdef object data_received(self, bytes data)
    @cython.locals(
        framer=ReplyFramer, at=Py_ssize_t, size=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t, entry=Due,
        link=SharedLink, completed="long long", piece=bytes, whole=bint, raw="const char *",
    )
    cdef object _hand_out(self, bytes data, list notified)
    cdef object _deliver(self, SharedLink link, bytes piece, long long completed, bint whole, list notified)
