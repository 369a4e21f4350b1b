# C types for executor.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

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
    cdef long long _number
    cdef object _numbered_by
    cdef str _numbered_as
    cdef readonly tuple values
    cdef object _valued_as
    cdef public Decided decided
    cdef bytes _redirect_hidden_by

    cpdef object _answer_refusal(self, bytes reply)
    cpdef object current_authorizer(self)
    cpdef tuple authorizer_and_number(self)
