# C types for pending.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.asker cimport Asker
from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.policy.engine.forms cimport CommandForm, KeyKind
from keyfence.policy.engine.writes cimport Write, new_write

cdef int _FINE, _REQUIRED, _FIRST_FAULT, _LAST_FAULT, _ASKS_PRESENCE, _ASKS_ALL, _ASKS_GONE, _GIVES, _SETTLES, _FIRST_SIZED


@cython.final
cdef class PendingTtl:
    cdef readonly Write write
    cdef readonly object rule
    cdef public bint everything
    cdef public double since
    cdef public double last
    cdef public double due
    cdef public bint alone
    cdef public bint asked
    cdef public bint twice
    cdef public PendingTtl later
    cdef public bint may_be_gone


@cython.final
cdef class PendingTtls:
    cdef public long long limit
    cdef public long long dropped
    cdef readonly object sizes
    cdef object _clock
    cdef object _table

    @cython.locals(form=CommandForm, write=Write)
    cpdef object keep_open(
        self, object authorizer, Asker asker, DecisionCache cache, KeyKind decision, int outcome,
        object key,
    )
    @cython.locals(write=Write)
    cpdef object keep_key_open(
        self, object authorizer, Asker asker, KeyKind kind, Py_ssize_t position, object key
    )
    cdef bint _settles(self, Asker asker, object target, int outcome, object key) except -1
    cdef object _keep_write(self, Write write, int outcome, object questions)
    @cython.locals(question=int)
    cpdef object apply(self, Write write, object rule, int outcome)
    @cython.locals(known=PendingTtl, asked=PendingTtl, earlier=Write, asker=Asker, begins=bint)
    cpdef object ask(self, Write write, object rule, int question)
    @cython.locals(known=PendingTtl, wrote=Asker)
    cpdef object settle(self, long long database, object key, int how, Asker asker)
    cpdef bint has_keys(self) except -1
    cpdef bint knows(self, long long database, object key) except -1
    @cython.locals(known=PendingTtl)
    cpdef object reported(self, long long database, object key, int fault)


@cython.locals(asked=PendingTtl)
cdef PendingTtl _new_pending(Write write, object rule, bint everything, double now)
cdef bint _is_same(Asker one, Asker other) except -1
