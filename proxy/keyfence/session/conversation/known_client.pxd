# C types for known_client.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.asker cimport Asker
from keyfence.session.conversation.identity cimport Identity
from keyfence.session.conversation.conversation cimport Conversation


@cython.final
cdef class KnownClient(Identity):
    cdef readonly object caller
    cdef readonly object context
    cdef readonly object origin
    cdef readonly object observer
    cdef object _in_force
    cdef Conversation _conversation
    cdef object _library
    cdef Asker _asker
    cdef object _asked
    cdef object _asked_as
    cdef str _opaque_as
    cdef object _exchange
    cdef bytes _redirect_hidden_by

    cpdef object current_authorizer(self)
    @cython.locals(asker=Asker, is_known=bint)
    cpdef Asker asker(self)
