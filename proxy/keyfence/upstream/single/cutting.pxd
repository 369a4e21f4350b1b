# C types for cutting.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.policy.compiled.hash_slots cimport slot_in
from keyfence.resp.requests cimport RequestReader

cdef const long long[::1] _PLACES
cdef int _NO_SLOT, _ANY_NODE
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
    cdef readonly bint is_transaction

    @cython.locals(
        reader=RequestReader, runs=list, here=int, node=int, slot=int, begin=Py_ssize_t, end=Py_ssize_t,
        number="long long", index="long long",
    )
    cpdef list cut(self, bytes data, long long count, object owners)
    @cython.locals(reader=RequestReader, data=bytes, name=bytes, at=Py_ssize_t)
    cdef int _next_slot(self) except -2
    cdef int _first_slot(self, long long count) except -2
