# C types for fastpath.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.policy.engine.forms cimport CachedDecision, CommandForm, Lookup
from keyfence.policy.engine.pending cimport PendingTtls
from keyfence.policy.engine.counts cimport Admitted, Repeat
from keyfence.session.actor cimport Actor, Decided
from keyfence.resp.requests cimport RequestReader


@cython.final
cdef class FastPath:
    cdef readonly DecisionCache cache
    cdef tuple _values
    cdef object _authorizer
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef public Py_ssize_t count
    cdef readonly Lookup lookup
    cdef Decided _refused
    cdef int _until_timed
    cdef double _started

    @cython.locals(reader=RequestReader, cache=DecisionCache, argv=list, peeked=bint)
    cpdef list read(self, Actor session, DecisionCache cache)
    cpdef object join(self, RequestReader reader)
    @cython.locals(cache=DecisionCache)
    cpdef DecisionCache current_cache(self, Actor session)
    @cython.locals(reader=RequestReader, lookup=Lookup, decision=CachedDecision, counter=Repeat, outcome=int)
    cdef bint _admits_peeked(self, Actor session, DecisionCache cache) except -1
    @cython.locals(lookup=Lookup, decision=CachedDecision, form=CommandForm, counter=Repeat, outcome=int)
    cdef bint _admits_parsed(self, Actor session, DecisionCache cache, list argv) except -1
    @cython.locals(lookup=Lookup)
    cdef object _refuse(self, Actor session, DecisionCache cache, Repeat counter, list argv)
    cpdef object counted(self, Actor session, Admitted admitted)
    @cython.locals(pending=PendingTtls)
    cdef object _keep_open(
        self, Actor session, DecisionCache cache, CachedDecision decision, int outcome, object key
    )
    cdef object _begin_timing(self)
    cpdef Decided take_refusal(self)
    cpdef double take_timing(self) except -1.0
    cpdef object end_timing(self, Actor session)


@cython.locals(start=Py_ssize_t, argv=list, count=Py_ssize_t, name=bytes)
cpdef bint exec_follows(RequestReader reader, Py_ssize_t most_bytes, Py_ssize_t most_requests) except -1
cpdef bint is_named(bytes name, bytes wanted) except -1
