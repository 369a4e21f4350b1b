# C types for decision_cache.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.compiled.hash_slots cimport slot_in
from keyfence.policy.patterns.automaton cimport Automaton, Classifier
from keyfence.policy.engine.counts cimport Admitted, Validity, ViolationCounter
from keyfence.policy.engine.forms cimport (
    Call, CommandForm, CommandForms, KeyKind, Lookup, name_bucket, new_lookup, places_of, stands
)
from keyfence.policy.engine.runs cimport Run

cdef Py_ssize_t _MAX_CONFIRMED, _MANY, _MOST_LOOKED_AT
cdef int _NO_OPTIONS, _TO_END, _WAIVED, _LONG, _FOREIGN, _CROSSING, _UNCLASSIFIED
cdef Lookup _NO_COMMAND, _NO_FORM, _LONG_KEY, _WRONG_CONTENT, _UNSURE, _DIFFERENT
cdef list _MISSES


@cython.final
cdef class OwnKeys:
    cdef list _places
    cdef readonly bint matter

    @cython.locals(
        number=Py_ssize_t, before=Py_ssize_t, after=int, value=bytes, begins=Py_ssize_t, ends=Py_ssize_t
    )
    cpdef bint holds(self, int target, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -1


@cython.final
cdef class DecisionCache:
    cdef readonly Validity validity
    cdef readonly object policy
    cdef readonly int service
    cdef readonly tuple targets
    cdef bytes _slotted
    cdef readonly bint has_slots
    cdef int _hash_slot
    cdef Automaton _waived
    cdef readonly Admitted multi
    cdef readonly Admitted execution
    cdef object _evaluator
    cdef object _answers
    cdef Classifier _classifier
    cdef Classifier _channels
    cdef OwnKeys _own
    cdef dict _commands
    cdef list _recent
    cdef list _counted
    cdef Py_ssize_t _kept
    cdef readonly Py_ssize_t members
    cdef long long _turn
    cdef int _transactions

    @cython.locals(
        start=Py_ssize_t, end=Py_ssize_t, command=CommandForms, form=CommandForm, at=Py_ssize_t,
        stop=Py_ssize_t, index=Py_ssize_t, target=int, kind=KeyKind, faults=int,
    )
    cpdef Lookup find_unread(self, bytes data, const long long[::1] places, Py_ssize_t count, tuple values)
    cpdef Lookup find(self, list argv, tuple values=*, Lookup unread=*)
    @cython.locals(name=bytes, count=Py_ssize_t, command=CommandForms, form=CommandForm)
    cdef Lookup _find(self, list argv, tuple values)
    @cython.locals(index=Py_ssize_t, key=bytes, kind=KeyKind, faults=int, lookup=Lookup)
    cdef Lookup _one_key(self, CommandForm form, list argv, tuple values, int target)
    @cython.locals(form=CommandForm)
    cpdef object known(self, Lookup lookup, list argv)
    cdef object _classified(self, bytes key, int target)
    @cython.locals(known=Lookup)
    cdef Lookup _miss(self, KeyKind decision, int faults, bytes data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(
        run=Run, chosen=KeyKind, kinds=Py_ssize_t, size=Py_ssize_t, is_recent=bint, binds=bint, opens=list,
        at=Py_ssize_t, first=Py_ssize_t, target=int, kind=KeyKind, call=Call, several=bint,
    )
    cdef Lookup _several(
        self, CommandForms command, CommandForm form, bytes data, const long long[::1] places, Py_ssize_t count,
        tuple values, list argv,
    )
    cdef inline bint _is_foreign(
        self, int target, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values
    ) except -1
    @cython.locals(target=int)
    cdef inline int _target(self, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -5
    @cython.locals(target=int, slot=int)
    cdef int _target_in(self, Run run, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -5
    @cython.locals(chosen=list)
    cdef Call _call(self, CommandForm form, KeyKind last, bint several, list argv, tuple values)
    @cython.locals(slot=int)
    cpdef bint shares_slot(
        self, KeyKind decision, bytes data, Py_ssize_t start, Py_ssize_t end, object transaction
    ) except -1
    @cython.locals(slot=int)
    cpdef bint call_shares_slot(self, object transaction) except -1
    @cython.locals(decision=KeyKind)
    cpdef bint may_count(self, Lookup lookup, list argv) except -1
    @cython.locals(decision=KeyKind, one=KeyKind)
    cpdef object remember(self, Lookup lookup, list argv, ViolationCounter counter)
    cdef CommandForms _command(self, bytes name)
    cdef KeyKind _keep(self, KeyKind kind)
    @cython.locals(command=CommandForms)
    cdef object _forget(self)
