# C types for cache.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.patterns.automaton cimport Classifier
from keyfence.policy.engine.counts cimport Admitted, Repeat
from keyfence.shapes.skeleton cimport skeleton

cdef int _UNASKED, _UNSURE, _NAME, _VALUE, _FIELDS, _OUTCOME, _UNTOLD, _MOST_FAULTS, _MOST_OUTCOMES, _ZERO, _NINE
cdef Py_ssize_t _SEEN, _MAX_CONFIRMED
cdef int _CONSTANT, _BEHIND_VALUE, _BEHIND_KEY, _BEFORE_VALUE, _SEVERAL, _XADD, _XADD_ID, _SCORED, _KEYLESS


@cython.final
cdef class CommandForm(Admitted):
    cdef readonly Py_ssize_t index
    cdef readonly bytearray known
    cdef readonly dict forms
    cdef readonly bytes spelled
    cdef readonly bytes written
    cdef readonly CommandForm recent
    cdef readonly dict looks
    cdef readonly dict repeats
    cdef readonly dict shaped
    cdef object one
    cdef int kind
    cdef readonly bint has_more
    cdef bint shows_content
    cdef readonly Py_ssize_t value_at
    cdef readonly Py_ssize_t fields_at


@cython.final
cdef class DecisionCache:
    cdef readonly int found
    cdef readonly int target
    cdef readonly str why
    cdef readonly CommandForm missed
    cdef readonly object policy
    cdef public bint is_current
    cdef object _evaluator
    cdef readonly int service
    cdef object _among
    cdef Classifier _classifier
    cdef readonly tuple targets
    cdef dict _ways
    cdef bytes _covers
    cdef bytes _sized
    cdef list _kept
    cdef bint _binds
    cdef list _places
    cdef bint _asks_whose
    cdef dict _fields
    cdef readonly Admitted multi
    cdef readonly Admitted execution
    cdef int _transactions
    cdef list _seen

    @cython.locals(way=CommandForm, kind=int, behind=Py_ssize_t, target=int, known=int)
    cpdef CommandForm admits_in(
        self, bytes data, Py_ssize_t count, Py_ssize_t name_at, Py_ssize_t name_end, Py_ssize_t key_at,
        Py_ssize_t key_end, Py_ssize_t options_at, Py_ssize_t end, tuple values,
    )
    cpdef CommandForm admits(self, list argv, tuple values=*)
    @cython.locals(
        number=Py_ssize_t, before=Py_ssize_t, after=int, value=bytes, begins=Py_ssize_t, ends=Py_ssize_t
    )
    cdef bint _is_own(self, int target, bytes data, Py_ssize_t start, Py_ssize_t end, tuple values) except -1
    @cython.locals(name=bytes, way=CommandForm)
    cdef CommandForm _admits(self, list argv, tuple values)
    @cython.locals(key=bytes, target=int, known=int)
    cdef CommandForm _admits_key(self, CommandForm way, list argv, Py_ssize_t at, tuple values)
    @cython.locals(found=int, at=Py_ssize_t)
    cdef CommandForm _admits_several(self, CommandForm way, list argv, tuple values)
    @cython.locals(size=Py_ssize_t, options=tuple, form=CommandForm, found=CommandForm)
    cdef CommandForm _form(self, CommandForm way, list argv)
    @cython.locals(way=CommandForm, repeat=Repeat)
    cpdef Repeat repeat(self, list argv)
    @cython.locals(way=CommandForm, target=int, shaped=dict, repeat=Repeat)
    cpdef Repeat repeat_in(self, bytes data, Py_ssize_t key_at, Py_ssize_t key_end)
    @cython.locals(slot=Py_ssize_t, shaped=dict)
    cdef Repeat _repeat(self, CommandForm way, list argv)
    @cython.locals(way=CommandForm)
    cpdef bint may_repeat(self, list argv) except -1
    @cython.locals(way=CommandForm, one=CommandForm, slot=Py_ssize_t)
    cpdef object remember(self, list argv, Repeat repeat)
    cdef bint _is_covered(self, int target) except -1
    @cython.locals(target=int, looks=int, faults=int)
    cdef Py_ssize_t _slot(self, CommandForm way, list argv) except -3
    cdef int _must_look(self, CommandForm way, object target) except -2
    cdef int _looks_at(self, CommandForm way, object entry) except -2
    cdef CommandForm _way(self, bytes name)
    cdef CommandForm _keyless(self, bytes name)
    cdef int _ask(self, CommandForm way, int target, list argv) except -1
    cdef int _answer(self, CommandForm way, object command, object access, object target) except -1
    @cython.locals(named=dict, size=Py_ssize_t, unknown=int, wrong=int)
    cdef int _faults_of_fields(self, int target, object fields, list argv, Py_ssize_t at) except -2
    cdef int _faults(self, CommandForm way, int looks, int target, list argv, Py_ssize_t at) except -2


cdef bint _are_few_and_short(
    list argv, Py_ssize_t start, Py_ssize_t step, object longest, object most
) except -1
cdef bint _has_form(bytes value, object form) except -1
@cython.locals(size=Py_ssize_t, byte="unsigned char")
cdef bint _is_plain_number(bytes value, Py_ssize_t most) except -1
@cython.locals(size=Py_ssize_t, at=Py_ssize_t, one="const unsigned char *", other="const unsigned char *")
cdef bint _stands(bytes text, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
