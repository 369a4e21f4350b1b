# C types for dealing.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.upstream.single.sides cimport Side
from keyfence.upstream.single.turns cimport Order, Turn, new_turn


@cython.freelist(256)
@cython.final
cdef class Deal:
    cdef public bytes order
    cdef public int place
    cdef public long long count
    cdef public long long at
    cdef public long long number
    cdef public Deal behind


@cython.locals(deal=Deal)
cpdef Deal new_deal(bytes order, int place, long long count, long long number)


@cython.final
cdef class Deals:
    cdef readonly Deal head
    cdef readonly long long held
    cdef readonly long long completed
    cdef Deal _last
    cdef list _sides

    cpdef object add(self, Deal deal)
    cpdef object take_in(self, Side side, bytes data, long long completed)
    @cython.locals(deal=Deal, side=Side, order=bytes, at="long long")
    cpdef bint is_first_answered(self) except -1
    @cython.locals(
        deal=Deal, side=Side, only=bytes, piece=bytes, pieces=list, begin="long long", at="long long",
        count="long long",
    )
    cpdef bytes merged(self)
    @cython.locals(order=bytes, end="long long")
    cdef Py_ssize_t _adjacent(self, Deal deal, long long at) except -1
    @cython.locals(deal=Deal, side=Side, turn=Turn, first=Turn, count="long long")
    cpdef object hand_over(self, Order order)
    cpdef object clear(self)
