# C types for identity.py. The same source runs uncompiled; nothing here changes what it does.


cdef class Identity:
    cdef public str service
