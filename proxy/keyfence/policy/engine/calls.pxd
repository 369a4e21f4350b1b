# C types for calls.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.compiled.hash_slots cimport slot_in
from keyfence.policy.compiled.named cimport NameCheck
from keyfence.policy.compiled.written cimport Arrangement, WrittenCheck
from keyfence.policy.patterns.automaton cimport Classifier
from keyfence.policy.engine.forms cimport Call, KeyKind, Lookup, name_bucket, new_lookup, places_of, stands
from keyfence.policy.engine.runs cimport Run

cdef int _LONG, _FOREIGN, _CROSSING
cdef list _MISSES
cdef Arrangement _VALUE
cdef Py_ssize_t _MANY, _MOST_LOOKED_AT, _MAX_CONFIRMED, _RECENT
cdef Lookup _NO_COMMAND, _NO_FORM, _LONG_KEY, _WRONG_CONTENT, _UNSURE, _DIFFERENT


@cython.final
cdef class OwnKeys:
    cdef list _places
    cdef readonly bint matter

    @cython.locals(
        number=Py_ssize_t, before=Py_ssize_t, after=int, value=bytes, begins=Py_ssize_t, ends=Py_ssize_t
    )
    cpdef bint holds(self, int target, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -1


@cython.final
cdef class CallForm:
    cdef tuple options
    cdef readonly list kinds
    cdef readonly list last
    cdef readonly dict calls
    cdef public bint is_seen
    cdef readonly Call recent
    cdef readonly Py_ssize_t recent_kinds
    cdef public bint is_several
    cdef CallForm _several

    @cython.locals(kind=KeyKind)
    cdef object remember(self, Call call, list chosen)
    @cython.locals(several=CallForm)
    cdef CallForm of_several(self)


@cython.final
cdef class Placed:
    cdef readonly object layout
    cdef readonly bytes spelled
    cdef readonly list runs
    cdef Py_ssize_t decides_from
    cdef Py_ssize_t decides_to
    cdef readonly bint is_decided_by_keys
    cdef CallForm only
    cdef dict forms
    cdef list recent

    cdef object forget(self)
    @cython.locals(
        raw="const unsigned char *", first=Py_ssize_t, stop=Py_ssize_t, bucket=Py_ssize_t, at=Py_ssize_t,
        start=Py_ssize_t, end=Py_ssize_t, form=CallForm, option=bytes,
    )
    cdef CallForm form(self, bytes data, const long long[::1] places, Py_ssize_t count, list argv)
    @cython.locals(form=CallForm)
    cdef CallForm _form(self, tuple options, Py_ssize_t bucket)
    @cython.locals(run=Run)
    cpdef list shortened(self, list argv, list chosen)


@cython.final
cdef class Calls:
    cdef object _evaluator
    cdef int _service
    cdef object _among
    cdef OwnKeys _own
    cdef tuple _targets
    cdef Classifier _classifier
    cdef Classifier _channels
    cdef dict _placed
    cdef list _recent
    cdef Py_ssize_t _kept
    cdef readonly Py_ssize_t members
    cdef long long _turn
    cdef bint _has_slots
    cdef bytes _slotted
    cdef readonly int slot

    @cython.locals(name=bytes, placed=Placed)
    cpdef Lookup find(self, list argv, tuple values)
    @cython.locals(start=Py_ssize_t, end=Py_ssize_t, placed=Placed, lookup=Lookup)
    cpdef Lookup find_unread(self, bytes data, const long long[::1] places, Py_ssize_t count, tuple values)
    @cython.locals(
        run=Run, form=CallForm, chosen=KeyKind, kinds=Py_ssize_t, size=Py_ssize_t,
        is_recent=bint, binds=bint, opens=list, at=Py_ssize_t, target=int, kind=KeyKind, call=Call,
    )
    cdef Lookup _find(
        self, Placed placed, bytes data, const long long[::1] places, Py_ssize_t count, tuple values, list argv
    )
    @cython.locals(form=CallForm, run=Run, keys=Py_ssize_t)
    cdef CallForm _form(
        self, Placed placed, bytes data, const long long[::1] places, Py_ssize_t count, list argv
    )
    @cython.locals(target=int, slot=int)
    cdef int _target(self, Run run, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -5
    @cython.locals(kind=KeyKind, kinds=dict)
    cdef KeyKind _kind(self, Placed placed, CallForm form, Run run, Py_ssize_t at, int target, list argv)
    @cython.locals(named=NameCheck, written=WrittenCheck)
    cdef bint _looks_right(
        self, KeyKind kind, bytes data, const long long[::1] places, Py_ssize_t count, Py_ssize_t at
    ) except -1
    @cython.locals(chosen=list)
    cdef Call _call(self, Placed placed, CallForm form, KeyKind last, list argv, tuple values)
    @cython.locals(kind=KeyKind, last=Run)
    cdef KeyKind _learn(self, Placed placed, CallForm form, Run run, Py_ssize_t at, int target, list argv)
    @cython.locals(placed=Placed)
    cdef object _forget(self)
    cdef bint _can_check(self, Placed placed, KeyKind kind, object access) except -1
    @cython.locals(kind=KeyKind)
    cdef Call _ask(self, Placed placed, CallForm form, list chosen, list argv, tuple values, object budget)
    @cython.locals(kind=KeyKind, run=Run)
    cdef KeyKind _kind_at(self, Placed placed, list chosen, object access)
    @cython.locals(run=Run)
    cdef bint _is_kept(self, Placed placed, list argv, object touches) except -1
