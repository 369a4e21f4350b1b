# C types for session.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.session.conversation.executor cimport Decided, Executor
from keyfence.session.fastpath cimport FastPath, Outcome, exec_follows, is_named
from keyfence.resp.requests cimport RequestReader

cdef int _NOTHING, _EMPTY, _EVALUATE, _REFUSED, _LEAVES
cdef int _OPAQUE, _BECOMING_OPAQUE, _CLOSING


cdef class Session(Executor):
    cdef FastPath _fast
    cdef object _long

    @cython.locals(fast=FastPath, cache=DecisionCache, found=Outcome)
    cpdef object _read_requests(self)
    cdef bint _sends_whole(self, DecisionCache cache, list argv) except -1
    @cython.locals(argv=list)
    cdef bint _decide(self, Outcome found) except -1
    @cython.locals(fast=FastPath, count="long long")
    cdef object _send_run(self)
    cdef bint _may_be_whole(self, DecisionCache cache, bytes name) except -1
    @cython.locals(
        reader=RequestReader, fast=FastPath, start=Py_ssize_t, end=Py_ssize_t, argv=list, is_here=bint,
        count="long long", found=Outcome,
    )
    cdef bint _whole_transaction(self, DecisionCache cache) except -1
    @cython.locals(argv=list)
    cdef bint _admits_as_plain(self, Outcome found) except -1
    cdef bint _fits(self, object authorizer, object touches, Py_ssize_t size) except -1
