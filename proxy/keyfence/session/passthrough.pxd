# C types for passthrough.py. The same source runs uncompiled; nothing here changes what it does.
from keyfence.session.conversation.identity cimport Identity
from keyfence.session.conversation.conversation cimport Conversation


cdef class Passthrough:
    cdef readonly Identity client
    cdef readonly Conversation conversation

    cpdef object from_client(self, bytes data)
    cpdef object from_upstream(self, bytes data)
    cpdef object from_shared(self, bytes data, long long completed, bint whole)
