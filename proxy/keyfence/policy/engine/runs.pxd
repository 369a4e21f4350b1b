# C types for runs.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

cdef int _ZERO, _NINE, _SMALL
cdef Py_ssize_t _MOST_DIGITS, _LONGEST_WORD
cdef const long long[::1] _OPTIONS
cdef bytes _TAKES


@cython.final
cdef class Run:
    cdef readonly Py_ssize_t number
    cdef readonly bint is_channel
    cdef Py_ssize_t start
    cdef Py_ssize_t last
    cdef readonly Py_ssize_t step
    cdef readonly Py_ssize_t limit
    cdef bint has_keyword
    cdef long long keyword
    cdef readonly bint is_counted
    cdef readonly Py_ssize_t count_at
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t at
    cdef readonly Py_ssize_t stop

    @cython.locals(at=Py_ssize_t, stop=Py_ssize_t)
    cpdef bint place(self, bytes data, const long long[::1] places, Py_ssize_t count) except -1


@cython.locals(at=Py_ssize_t, word="long long", taken=Py_ssize_t, number=Py_ssize_t)
cdef Py_ssize_t _after(bytes data, const long long[::1] places, Py_ssize_t count, long long keyword) except -2
@cython.locals(raw="const unsigned char *", at=Py_ssize_t, number="long long")
cdef long long _folded(bytes data, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(raw="const unsigned char *", at=Py_ssize_t, number=Py_ssize_t, byte="unsigned char")
cdef Py_ssize_t _number(bytes data, Py_ssize_t start, Py_ssize_t end) except -2
