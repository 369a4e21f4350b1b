# C types for executor.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.asker cimport Asker
from keyfence.session.conversation.conversation cimport Conversation


@cython.final
cdef class Decided:
    cdef readonly object handler
    cdef readonly bytes refusal
    cdef readonly str command
    cdef readonly bint stays
    cdef readonly bint is_counted


cdef class Executor(Conversation):
    cdef readonly object context
    cdef readonly object origin
    cdef readonly object observer
    cdef object _in_force
    cdef str _client
    cdef object _peer
    cdef object _peer_of
    cdef object _library
    cdef public object request
    cdef object _sender
    cdef Asker _asker
    cdef object _asked
    cdef str _asker_as
    cdef object _asker_of
    cdef public Decided decided
    cdef bytes _redirect_hidden_by

    cpdef object _answer_refusal(self, bytes reply)
    cpdef object current_authorizer(self)
    @cython.locals(asker=Asker, is_known=bint)
    cpdef Asker asker(self)
