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


cdef class Side(Sharer):
    cdef readonly object master
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
    cdef object _shares
    cdef object _shared_as

    cpdef bint may_share(self, object profile) except -1
    cpdef object expect(self, Turn turn)
    cpdef object next_turn(self)
    cpdef object send(self, Sent sent)
    @cython.locals(sent=Sent)
    cpdef object answered(self, long long completed)
