# C types for counts.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.wording.prepared cimport Prepared


cdef class Admitted:
    cdef readonly str name
    cdef readonly object evidence
    cdef public long long times
    cdef public bint is_gathered


@cython.final
cdef class ViolationCounter:
    cdef public object rows
    cdef public long long times
    cdef public bint live
    cdef public str shape
    cdef public int outcome
    cdef public Prepared refusal


@cython.final
cdef class Validity:
    cdef public bint is_current
