# C types for forms.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.compiled.named cimport NameCheck, TypeWords
from keyfence.policy.compiled.written cimport Arrangement, WrittenCheck
from keyfence.policy.engine.counts cimport Admitted, ViolationCounter
from keyfence.shapes.skeleton cimport skeleton

cdef int _NO_OPTIONS, _TO_END, _ONE_OPTION, _TRIMMING, _FLAGS, _UP_TO, _LETTERS, _NAMED
cdef Py_ssize_t _RECENT, _RECENT_NAMES


@cython.final
cdef class CommandForms:
    cdef readonly bytes spelled
    cdef readonly str name
    cdef readonly object layout
    cdef object answers_twice
    cdef readonly Py_ssize_t index
    cdef readonly bint shows_content
    cdef readonly list runs
    cdef readonly bint has_several
    cdef readonly int options
    cdef readonly Py_ssize_t options_at
    cdef Py_ssize_t options_to
    cdef readonly Py_ssize_t targets
    cdef readonly object evidence
    cdef Py_ssize_t most_forms
    cdef bint renews
    cdef readonly CommandForm only
    cdef dict forms
    cdef list recent

    cpdef object forget(self)
    @cython.locals(at=Py_ssize_t, options=int)
    cdef Py_ssize_t options_end(self, bytes data, const long long[::1] places, Py_ssize_t count) except -2
    @cython.locals(form=CommandForm)
    cdef CommandForm sent_with(self, bytes data, Py_ssize_t start, Py_ssize_t end)
    @cython.locals(options=tuple, form=CommandForm)
    cdef CommandForm with_options(self, list argv)
    @cython.locals(at=Py_ssize_t, size=Py_ssize_t, stop=Py_ssize_t)
    cdef tuple _options(self, list argv)


@cython.final
cdef class CommandForm:
    cdef readonly CommandForms command
    cdef readonly str name
    cdef readonly Py_ssize_t index
    cdef readonly bytes written
    cdef readonly Py_ssize_t content_from
    cdef readonly Arrangement arrangement
    cdef readonly list kinds
    cdef readonly KeyKind on_no_target
    cdef readonly dict calls
    cdef public bint is_seen
    cdef readonly Call recent
    cdef readonly Py_ssize_t recent_kinds
    cdef readonly bint recent_several

    cdef object keep(self, KeyKind kind)
    @cython.locals(kind=KeyKind)
    cdef object find_first(self, Call call, list chosen, bint several)


@cython.final
cdef class KeyKind(Admitted):
    cdef readonly CommandForm form
    cdef readonly Py_ssize_t number
    cdef readonly object target
    cdef readonly Py_ssize_t run
    cdef readonly bint is_covered
    cdef public int outcome
    cdef public tuple questions
    cdef readonly NameCheck named
    cdef readonly TypeWords words
    cdef readonly WrittenCheck written
    cdef public int looks
    cdef public bint is_clean
    cdef public bint joins
    cdef public bint binds
    cdef public long long turn
    cdef public Py_ssize_t at
    cdef public KeyKind before
    cdef public Call recent
    cdef readonly dict counters
    cdef readonly dict by_shape
    cdef public ViolationCounter recent_counter
    cdef int recent_faults
    cdef readonly Admitted further
    cdef readonly Lookup hit
    cdef readonly Lookup miss
    cdef public Lookup recent_miss

    cpdef object checks(self, NameCheck named, TypeWords words, WrittenCheck written)
    @cython.locals(found=int, check=WrittenCheck, form=CommandForm)
    cpdef int faults(self, bytes data, const long long[::1] places, Py_ssize_t count, Py_ssize_t at) except -2
    @cython.locals(found=int)
    cpdef int key_faults(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -2
    @cython.locals(recent=ViolationCounter)
    cpdef ViolationCounter counter(self, int faults, bytes key)
    cpdef object forget(self)
    cpdef object mark(self, int faults, bytes key)


@cython.final
cdef class Call(Admitted):
    cdef readonly bint is_trusted
    cdef public int way
    cdef readonly Lookup hit


@cython.final
cdef class Lookup:
    cdef readonly KeyKind decision
    cdef readonly Call call
    cdef readonly list opens
    cdef readonly bint is_admitted
    cdef readonly str reason
    cdef readonly int faults
    cdef readonly CommandForm form
    cdef readonly Py_ssize_t number
    cdef public object known


@cython.locals(lookup=Lookup)
cpdef Lookup new_lookup(
    KeyKind decision, str reason, int faults, Call call=*, list opens=*, CommandForm form=*, Py_ssize_t number=*
)

@cython.locals(raw="const unsigned char *", size=Py_ssize_t, middle=Py_ssize_t, letters=Py_ssize_t)
cdef Py_ssize_t _bucket(bytes data, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(size=Py_ssize_t, at=Py_ssize_t, one="const unsigned char *", other="const unsigned char *")
cpdef bint stands(bytes text, bytes data, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(raw="const unsigned char *", size=Py_ssize_t, letters=Py_ssize_t)
cpdef Py_ssize_t name_bucket(bytes data, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(places="long long[::1]", at=Py_ssize_t, number=Py_ssize_t, argument=bytes)
cpdef long long[::1] places_of(list argv)
