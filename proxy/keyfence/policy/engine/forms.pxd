# C types for forms.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.counts cimport Admitted, ViolationCounter
from keyfence.shapes.skeleton cimport skeleton

cdef int _BEHIND_VALUE, _BEHIND_KEY, _BEFORE_VALUE, _SCORED, _XADD, _KEYLESS
cdef Py_ssize_t _XADD_ID


@cython.final
cdef class CommandForm:
    cdef readonly str name
    cdef object one
    cdef readonly int kind
    cdef readonly bytes spelled
    cdef readonly Py_ssize_t index
    cdef readonly bint shows_content
    cdef readonly Py_ssize_t value_at
    cdef readonly Py_ssize_t fields_at
    cdef Py_ssize_t targets
    cdef readonly list decisions
    cdef readonly Py_ssize_t kept
    cdef readonly CachedDecision on_no_target
    cdef readonly dict forms
    cdef Py_ssize_t most_forms
    cdef readonly CommandForm recent
    cdef readonly bytes written

    cpdef object keep(self, CachedDecision decision)
    @cython.locals(size=Py_ssize_t, options=tuple, form=CommandForm, found=CommandForm)
    cpdef CommandForm with_options(self, list argv)
    @cython.locals(form=CommandForm)
    cdef CommandForm _new_form(self, tuple options)


@cython.final
cdef class KeyKind:
    cdef readonly str name
    cdef readonly object target
    cdef readonly int looks
    cdef readonly int run
    cdef readonly bint binds
    cdef public int outcome
    cdef public tuple questions
    cdef public long long turn
    cdef public Py_ssize_t at


@cython.final
cdef class Call(Admitted):
    cdef readonly object command
    cdef readonly bint is_trusted
    cdef readonly Lookup hit


@cython.final
cdef class CachedDecision(Admitted):
    cdef readonly CommandForm form
    cdef readonly int target
    cdef readonly int outcome
    cdef readonly int looks
    cdef readonly bint is_clean
    cdef readonly bint is_covered
    cdef readonly dict counters
    cdef readonly dict by_shape
    cdef readonly Admitted further
    cdef readonly Lookup hit
    cdef readonly Lookup miss

    @cython.locals(counter=ViolationCounter)
    cpdef ViolationCounter counter(self, int faults, bytes key)
    cpdef object mark(self, int faults, bytes key)


@cython.final
cdef class Lookup:
    cdef readonly CachedDecision decision
    cdef readonly Call call
    cdef readonly list opens
    cdef readonly bint is_admitted
    cdef readonly str reason
    cdef readonly int faults


@cython.locals(lookup=Lookup)
cpdef Lookup new_lookup(CachedDecision decision, str reason, int faults, Call call=*, list opens=*)
