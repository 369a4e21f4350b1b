# C types for instead.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Classifier

cdef Py_ssize_t _MAX_CONFIRMED


@cython.final
cdef class MissingPrefixes:
    cdef tuple _prefixes
    cdef object _policy
    cdef Classifier _classifier
    cdef bytes _fits

    @cython.locals(prefix=bytes, behind=bytes, index=int)
    cpdef list entries(self, bytes key)
