# C types for decision_cache.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.compiled.hash_slots cimport slot_in
from keyfence.policy.compiled.named cimport NameCheck, TypeWords
from keyfence.policy.compiled.written cimport WrittenCheck
from keyfence.policy.patterns.automaton cimport Automaton, Classifier
from keyfence.policy.engine.calls cimport Calls, OwnKeys
from keyfence.policy.engine.counts cimport Admitted, Validity, ViolationCounter
from keyfence.policy.engine.forms cimport CachedDecision, CommandForm, Lookup, name_bucket, new_lookup, places_of, stands

cdef Py_ssize_t _MAX_CONFIRMED
cdef int _NO_OPTIONS, _TO_END, _SEVERAL_KEYS, _KEYLESS, _WAIVED
cdef Lookup _NO_COMMAND, _NO_FORM, _LONG_KEY, _UNSURE


@cython.final
cdef class DecisionCache:
    cdef readonly Validity validity
    cdef readonly object policy
    cdef readonly int service
    cdef readonly tuple targets
    cdef bytes _slotted
    cdef readonly bint has_slots
    cdef Automaton _waived
    cdef readonly Admitted multi
    cdef readonly Admitted execution
    cdef object _evaluator
    cdef object _among
    cdef Classifier _classifier
    cdef dict _forms
    cdef list _recent
    cdef list _counted
    cdef OwnKeys _own
    cdef Calls _calls
    cdef dict _written
    cdef int _transactions

    @cython.locals(
        name_at=Py_ssize_t, name_end=Py_ssize_t, key_at=Py_ssize_t, key_end=Py_ssize_t, form=CommandForm,
        target=int, decision=CachedDecision, at=Py_ssize_t, stop=Py_ssize_t, faults=int,
        known=CachedDecision,
    )
    cpdef Lookup find_unread(self, bytes data, const long long[::1] places, Py_ssize_t count, tuple values)
    cpdef Lookup find(self, list argv, tuple values=*)
    @cython.locals(name=bytes, form=CommandForm)
    cdef Lookup _find(self, list argv, tuple values)
    @cython.locals(key=bytes, target=int, decision=CachedDecision, faults=int, lookup=Lookup)
    cdef Lookup _find_key(self, CommandForm form, list argv, tuple values)
    @cython.locals(known=Lookup)
    cdef Lookup _miss(self, CachedDecision decision, int faults, bytes data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(number=Py_ssize_t, slot=int)
    cpdef bint shares_slot(
        self, CachedDecision decision, bytes data, Py_ssize_t start, Py_ssize_t end, object transaction
    ) except -1
    @cython.locals(slot=int)
    cpdef bint call_shares_slot(self, object transaction) except -1
    @cython.locals(decision=CachedDecision)
    cpdef bint may_count(self, Lookup lookup, list argv) except -1
    @cython.locals(decision=CachedDecision, one=CachedDecision)
    cpdef object remember(self, Lookup lookup, list argv, ViolationCounter counter)
    cdef CommandForm _form(self, bytes name)
    cdef CommandForm _keyless(self, bytes name)
    cdef object _evidence(self, object touches)
    @cython.locals(decision=CachedDecision)
    cdef CachedDecision _ask(self, CommandForm form, int target, object asked)
    @cython.locals(named=NameCheck, words=TypeWords, written=WrittenCheck, resolved=int)
    cdef int _prepare(self, CachedDecision decision, object what, object access) except -2
    cdef WrittenCheck _written_check(self, CachedDecision decision, object entry)
