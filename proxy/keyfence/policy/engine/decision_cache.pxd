# C types for decision_cache.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Classifier
from keyfence.policy.engine.calls cimport Calls, OwnKeys, stands
from keyfence.policy.engine.counts cimport Admitted, ViolationCounter, Revocable
from keyfence.policy.engine.forms cimport CachedDecision, CommandForm, Lookup, new_lookup

cdef int _NAME, _VALUE, _FIELDS, _MOST_FAULTS, _ZERO, _NINE
cdef Py_ssize_t _RECENT, _MAX_CONFIRMED
cdef int _NO_OPTIONS, _BEHIND_VALUE, _BEHIND_KEY, _SEVERAL_KEYS, _XADD, _KEYLESS
cdef Lookup _NO_COMMAND, _NO_FORM, _LONG_KEY, _UNSURE


@cython.final
cdef class DecisionCache(Revocable):
    cdef readonly object policy
    cdef readonly int service
    cdef readonly tuple targets
    cdef readonly Admitted multi
    cdef readonly Admitted execution
    cdef object _evaluator
    cdef object _among
    cdef Classifier _classifier
    cdef dict _forms
    cdef list _recent
    cdef list _counted
    cdef bytes _sized
    cdef OwnKeys _own
    cdef Calls _calls
    cdef dict _fields
    cdef int _transactions

    @cython.locals(form=CommandForm, kind=int, behind=Py_ssize_t, target=int, decision=CachedDecision)
    cpdef CachedDecision find_unread(
        self, bytes data, Py_ssize_t count, Py_ssize_t name_at, Py_ssize_t name_end, Py_ssize_t key_at,
        Py_ssize_t key_end, Py_ssize_t options_at, Py_ssize_t end, tuple values,
    )
    cpdef Lookup find(self, list argv, tuple values=*)
    @cython.locals(name=bytes, form=CommandForm)
    cdef Lookup _find(self, list argv, tuple values)
    @cython.locals(key=bytes, target=int, decision=CachedDecision, faults=int)
    cdef Lookup _find_key(self, CommandForm form, list argv, tuple values)
    @cython.locals(decision=CachedDecision)
    cpdef bint may_count(self, Lookup lookup, list argv) except -1
    @cython.locals(decision=CachedDecision, one=CachedDecision)
    cpdef object remember(self, Lookup lookup, list argv, ViolationCounter counter)
    cdef CommandForm _form(self, bytes name)
    cdef CommandForm _keyless(self, bytes name)
    cdef object _evidence(self, object touches)
    cdef CachedDecision _ask(self, CommandForm form, int target, list argv)
    cdef int _looks(self, CommandForm form, object target) except -2
    cdef int _looks_at_content(self, CommandForm form, object entry) except -2
    @cython.locals(named=dict, size=Py_ssize_t, unknown=int, wrong=int)
    cdef int _faults_of_fields(self, int target, object fields, list argv, Py_ssize_t at) except -2
    cdef int _faults(self, CommandForm form, int looks, int target, list argv, Py_ssize_t at) except -2


cdef bint _are_few_and_short(
    list argv, Py_ssize_t start, Py_ssize_t step, object longest, object most
) except -1
cdef bint _has_form(bytes value, object form) except -1
@cython.locals(size=Py_ssize_t, byte="unsigned char")
cdef bint _is_plain_number(bytes value, Py_ssize_t most) except -1
