# C types for whole.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.resp.requests cimport RequestReader
from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.executor cimport Executor, Plan
from keyfence.session.fastpath cimport FastPath, Outcome, is_named
from keyfence.session.slowpath cimport SlowPath

cdef int _EVALUATE, _NOTHING


@cython.locals(conversation=Conversation)
cpdef bint sends_whole(
    Executor executor, FastPath fast, SlowPath slow, DecisionCache cache, list argv
) except -1
@cython.locals(
    conversation=Conversation, reader=RequestReader, start=Py_ssize_t, end=Py_ssize_t, argv=list, is_here=bint,
    count="long long", found=Outcome,
)
cdef bint _send_whole(Executor executor, FastPath fast, SlowPath slow, DecisionCache cache) except -1
@cython.locals(start=Py_ssize_t, argv=list, count=Py_ssize_t, name=bytes)
cpdef bint exec_follows(RequestReader reader, Py_ssize_t most_bytes, Py_ssize_t most_requests) except -1
