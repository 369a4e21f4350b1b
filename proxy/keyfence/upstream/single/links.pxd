# C types for links.py when it is compiled. They do not change its behaviour.
from keyfence.upstream.links cimport Links
from keyfence.upstream.single.shares cimport ClusterShares


cdef class ClusterLinks(Links):
    cdef ClusterShares _shares
    cdef object _owns
    cdef object _masters
    cdef object _after_write
    cdef object _known
    cdef bint _owns_rest

    cpdef Py_ssize_t unsent(self) except -1
    cpdef bint may_share(self, object profile) except -1
    cpdef object send_shared(self, list chunks, list counts, bint shapeable=*)
    cpdef object time_shared(self)
    cpdef object send_own(self, object profile, list chunks)
    cpdef object drop_own(self)
