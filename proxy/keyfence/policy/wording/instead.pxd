# C types for instead.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Automaton, Classifier
from keyfence.policy.wording.prepared cimport Filler

cdef Py_ssize_t _MAX_CONFIRMED


@cython.final
cdef class MissingPrefixes:
    cdef tuple _prefixes
    cdef object _policy
    cdef Classifier _classifier
    cdef Automaton _automaton
    cdef bytes _fits
    cdef list _states
    cdef bytes _may_fit

    @cython.locals(at=Py_ssize_t, state=int, accept=int)
    cpdef bint may_complete(self, bytes key) except -1
    @cython.locals(prefix=bytes, behind=bytes, index=int)
    cpdef list entries(self, bytes key)


cdef class Instead(Filler):
    cdef MissingPrefixes _missing
    cdef bytes _otherwise

    cpdef bytes fill(self, bytes key)
