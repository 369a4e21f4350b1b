# C types for executor.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.known_client cimport KnownClient


@cython.final
cdef class Plan:
    cdef readonly object handler
    cdef readonly bytes refusal
    cdef readonly str command
    cdef readonly bint stays
    cdef readonly bint is_counted


@cython.final
cdef class Executor:
    cdef readonly KnownClient client
    cdef readonly Conversation conversation
    cdef public object request
    cdef public Plan plan

    cpdef object answer_refusal(self, bytes reply)
