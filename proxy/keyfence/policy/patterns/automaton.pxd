# C types for automaton.py when it is compiled. They do not change its behaviour.
cimport cython


cdef int _NODE
cdef int _START
cdef Py_ssize_t _STRIDE


cdef bint _is_state(int number, Py_ssize_t end)


cdef class Automaton:
    cdef readonly int width
    cdef readonly bytes classes
    cdef readonly object nodes
    cdef readonly object rows
    cdef readonly tuple sets
    cdef const int[::1] _nodes
    cdef const int[::1] _rows
    cdef bint _is_small
    cdef const unsigned short[::1] _steps

    @cython.locals(states=Py_ssize_t, at=Py_ssize_t)
    cdef bint _leads_to_states(self) except -1

    cpdef int match(self, bytes key) except -2

    cdef object _one_table(self)
    @cython.locals(
        raw="const unsigned char *", classes="const unsigned char *", state=cython.int, place=cython.Py_ssize_t,
        offset=cython.Py_ssize_t, stop=cython.Py_ssize_t,
    )
    cpdef int match_span(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -2

    cpdef int state_after(self, bytes key) except -2

    cpdef int walk(self, int state, bytes data) except -2
    @cython.locals(
        raw="const unsigned char *", classes="const unsigned char *", offset=cython.Py_ssize_t, byte_class=cython.int
    )
    cdef int _walk(self, int state, bytes data, Py_ssize_t start, Py_ssize_t end) except -2

    cpdef int accept_of(self, int state) except -2


cdef class Classifier:
    cdef readonly Automaton automaton
    cdef readonly tuple patterns
    cdef const int[::1] _members
    cdef const int[::1] _begins
    cdef const long long[::1] _bounds

    @cython.locals(accept=cython.int, at=cython.int, index=cython.int)
    cpdef int first(self, bytes key) except -2

    @cython.locals(accept=cython.int, at=cython.int, index=cython.int, length=cython.Py_ssize_t, bound=cython.int)
    cpdef int first_in(self, bytes data, Py_ssize_t start, Py_ssize_t end) except -2

    @cython.locals(length=cython.Py_ssize_t, at=cython.int)
    cpdef bint confirms(self, int index, bytes key) except -1
