# C types for traffic.py. The same source runs uncompiled; nothing here changes what it does.

cdef class Traffic:
    cdef public long long client_in
    cdef public long long client_out
    cdef public long long upstream_in
    cdef public long long upstream_out
