# C types for context.py when it is compiled. They do not change its behaviour.


cdef class ServerContext:
    cdef readonly object common
    cdef public object upstream
    cdef public object telemetry
    cdef public object counters
    cdef public object sessions
    cdef public object quotas
    cdef public set clients
    cdef public object ids
    cdef public bint sharing
    cdef public object pools
    cdef readonly object replicas
    cdef readonly object logins
    cdef readonly object turns
