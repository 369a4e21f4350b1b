# C types for links.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.upstream.dedicated cimport DedicatedLink, Receiver
from keyfence.upstream.exchange cimport Sharer
from keyfence.upstream.shared cimport SharedLink
from keyfence.resp.replies cimport ReplyFramer


cdef class Owner(Sharer):
    cpdef object upstream_data(self, DedicatedLink link, bytes data)


@cython.final
cdef class Links(Receiver):
    cdef object _upstream
    cdef object _pools
    cdef Owner _owner
    cdef DedicatedLink _own
    cdef SharedLink _share
    cdef object _shared_as
    cdef bint _shares
    cdef bint _paused
    cdef bint _own_is_full
    cdef bint _worked
    cdef double _pinged_at
    cdef long long _pongs
    cdef ReplyFramer _framer

    cpdef Py_ssize_t unsent(self) except -1
    @cython.locals(share=SharedLink)
    cpdef bint may_share(self, object profile) except -1
    cpdef object send_shared(self, list chunks, list counts, bint shapeable=*)
    cpdef object time_shared(self)
    cpdef object send_own(self, object profile, list chunks)
    cpdef object drop_own(self)
