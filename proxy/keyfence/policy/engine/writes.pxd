# C types for writes.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython


@cython.final
cdef class Write:
    cdef readonly object authorizer
    cdef readonly int service
    cdef readonly object client
    cdef readonly str command
    cdef readonly object sender
    cdef readonly object transaction
    cdef readonly long long database
    cdef readonly object key
    cdef readonly long long position
    cdef readonly object target


@cython.locals(write=Write)
cpdef Write new_write(
    object authorizer, int service, object client, str command, object sender, object transaction,
    long long database, object key, long long position, object target,
)
