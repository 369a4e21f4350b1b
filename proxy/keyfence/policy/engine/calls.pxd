# C types for calls.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Classifier
from keyfence.policy.engine.forms cimport Call, KeyKind, Lookup, new_lookup, stands

cdef int _NAME, _VALUE, _ZERO, _NINE
cdef Py_ssize_t _MANY, _MAX_CONFIRMED, _MOST_DIGITS
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
cdef class Run:
    cdef readonly bint is_channel
    cdef Py_ssize_t start
    cdef Py_ssize_t last
    cdef readonly Py_ssize_t step
    cdef readonly Py_ssize_t limit
    cdef bytes keyword
    cdef readonly bint is_counted
    cdef readonly Py_ssize_t count_at
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t at
    cdef readonly Py_ssize_t stop

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t)
    cpdef bint place(self, list argv) except -1


@cython.final
cdef class CallForm:
    cdef readonly list kinds
    cdef readonly dict calls
    cdef public bint is_seen
    cdef public Call recent
    cdef public list recent_kinds


@cython.final
cdef class Placed:
    cdef readonly object layout
    cdef readonly list runs
    cdef Py_ssize_t decides_from
    cdef Py_ssize_t decides_to
    cdef readonly bint is_decided_by_keys
    cdef CallForm only
    cdef dict forms

    @cython.locals(options=tuple, form=CallForm)
    cdef CallForm form(self, list argv)
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
    cdef Py_ssize_t _kept
    cdef long long _turn

    @cython.locals(
        placed=Placed, run=Run, form=CallForm, chosen=list, count=Py_ssize_t, early=Py_ssize_t, binds=bint,
        opens=list, number=Py_ssize_t, at=Py_ssize_t, kinds=dict, key=bytes, target=int, kind=KeyKind, call=Call,
        own=OwnKeys, needs_own=bint,
    )
    cpdef Lookup find(self, list argv, tuple values)
    cdef Placed _place(self, bytes name)
    cdef bint _looks_right(self, KeyKind kind, list argv, Py_ssize_t at) except -1
    cdef Call _call(self, Placed placed, CallForm form, list chosen, list argv, tuple values)
    @cython.locals(run=Run)
    cdef KeyKind _learn(
        self, Placed placed, CallForm form, Py_ssize_t number, Py_ssize_t at, int target, list argv
    )
    cdef int _looks(self, Placed placed, object access, object target) except -2
    @cython.locals(kind=KeyKind)
    cdef Call _ask(self, Placed placed, list chosen, list argv, tuple values)
    @cython.locals(kind=KeyKind, run=Run)
    cdef KeyKind _kind_at(self, Placed placed, list chosen, object access)
    @cython.locals(run=Run)
    cdef bint _is_kept(self, Placed placed, list argv, object touches) except -1


@cython.locals(at=Py_ssize_t)
cdef bint _are_same(list one, list other) except -1
@cython.locals(at=Py_ssize_t, size=Py_ssize_t, name=bytes)
cdef Py_ssize_t _after(list argv, bytes keyword) except -2
@cython.locals(size=Py_ssize_t, number=Py_ssize_t, byte="unsigned char")
cdef Py_ssize_t _number(bytes digits) except -2
