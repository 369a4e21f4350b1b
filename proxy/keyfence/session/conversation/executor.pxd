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
    cdef str _origin
    cdef object _peer
    cdef object _peer_of
    cdef object _library
    cdef int _port
    cdef readonly str at_connect
    cdef readonly object identities
    cdef readonly object first_profile
    cdef readonly object greeting
    cdef readonly bint selects_later
    cdef object _full_limits
    cdef public bytes request
    cdef readonly object ids
    cdef object _sender
    cdef readonly str known_by
    cdef object _in_force
    cdef readonly object observer
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
