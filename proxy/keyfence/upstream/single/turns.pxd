# C types for turns.py when it is compiled. They do not change its behaviour.
cimport cython


@cython.freelist(256)
@cython.final
cdef class Turn:
    cdef public object side
    cdef public long long count
    cdef public long long number
    cdef public bint ends
    cdef public bint is_whole
    cdef public list held
    cdef public long long completed
    cdef public Turn behind
    cdef public Turn later
    cdef public object part


@cython.locals(turn=Turn)
cpdef Turn new_turn(object side, long long count, long long number, bint ends, bint is_whole)


@cython.final
cdef class Order:
    cdef object _deliver
    cdef readonly Turn head
    cdef Turn _last
    cdef readonly long long held
    cdef list _out
    cdef long long _completed

    cpdef object add(self, Turn turn)
    @cython.locals(rest=Turn)
    cpdef Turn split(self, Turn turn, long long count)
    cpdef object came(self, Turn turn, bytes data, long long completed)
    @cython.locals(turn=Turn, ends=bint)
    cdef object _advance(self)
    cpdef bint settle(self, bint is_partial) except -1
    @cython.locals(out=list, completed="long long")
    cdef bint _let_out(self, bint whole) except -1
