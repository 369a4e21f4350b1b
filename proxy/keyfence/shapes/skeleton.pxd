# C types for skeleton.py when it is compiled. They do not change its behaviour.
cimport cython

cdef int _INT, _DATE, _HEX, _ID, _UUID, _IP, _DIGIT, _LETTER, _JOINT, _ALIEN, _UUID_LENGTH
cdef bytes _KIND_OF, _HEX_OF
cdef bytearray _SCRATCH


@cython.locals(
    size=Py_ssize_t, out=bytearray, length=Py_ssize_t, at=Py_ssize_t, short=int, byte=int, kind=int, end=Py_ssize_t,
    raw="const unsigned char *",
)
cpdef bytes skeleton(bytes key)

@cython.locals(before=int, kind=int)
cdef Py_ssize_t _end_of_part(bytes key, Py_ssize_t at, Py_ssize_t size) except -2
cdef bint _is_hex(bytes key, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(digits=int, letters=int, joints=int, at=Py_ssize_t, kind=int, whole=int)
cdef Py_ssize_t _part(bytes key, Py_ssize_t start, Py_ssize_t end, bytearray out, Py_ssize_t length) except -2
cdef Py_ssize_t _as_it_is(bytes key, Py_ssize_t at, Py_ssize_t end, bytearray out, Py_ssize_t length) except -2
@cython.locals(leading=Py_ssize_t, replacement=int)
cdef Py_ssize_t _piece(
    bytes key, Py_ssize_t start, Py_ssize_t end, bytearray out, Py_ssize_t length, bint alone
) except -2
cdef bint _is_numbered(bytes key, Py_ssize_t start, Py_ssize_t leading, Py_ssize_t end) except -1
cdef bint _is_number(bytes key, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint _is_version(bytes key, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(cases=int, case=int)
cdef bint _is_long_hex(bytes key, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(at=Py_ssize_t, byte=int)
cdef bint _is_uuid(bytes key, Py_ssize_t start) except -1
@cython.locals(number=int)
cdef bint _is_date(bytes key, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint _joins_date(int byte) except -1
@cython.locals(
    dots=int, minus=int, others=int, run=int, longest=int, empty=bint, at=Py_ssize_t, byte=int,
)
cdef int _whole(bytes key, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(
    pieces=int, ids=int, joints=int, begun=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, digits=int,
)
cdef Py_ssize_t _pieces(bytes key, Py_ssize_t start, Py_ssize_t end, bytearray out, Py_ssize_t length) except -2
@cython.locals(at=Py_ssize_t)
cdef bint _has_letters_only_piece(bytes key, Py_ssize_t start, Py_ssize_t end) except -1
