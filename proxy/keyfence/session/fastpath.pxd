# C types for fastpath.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.asker cimport Asker
from keyfence.policy.engine.decision_cache cimport DecisionCache
from keyfence.policy.engine.forms cimport Call, CommandForm, KeyKind, Lookup, new_lookup
from keyfence.policy.engine.pending cimport PendingTtls
from keyfence.policy.engine.counts cimport Admitted, ViolationCounter
from keyfence.session.conversation.conversation cimport Conversation
from keyfence.session.conversation.known_client cimport KnownClient
from keyfence.policy.wording.prepared cimport Prepared
from keyfence.resp.requests cimport RequestReader

cdef int _NOTHING, _EMPTY, _EVALUATE, _REFUSED, _LEAVES, _ADMITTED
cdef list _UNREAD
cdef Outcome _OUTCOME
cdef const long long[::1] _PLACES
cdef int _GIVES, _SETTLES, _AS_PLAIN, _BLOCKS, _RUNS_SCRIPT, _TRUSTED


@cython.final
cdef class Outcome:
    cdef readonly int kind
    cdef readonly list argv
    cdef readonly Lookup lookup
    cdef readonly bytes refusal
    cdef readonly Call call


@cython.final
cdef class FastPath:
    cdef KnownClient _client
    cdef Conversation _conversation
    cdef readonly DecisionCache cache
    cdef tuple _values
    cdef object _authorizer
    cdef object _caller
    cdef PendingTtls _pending
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef public Py_ssize_t count
    cdef object _comparison
    cdef DecisionCache _beside
    cdef ViolationCounter _counted
    cdef bint _needed_own
    cdef int _until_timed
    cdef double _started

    @cython.locals(outcome=Outcome)
    cpdef Outcome read(self, DecisionCache cache)
    @cython.locals(
        conversation=Conversation, reader=RequestReader, beside=DecisionCache, argv=list, peeked=bint,
        largest=Py_ssize_t, kind=int, lookup=Lookup,
    )
    cdef int _read(self, DecisionCache cache, Outcome outcome) except -1
    @cython.locals(argv=list)
    cdef int _next(self, Outcome outcome) except -1
    cdef object _begin(self, Outcome outcome, list argv)
    @cython.locals(conversation=Conversation, count="long long")
    cpdef object send_run(self)
    @cython.locals(outcome=Outcome)
    cpdef object let_go(self)
    cpdef object comparison(self, object authorizer)
    @cython.locals(reader=RequestReader, lookup=Lookup, argv=list, has_slots=bint)
    cdef object _compare_unread(self, DecisionCache beside)
    @cython.locals(
        counted=ViolationCounter, kind=ViolationCounter, beside=DecisionCache, lookup=Lookup,
        decision=KeyKind, is_known=bint,
    )
    cpdef object compare(self, list argv)
    @cython.locals(beside=DecisionCache)
    cpdef object compare_transaction(self, bytes name)
    cdef object _compared_as(self, object comparison, Lookup lookup)
    cdef object _compared(self, object comparison, Admitted admitted)
    cpdef object join(self, RequestReader reader)
    @cython.locals(cache=DecisionCache, asker=Asker)
    cpdef DecisionCache current_cache(self)
    @cython.locals(decision=KeyKind, call=Call, counter=ViolationCounter, outcome=int, key=bytes)
    cdef int _known(self, DecisionCache cache, Lookup lookup, list argv) except -1
    cdef bint _begins_or_ends(self, bytes name) except -1
    @cython.locals(key=bytes, index=Py_ssize_t)
    cdef bint _shares_slot(self, DecisionCache cache, KeyKind decision, list argv) except -1
    @cython.locals(fits=bint)
    cdef int _takes(self, Lookup lookup, Call call, list argv) except -1
    cdef bint _takes_own(self) except -1
    @cython.locals(counter=ViolationCounter)
    cdef ViolationCounter _counter_by_shape(self, KeyKind decision, Lookup lookup, list argv)
    @cython.locals(prepared=Prepared, reply=bytes)
    cdef bint _refuses(self, KeyKind decision, ViolationCounter counter, bytes key) except -1
    cpdef object counted(self, Admitted admitted)
    @cython.locals(pending=PendingTtls, asker=Asker, kind=KeyKind, at=Py_ssize_t, key=bytes)
    cdef object _keep_call(self, list opens, list argv)
    cdef object _count(self, Admitted admitted)
    @cython.locals(pending=PendingTtls)
    cdef bint _leaves_open(self, int outcome) except -1
    @cython.locals(pending=PendingTtls)
    cdef object _keep_open(self, DecisionCache cache, KeyKind decision, int outcome, object key)
    cdef object _begin_timing(self)
    cpdef double take_timing(self) except -1.0
    cpdef object end_timing(self)


cdef int _way(Call call) except -1
cdef bytes _argument(RequestReader reader, list argv, Py_ssize_t number)
cpdef bint is_named(bytes name, bytes wanted) except -1
