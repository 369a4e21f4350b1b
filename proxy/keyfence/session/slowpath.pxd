# C types for slowpath.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.session.conversation.executor cimport Decided, Executor
from keyfence.session.fastpath cimport FastPath, Outcome

cdef int _LEAVES, _REFUSED


@cython.final
cdef class SlowPath:
    cdef FastPath _fast
    cdef public object long

    @cython.locals(argv=list)
    cpdef bint admits(self, Executor session, Outcome found) except -1
    cpdef bint concludes(
        self, Executor session, object request, object ruling, object evaluation, bint at_once
    ) except -1
    cdef bint _fits(self, Executor session, object authorizer, object touches, Py_ssize_t size) except -1
