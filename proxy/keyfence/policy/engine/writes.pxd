# C types for writes.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.asker cimport Asker


@cython.final
cdef class Write:
    cdef readonly object authorizer
    cdef readonly Asker asker
    cdef readonly str command
    cdef readonly long long database
    cdef readonly object key
    cdef readonly long long position
    cdef readonly object target


@cython.locals(write=Write)
cpdef Write new_write(
    object authorizer, Asker asker, str command, long long database, object key, long long position,
    object target,
)
