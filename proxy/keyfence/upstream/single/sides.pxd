# C types for sides.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.resp.replies cimport ReplyFramer
from keyfence.upstream.exchange cimport Share, Sharer
from keyfence.upstream.shared cimport SharedLink
from keyfence.upstream.single.turns cimport Turn


@cython.freelist(64)
@cython.final
cdef class Sent:
    cdef public bytes data
    cdef public long long count
    cdef public long long left
    cdef public bint shapeable
    cdef public object again
    cdef public list requests
    cdef public Sent behind


@cython.locals(sent=Sent)
cpdef Sent new_sent(bytes data, long long count, bint shapeable, object again)


cdef ReplyFramer _FRAMER


cdef class Side


cdef class Receiver:
    cpdef object came(self, Side side, bytes data, long long completed, bint whole)
    cpdef object turn_is_over(self)


cdef class Side(Sharer):
    cdef readonly object master
    cdef readonly int number
    cdef public int place
    cdef public long long part_count
    cdef public list parts
    cdef readonly long long stock
    cdef public long long counted
    cdef public object link
    cdef public bint is_full
    cdef public bint is_looked_at
    cdef public long long due
    cdef public Turn turn
    cdef public ReplyFramer framer
    cdef public bytes part
    cdef Turn _last
    cdef Sent _sent
    cdef Sent _sent_last
    cdef Receiver _shares
    cdef object _shared_as
    cdef bytes _stocked
    cdef Py_ssize_t _stock_at

    cpdef bint may_share(self, object profile) except -1
    cpdef object expect(self, Turn turn)
    cpdef object queue(self, Turn turn)
    cpdef object next_turn(self)
    cpdef object send(self, Sent sent)
    @cython.locals(sent=Sent)
    cpdef object answered(self, long long completed)
    cpdef object put(self, bytes data, long long completed)
    @cython.locals(begin=Py_ssize_t, end=Py_ssize_t, raw="const char *", whole=bytes)
    cpdef bytes get(self, long long count)
