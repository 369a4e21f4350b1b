# C types for written.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Classifier

cdef int _VALUE, _FIELDS, _ELEMENTS, _MOST_FAULTS, _ZERO, _NINE, _MINUS, _POINT, _SAFE_DIGITS


@cython.final
cdef class FormCheck:
    cdef object _accepts
    cdef Classifier _classifier

    @cython.locals(raw="const unsigned char *")
    cdef bint accepts(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1


@cython.final
cdef class Arrangement:
    cdef readonly Py_ssize_t step
    cdef readonly Py_ssize_t last
    cdef readonly bint is_single
    cdef readonly bint is_scored


@cython.final
cdef class WrittenCheck:
    cdef int _content
    cdef FormCheck _form
    cdef object _fields
    cdef Classifier _names
    cdef list _forms
    cdef dict _numbers
    cdef object _scores
    cdef double _low
    cdef double _high
    cdef long long _most
    cdef long long _longest
    cdef readonly bint requires

    @cython.locals(
        step=Py_ssize_t, last=Py_ssize_t, has_value=bint, unknown=int, wrong=int, form=FormCheck, number=int,
        start=Py_ssize_t, end=Py_ssize_t,
    )
    cpdef int faults(
        self, bytes data, const long long[::1] places, Py_ssize_t count, Py_ssize_t at, Arrangement arrangement
    ) except -2
    @cython.locals(number=int, raw="const unsigned char *", name=bytes)
    cdef int _field(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -3
    @cython.locals(
        raw="const unsigned char *", at=Py_ssize_t, negative=bint, number="long long", digits=int, divisor=double,
        byte="unsigned char", value=double,
    )
    cdef bint _is_in_range(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
