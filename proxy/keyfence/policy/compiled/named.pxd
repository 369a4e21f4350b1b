# C types for named.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Automaton, Classifier

cdef int _LENGTH, _CHARSET, _FORMAT, _TAG, _TYPE, _ANY_TAG, _OPTIONAL, _REQUIRED, _OPEN, _CLOSE, _SEPARATOR, _ASCII


@cython.final
cdef class NameCheck:
    cdef list _limits
    cdef const long long[::1] _mosts
    cdef long long _shortest
    cdef bytes _severities
    cdef bytes _in_characters
    cdef Automaton _automaton
    cdef list _automata
    cdef bytes _forbids
    cdef bytes _weights
    cdef int _tag

    @cython.locals(found=int)
    cpdef int faults(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(
        number=Py_ssize_t, most="long long", raw="const unsigned char *", severities="const unsigned char *",
        in_characters="const unsigned char *",
    )
    cdef int _length(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(
        number=Py_ssize_t, charset=int, form=int, weight=int, automaton=Automaton, is_accepted=bint,
        forbids="const unsigned char *", weights="const unsigned char *",
    )
    cdef int _broken(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(raw="const unsigned char *", at=Py_ssize_t, byte="unsigned char", opened=Py_ssize_t, closed=Py_ssize_t)
    cdef bint _is_tagged(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1


@cython.final
cdef class TypeWords:
    cdef Classifier _words
    cdef bytes _fits

    @cython.locals(raw="const unsigned char *", at=Py_ssize_t, stop=Py_ssize_t, number=int, fits="const unsigned char *")
    cpdef int faults(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1


@cython.locals(raw="const unsigned char *", at=Py_ssize_t)
cdef bint _is_ascii(bytes data, Py_ssize_t start, Py_ssize_t end) except -1
