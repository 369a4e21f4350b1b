# C types for requests.py when it is compiled. A C pointer has no bounds check, so an explicit check precedes every
# raw[…] there.

cimport cython

cdef int _CR, _LF, _ZERO, _NINE, _STAR, _DOLLAR, _SAFE_DIGITS, _MOST_PEEKED, _DIGITS_PEEKED
cdef long long[::1] _PLACES
# LARGE and HEAD stay Python objects, because tests lower them.


@cython.final
cdef class Bounds:
    cdef readonly object limits
    cdef long long max_arguments
    cdef long long max_bulk
    cdef long long max_inline
    cdef long long max_request
    cdef long long max_held


@cython.final
cdef class RequestReader:
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t name_at
    cdef readonly Py_ssize_t name_end
    cdef readonly Py_ssize_t key_at
    cdef readonly Py_ssize_t key_end
    cdef Bounds _bounds
    cdef bytes _buffer
    cdef bytearray _head
    cdef bytearray _tail
    cdef Py_ssize_t _begin
    cdef Py_ssize_t _cursor
    cdef bint _stuck
    cdef Py_ssize_t _missing
    cdef list _arguments
    cdef long long _awaited
    cdef long long _bulk
    cdef long long _number
    cdef object _error
    cdef long long _taken
    cdef long long _streamed
    cdef long long _skip
    cdef bytes _large
    cdef long long _large_size

    @cython.locals(held=Py_ssize_t)
    cpdef Py_ssize_t pending(self) except -1
    cpdef Py_ssize_t announced(self) except -1
    cpdef bytes take_partial(self)
    @cython.locals(size=Py_ssize_t)
    cpdef void feed(self, bytes data) except *
    cdef bint _helps(self, bytes data) except -1
    @cython.locals(
        buffer=bytes, raw="const unsigned char *", size=Py_ssize_t, cursor=Py_ssize_t, end=Py_ssize_t, arguments=list
    )
    cpdef list next(self)
    @cython.locals(
        raw="const unsigned char *", size=Py_ssize_t, at=Py_ssize_t, count=Py_ssize_t, index=Py_ssize_t,
        stop=Py_ssize_t, first=Py_ssize_t, length=Py_ssize_t, end=Py_ssize_t,
    )
    cpdef bint peek(self) except -1
    cpdef bytes data(self)
    cpdef list reparse(self)
    @cython.locals(before=Py_ssize_t, size=Py_ssize_t, raw="const unsigned char *")
    cpdef bytes span(self, Py_ssize_t start, Py_ssize_t end)
    cpdef object take(self)
    cpdef object return_to(self, Py_ssize_t start, Py_ssize_t end)
    cpdef object let_go(self)
    cpdef bytes rest(self)
    cdef list _finish(self, list arguments)
    cdef object _fail(self, str text)
    @cython.locals(
        buffer=bytes, raw="const unsigned char *", size=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, value="long long",
        byte="unsigned char",
    )
    cdef bint _read_number(self, int marker) except -1
    @cython.locals(newline=Py_ssize_t, first="unsigned char")
    cdef bint _read_number_slowly(self, int marker) except -1
    @cython.locals(end=Py_ssize_t)
    cdef bint _check_line(self, Py_ssize_t newline, str complaint) except -1
    cdef void _check_count(self) except *
    @cython.locals(size="long long")
    cdef void _check_bulk(self) except *
    @cython.locals(newline=Py_ssize_t, line=bytes, arguments=list)
    cdef list _read_inline(self)


@cython.locals(at=Py_ssize_t, size=Py_ssize_t, byte="unsigned char", arguments=list, argument=bytearray)
cpdef list split_inline(bytes line)
@cython.locals(size=Py_ssize_t, byte="unsigned char")
cdef Py_ssize_t _read_quoted(bytes line, Py_ssize_t at, unsigned char quote, bytearray into) except -2
