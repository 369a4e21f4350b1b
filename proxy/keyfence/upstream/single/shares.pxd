# C types for shares.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer
from keyfence.upstream.single.cutting cimport Cutter, Run, new_run
from keyfence.upstream.single.sides cimport Sent, Side, new_sent
from keyfence.upstream.single.turns cimport Order, Turn, new_turn

cdef int _ERROR, _NO_NODE, _ANY_NODE


cdef class ClusterShares:
    cdef object _client
    cdef object _masters
    cdef dict _sides
    cdef int _near
    cdef object _profile
    cdef object _version
    cdef Order _order
    cdef object _queue
    cdef long long _due
    cdef long long _number
    cdef object _round
    cdef bint _sends_again
    cdef bint _is_timed
    cdef bint _is_passed_on
    cdef object _link

    @cython.locals(index=Py_ssize_t)
    cpdef object send(self, list chunks, list counts, bint shapeable)
    cpdef bint _may_send(self) except -1
    @cython.locals(run=Run, runs=list, parts=dict, totals=dict, pieces=list, cutter=Cutter)
    cpdef object _send(self, bytes data, long long count, bint shapeable)
    cpdef object _send_run(self, int node, bytes data, long long count, bint shapeable, bint is_transaction)
    @cython.locals(side=Side, turn=Turn)
    cpdef object _expect(self, Run run, bint ends, bint is_transaction=*)
    @cython.locals(side=Side)
    cpdef Side _side(self, int node)
    cpdef object _send_to(self, Side side, Sent sent)
    @cython.locals(turn=Turn, head=Turn, other=Side, is_partial=bint)
    cpdef object came(self, Side side, bytes data, long long completed, bint whole)
    @cython.locals(
        framer=ReplyFramer, turn=Turn, at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, done="long long",
        looks=bint, piece=bytes, line=bytes,
    )
    cpdef object _sort(self, Side side, bytes data)
    @cython.locals(sent=Sent, is_skipped=bint, number="long long")
    cpdef object _take(self, Side side, Turn turn, bytes piece, long long done, bint looks)
