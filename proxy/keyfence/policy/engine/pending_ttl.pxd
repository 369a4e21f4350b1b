# C types for pending.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.policy.engine.forms cimport CachedDecision, CommandForm

cdef int _FINE, _REQUIRED, _FIRST_FAULT, _LAST_FAULT, _ASKS_PRESENCE, _ASKS_ALL, _ASKS_GONE, _GIVES, _SETTLES, _FIRST_SIZED


@cython.final
cdef class Pending:
    cdef readonly object judge
    cdef readonly int service
    cdef readonly object client
    cdef readonly str command
    cdef readonly object sender
    cdef readonly object transaction
    cdef readonly long long database
    cdef readonly object key
    cdef readonly long long position
    cdef readonly object target
    cdef readonly object rule
    cdef public bint everything
    cdef public double since
    cdef public double last
    cdef public double due
    cdef public bint alone
    cdef public bint asked
    cdef public bint twice
    cdef public Pending later
    cdef public bint may_be_gone


@cython.final
cdef class PendingTtls:
    cdef public long long limit
    cdef public long long dropped
    cdef readonly object sizes
    cdef object _clock
    cdef object _table

    @cython.locals(found=int, form=CommandForm)
    cpdef object keep_open(
        self, object judge, DecisionCache cache, CachedDecision decision, int outcome, object key, object transaction,
        long long database, object client, object sender,
    )
    @cython.locals(question=int)
    cpdef object keep(
        self, object judge, int service, object client, str command, object sender, object transaction,
        long long database, object key, long long position, object target, object rule, int found,
    )
    @cython.locals(known=Pending, asked=Pending, newest=Pending, is_same_client=bint, begins=bint)
    cpdef object ask(
        self, object judge, int service, object client, str command, object sender, object transaction,
        long long database, object key, long long position, object target, object rule, int question,
    )
    @cython.locals(known=Pending)
    cpdef object settle(self, long long database, object key, int how, object transaction, object sender)
    cpdef bint knows(self, long long database, object key) except -1
    @cython.locals(known=Pending)
    cpdef object told(self, long long database, object key, int fault)
