# C types for flow.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.session.conversation.conversation cimport Conversation
from keyfence.upstream.links cimport Links

cdef Py_ssize_t _MAX_UNSENT
cdef int _AT_REST


@cython.final
cdef class Flow:
    cdef readonly bint is_reading
    cdef public int leaving
    cdef public bint is_full
    cdef readonly bint upstream_is_paused
    cdef public bint upstream_is_full

    @cython.locals(wanted=bint)
    cpdef object settle_reading(self, object transport, Conversation conversation, Links links)
    cpdef object settle_upstream(self, Conversation conversation, Links links)
