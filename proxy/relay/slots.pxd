# C types for slots.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython


@cython.final
cdef class Forward:
    cdef public long long count


@cython.final
cdef class Drop:
    cdef public long long count


@cython.final
cdef class Local:
    cdef readonly bytes data


@cython.final
cdef class Replace:
    cdef readonly bytes data
    cdef readonly object seen


@cython.final
cdef class Inspect:
    cdef readonly object seen
    cdef readonly bint silent


@cython.final
cdef class Confirm:
    cdef public long long count
    cdef readonly bytes word
    cdef readonly object confirmed


@cython.final
cdef class Slots:
    cdef object _queue
    cdef public long long local_bytes
    cdef public long long awaited

    @cython.locals(run=Forward)
    cpdef object forward(self, long long count)
    @cython.locals(head=object, run=Forward)
    cpdef bint answer_run(self, long long count) except -1
    cpdef list ready(self)
