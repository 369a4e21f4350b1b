# C types for replies.py when it is compiled. A C pointer has no bounds check, so an explicit check precedes every
# raw[…] there.

cimport cython

cdef int _CR, _LF, _ZERO, _ONE, _NINE, _MAX_HEADER, _SAFE_DIGITS
cdef int _PUSH, _ATTRIBUTE, _ARRAY, _BULK_STRING, _PLUS, _MINUS, _COLON
cdef Py_ssize_t _SHORT_LINE, _SHORT_NUMBER
cdef int _ORDINARY, _UNDECIDED, _NOTED
cdef Py_ssize_t _LONGEST_WORD
cdef tuple _NOTED_WORDS
cdef int _LINE, _BULK, _AGGREGATE, _PAIRS
cdef bytes _SHAPES


@cython.final
cdef class ReplyFramer:
    cdef readonly long long completed
    cdef readonly bint at_boundary
    cdef readonly bint push
    cdef readonly int kind
    cdef readonly Py_ssize_t frame_at
    cdef readonly list errors
    cdef int _line_is
    cdef bytes _line
    cdef bytes _partial
    cdef bint _in_line
    cdef bint _after_cr
    cdef long long _skip
    cdef int _depth
    cdef long long _left
    cdef bint _is_attribute
    cdef list _outer
    cdef int _type
    cdef long long _number
    cdef str _error

    @cython.locals(size=Py_ssize_t, at=Py_ssize_t, ended=bint)
    cpdef Py_ssize_t advance(
        self, bytes data, Py_ssize_t start, long long replies, bint stop_after_push=*
    ) except -1
    @cython.locals(
        raw="const unsigned char *", size=Py_ssize_t, kind=int, end=Py_ssize_t,
        stop=Py_ssize_t, number=Py_ssize_t, most="long long", done="long long", last=int,
    )
    cdef Py_ssize_t _skip_plain(self, bytes data, Py_ssize_t at, long long replies) except -1
    @cython.locals(type_=int, shape=int)
    cdef bint _begin(self) except -1
    @cython.locals(attribute=bint)
    cdef bint _close(self) except -1
    @cython.locals(raw="const unsigned char *", size=Py_ssize_t, stop="long long")
    cdef Py_ssize_t _skip_bulk(self, bytes data, Py_ssize_t at) except -1
    @cython.locals(raw="const unsigned char *", size=Py_ssize_t, stop=Py_ssize_t, end=Py_ssize_t)
    cdef Py_ssize_t _finish_line(self, bytes data, Py_ssize_t at) except -1
    @cython.locals(
        raw="const unsigned char *", size=Py_ssize_t, stop=Py_ssize_t, digits=Py_ssize_t, number="long long",
        type_="unsigned char", shape=int, byte="unsigned char", may_be_noted=bint,
    )
    cdef Py_ssize_t _read_header(self, bytes data, Py_ssize_t at) except -1
    @cython.locals(newline=Py_ssize_t, stop=Py_ssize_t, header=bytes, text=bytes)
    cdef Py_ssize_t _read_header_slowly(self, bytes data, Py_ssize_t at) except -1
    cdef Py_ssize_t _read_error(self, bytes data, Py_ssize_t at) except -1
    @cython.locals(stop=Py_ssize_t, end=Py_ssize_t, sent=Py_ssize_t, is_rest=bint)
    cdef Py_ssize_t _go_on(self, bytes data, Py_ssize_t at) except -1
    cdef object _fail(self, str what)


cdef bint _is_null(const unsigned char *data, Py_ssize_t at, Py_ssize_t size) except -1
