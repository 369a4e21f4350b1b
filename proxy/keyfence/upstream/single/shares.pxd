# C types for shares.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer
from keyfence.upstream.exchange cimport Share, Sharer
from keyfence.upstream.single.cutting cimport Cutter, Run, new_run
from keyfence.upstream.single.dealing cimport Deals, new_deal
from keyfence.upstream.single.sides cimport Receiver, Sent, Side, new_sent
from keyfence.upstream.single.turns cimport Order, Turn, new_turn

cdef int _ERROR, _NO_NODE, _ANY_NODE, _SEVERAL, _UNFIT, _PARTS, _MOST_SIDES
cdef unsigned short[::1] _NODES
cdef long long[::1] _ENDS
cdef bytearray _PLACES


cdef class ClusterShares(Receiver):
    cdef readonly Sharer _client
    cdef readonly object _masters
    cdef readonly Cutter _cutter
    cdef readonly dict _sides
    cdef readonly list _places
    cdef Deals _deals
    cdef int _near
    cdef readonly object _profile
    cdef readonly long long _version
    cdef readonly Order _order
    cdef readonly object _queue
    cdef public long long due
    cdef readonly long long _size
    cdef long long _received
    cdef public long long number
    cdef readonly object retries
    cdef readonly object _splits
    cdef public bint sends_again
    cdef bint _is_timed
    cdef bint _is_passed_on
    cdef bint _is_behind
    cdef Share _link

    @cython.locals(index=Py_ssize_t)
    cpdef object send(self, list chunks, list counts, bint shapeable)
    cpdef bint _may_send(self) except -1
    @cython.locals(node=int, side=Side)
    cdef bint _deal(self, bytes data, long long count) except -1
    @cython.locals(
        raw="const char *", places="unsigned char *", begin="long long", end="long long", index="long long",
        first="long long", each="long long", node=int, side=Side, one=Side, parts=list, part=bytes,
    )
    cdef bint _deal_to_several(self, bytes data, long long count) except -1
    @cython.locals(
        run=Run, runs=list, parts=dict, totals=dict, pieces=list, cutter=Cutter, most="long long", end=Py_ssize_t
    )
    cpdef object _send(self, bytes data, long long count, bint shapeable)
    cdef object _send_parts(self, dict parts, dict totals, bint shapeable)
    cdef int _any(self) except -9
    cpdef object _send_run(self, int node, bytes data, long long count, bint shapeable, bint is_transaction)
    @cython.locals(side=Side, turn=Turn)
    cpdef object _expect(self, Run run, bint ends, bint is_transaction=*)
    @cython.locals(side=Side, made=Side)
    cpdef Side side(self, int node)
    cpdef object send_to(self, Side side, Sent sent)
    @cython.locals(head=Turn, other=Side, is_partial=bint, size="long long")
    cpdef object came(self, Side side, bytes data, long long completed, bint whole)
    cpdef object turn_is_over(self)
    cpdef object _pass_on(self)
    cpdef object _hand_over(self)
    @cython.locals(data=bytes)
    cdef object _merge(self)
    @cython.locals(
        framer=ReplyFramer, turn=Turn, at=Py_ssize_t, begin=Py_ssize_t, end=Py_ssize_t, done="long long",
        looks=bint, begins=bint, piece=bytes, line=bytes,
    )
    cpdef object _sort(self, Side side, bytes data)
    @cython.locals(sent=Sent, is_skipped=bint, is_error=bint, number="long long")
    cpdef object _take(self, Side side, Turn turn, bytes piece, long long done, bint looks)
