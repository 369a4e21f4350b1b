# C types for slowpath.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.executor cimport Executor, Plan
from keyfence.session.conversation.known_client cimport KnownClient
from keyfence.session.fastpath cimport FastPath, Outcome

cdef int _LEAVES, _REFUSED


@cython.final
cdef class SlowPath:
    cdef Executor _executor
    cdef FastPath _fast
    cdef public object long

    @cython.locals(executor=Executor, client=KnownClient, conversation=Conversation, argv=list)
    cpdef bint admits(self, Outcome found) except -1
    @cython.locals(executor=Executor, client=KnownClient, conversation=Conversation)
    cpdef bint concludes(self, object request, object ruling, object evaluation, bint at_once) except -1
    @cython.locals(conversation=Conversation)
    cdef bint _fits(self, object authorizer, object touches, Py_ssize_t size, bint is_certain) except -1
