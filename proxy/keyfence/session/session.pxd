# C types for session.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.executor cimport Executor
from keyfence.session.fastpath cimport FastPath, Outcome
from keyfence.session.passthrough cimport Passthrough
from keyfence.session.slowpath cimport SlowPath
from keyfence.session.whole cimport sends_whole

cdef int _NOTHING, _EMPTY, _EVALUATE, _REFUSED


cdef class Session(Passthrough):
    cdef readonly Executor executor
    cdef FastPath _fast
    cdef SlowPath _slow

    @cython.locals(conversation=Conversation)
    cpdef object from_client(self, bytes data)
    @cython.locals(conversation=Conversation, at=Py_ssize_t)
    cpdef object from_upstream(self, bytes data)
    @cython.locals(conversation=Conversation)
    cpdef object from_shared(self, bytes data, long long completed, bint whole)
    @cython.locals(fast=FastPath, slow=SlowPath, conversation=Conversation, cache=DecisionCache, found=Outcome)
    cpdef object _read_requests(self)
    @cython.locals(conversation=Conversation, argv=list)
    cdef bint _authorize(self, Outcome found) except -1
