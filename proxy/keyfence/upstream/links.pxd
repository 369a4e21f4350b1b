# C types for links.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.upstream.dedicated cimport DedicatedLink, Owner
from keyfence.upstream.shared cimport SharedLink


cdef class Links:
    cdef object _upstream
    cdef object _pools
    cdef Owner _owner
    cdef DedicatedLink _own
    cdef SharedLink _share
    cdef object _reads
    cdef object _shared_as
    cdef bint _paused
    cdef bint _worked
    cdef double _pinged_at

    cpdef Py_ssize_t unsent(self) except -1
    @cython.locals(share=SharedLink)
    cpdef bint may_share(self, object profile) except -1
    @cython.locals(share=SharedLink)
    cpdef object send_shared(self, list chunks, list counts, bint shapeable=*)
    cdef object _keep_own(self, DedicatedLink own)
    cpdef object time_shared(self)
    @cython.locals(own=DedicatedLink)
    cpdef object send_own(self, object profile, list chunks)
    cpdef object drop_own(self)
