# C types for session.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.session.conversation.executor cimport Executor
from keyfence.session.fastpath cimport FastPath, Outcome
from keyfence.session.slowpath cimport SlowPath
from keyfence.session.whole cimport sends_whole

cdef int _NOTHING, _EMPTY, _EVALUATE, _REFUSED
cdef int _OPAQUE, _BECOMING_OPAQUE, _CLOSING


cdef class Session(Executor):
    cdef FastPath _fast
    cdef SlowPath _slow

    @cython.locals(fast=FastPath, slow=SlowPath, cache=DecisionCache, found=Outcome)
    cpdef object _read_requests(self)
    @cython.locals(argv=list)
    cdef bint _decide(self, Outcome found) except -1
