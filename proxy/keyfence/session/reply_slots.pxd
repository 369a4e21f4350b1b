# C types for slots.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython



cdef class Slot:
    cdef Slot behind
    cdef readonly Py_ssize_t held


@cython.final
cdef class Forward(Slot):
    cdef public long long count


@cython.final
cdef class Drop(Slot):
    cdef public long long count


@cython.final
cdef class Local(Slot):
    cdef readonly bytes data


@cython.final
cdef class Replace(Slot):
    cdef readonly bytes data
    cdef readonly object seen


@cython.final
cdef class Inspect(Slot):
    cdef readonly object seen
    cdef readonly bint silent


@cython.final
cdef class Confirm(Slot):
    cdef public long long count
    cdef readonly bytes word
    cdef readonly object confirmed


@cython.final
cdef class Slots:
    cdef readonly Slot head
    cdef Slot _last
    cdef public long long held_bytes
    cdef public long long awaited

    cdef object _append(self, Slot slot)
    cdef object _drop_head(self)
    @cython.locals(last=Slot, run=Forward)
    cpdef object forward(self, long long count)
    @cython.locals(head=Slot, run=Forward)
    cpdef bint answer_run(self, long long count) except -1
    @cython.locals(slot=Slot)
    cpdef Slot pop(self)
    cpdef list ready(self)
