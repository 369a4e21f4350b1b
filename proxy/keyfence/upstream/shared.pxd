# C types for shared.py when it is compiled. They do not change its behaviour.
cimport cython

from keyfence.upstream.exchange cimport Exchange, Share

cdef int _ALONE


cdef class SharedConnection


@cython.final
cdef class SharedLink(Share):
    cdef public bint is_timed
    cdef bint _is_refused
    cdef readonly object _pool
    cdef readonly SharedConnection _connection

    @cython.locals(connection=SharedConnection)
    cpdef object send(self, list chunks, list counts, bint shapeable=*)
    cpdef object leave_connection(self)


@cython.final
cdef class SharedConnection:
    cdef readonly dict links
    cdef readonly bint is_closed
    cdef readonly bint is_full
    cdef readonly bint is_drained
    cdef object _upstream
    cdef object _profile
    cdef object _on_refused
    cdef readonly Exchange _exchange
    cdef object _loop
    cdef readonly object _transport
    cdef object _attempt
    cdef object _handshake
    cdef bint _flush_due
    cdef int _alone
    cdef object _idle_since
    cdef bint _worked
    cdef SharedLink _timed
    cdef readonly object login
    cdef readonly bint is_logging_in

    @cython.locals(exchange=Exchange, is_timed=bint)
    cpdef object send(self, SharedLink link, list chunks, list counts, bint shapeable)
    cdef object _flush_soon(self)
    @cython.locals(exchange=Exchange, output=list, timed=SharedLink)
    cpdef object _flush(self)
    @cython.locals(exchange=Exchange, doubt=object)
    cpdef object data_received(self, bytes data)
