# C types for skeleton.py when it is compiled. They do not change its behaviour.
cimport cython

cdef int _INT, _DATE, _HEX, _ID, _UUID, _IP, _DIGIT, _LETTER, _JOINT, _ALIEN, _UUID_LENGTH
cdef bytes _KIND_OF, _HEX_OF
cdef bytearray _SCRATCH

ctypedef const unsigned char *Text


@cython.locals(
    size=Py_ssize_t, out="unsigned char *", length=Py_ssize_t, at=Py_ssize_t, short=int, byte=int, kind=int,
    end=Py_ssize_t, raw=Text, kinds=Text,
)
cpdef bytes skeleton(bytes key)

@cython.locals(before=int, kind=int, kinds=Text)
cdef Py_ssize_t _end_of_part(Text key, Py_ssize_t at, Py_ssize_t size) except -2
@cython.locals(hexes=Text)
cdef bint _is_hex(Text key, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(digits=int, letters=int, joints=int, at=Py_ssize_t, kind=int, whole=int, kinds=Text)
cdef Py_ssize_t _part(Text key, Py_ssize_t start, Py_ssize_t end, unsigned char *out, Py_ssize_t length) except -2
cdef Py_ssize_t _as_it_is(Text key, Py_ssize_t at, Py_ssize_t end, unsigned char *out, Py_ssize_t length) except -2
@cython.locals(leading=Py_ssize_t, replacement=int, kinds=Text)
cdef Py_ssize_t _piece(
    Text key, Py_ssize_t start, Py_ssize_t end, unsigned char *out, Py_ssize_t length, bint alone
) except -2
cdef bint _is_numbered(Text key, Py_ssize_t start, Py_ssize_t leading, Py_ssize_t end) except -1
@cython.locals(kinds=Text)
cdef bint _is_number(Text key, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint _is_version(Text key, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(cases=int, case=int, hexes=Text)
cdef bint _is_long_hex(Text key, Py_ssize_t at, Py_ssize_t end) except -1
@cython.locals(at=Py_ssize_t, byte=int, hexes=Text)
cdef bint _is_uuid(Text key, Py_ssize_t start) except -1
@cython.locals(number=int)
cdef bint _is_date(Text key, Py_ssize_t at, Py_ssize_t end) except -1
cdef bint _joins_date(int byte) except -1
@cython.locals(
    dots=int, minus=int, others=int, run=int, longest=int, empty=bint, at=Py_ssize_t, byte=int, kinds=Text,
)
cdef int _whole(Text key, Py_ssize_t start, Py_ssize_t end) except -1
@cython.locals(
    pieces=int, ids=int, joints=int, begun=Py_ssize_t, at=Py_ssize_t, stop=Py_ssize_t, digits=int, kinds=Text,
)
cdef Py_ssize_t _pieces(Text key, Py_ssize_t start, Py_ssize_t end, unsigned char *out, Py_ssize_t length) except -2
@cython.locals(at=Py_ssize_t, kinds=Text)
cdef bint _has_letters_only_piece(Text key, Py_ssize_t start, Py_ssize_t end) except -1
