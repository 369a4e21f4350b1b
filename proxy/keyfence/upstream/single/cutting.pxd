# C types for cutting.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.policy.compiled.hash_slots cimport slot_in
from keyfence.resp.requests cimport RequestReader

cdef const long long[::1] _PLACES
cdef unsigned short[::1] _NODES
cdef long long[::1] _ENDS
cdef int _NO_SLOT, _NO_NODE, _ANY_NODE, _SEVERAL, _UNFIT, _PARTS
cdef long long _MOST_DEALT
cdef dict _KEY_AT


@cython.freelist(64)
@cython.final
cdef class Run:
    cdef public int node
    cdef public long long count
    cdef public Py_ssize_t begin
    cdef public Py_ssize_t end


@cython.locals(run=Run)
cpdef Run new_run(int node, long long count, Py_ssize_t begin, Py_ssize_t end)


@cython.final
cdef class Cutter:
    cdef RequestReader _reader
    cdef unsigned short[::1] _owners
    cdef public long long version
    cdef readonly bint is_transaction
    cdef bint _is_split
    cdef frozenset _splits
    cdef dict _key_at
    cdef bytes _name
    cdef Py_ssize_t _at

    @cython.locals(
        reader=RequestReader, here=int, whole=int, node=int, slot=int, index=Py_ssize_t, earlier=Py_ssize_t
    )
    cpdef int deal(self, bytes data, long long count) except -9

    @cython.locals(
        reader=RequestReader, runs=list, here=int, node=int, slot=int, begin=Py_ssize_t, end=Py_ssize_t,
        number="long long", index="long long", owners="unsigned short[::1]",
    )
    cpdef list cut(self, bytes data, long long count)
    @cython.locals(reader=RequestReader, data=bytes, at=Py_ssize_t)
    cdef int _next_slot(self) except -2
    @cython.locals(raw="const char *", name=bytes, same="const char *", at=Py_ssize_t, size=Py_ssize_t, index=Py_ssize_t)
    cdef bint _has_same_name(self, bytes data) except -1
    @cython.locals(raw="const char *")
    cdef Py_ssize_t _find_key(self, bytes data) except -1
    cdef int _read_slot(self, list argv) except -2
    cdef int _first_slot(self, long long count) except -2
