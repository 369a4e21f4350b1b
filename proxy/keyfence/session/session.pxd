# C types for session.py. The same source runs uncompiled; nothing here changes what it does.
cimport cython

from keyfence.policy.engine.decision_cache cimport DecisionCache, CommandForm
from keyfence.policy.engine.pending cimport PendingTtls
from keyfence.policy.engine.counts cimport Admitted, Repeat
from keyfence.session.actor cimport Actor
from keyfence.resp.requests cimport RequestReader


cdef class Session(Actor):
    cdef int _until_timed
    cdef DecisionCache _known_cache
    cdef tuple _glance_values
    cdef object _glance_of
    cdef bint _missed
    cdef object _refused
    cdef object _case
    cdef long long _steps

    @cython.locals(
        reader=RequestReader, run_start=Py_ssize_t, run_end=Py_ssize_t, run="long long", cache=DecisionCache, argv=list,
        plain=bint, may_judge=bint, peeked=bint, may_open=bint,
    )
    cpdef object _read_requests(self)
    cpdef object _send(self, Py_ssize_t start, Py_ssize_t end, long long count)
    @cython.locals(cache=DecisionCache)
    cdef DecisionCache _cache(self)
    @cython.locals(reader=RequestReader, way=CommandForm, repeat=Repeat)
    cdef bint _admits_peeked(self, DecisionCache cache) except -1
    cdef bint _needs_its_own(self) except -1
    cdef object _count(self, Admitted admitted)
    @cython.locals(pending=PendingTtls)
    cdef object _keep_open(self, DecisionCache cache, CommandForm way, object key)
    @cython.locals(way=CommandForm, repeat=Repeat)
    cdef bint _admits_cached(self, DecisionCache cache, list argv) except -1
    cdef bint _may_be_whole(self, DecisionCache cache, bytes name) except -1
    @cython.locals(
        reader=RequestReader, start=Py_ssize_t, end=Py_ssize_t, argv=list, count=Py_ssize_t, peeked=bint, is_here=bint,
    )
    cdef bint _whole_transaction(self, DecisionCache cache) except -1
    @cython.locals(reader=RequestReader, start=Py_ssize_t, argv=list, count=Py_ssize_t, name=bytes)
    cdef bint _exec_is_here(self) except -1
    cdef CommandForm _timed(self, DecisionCache cache, list argv)
    cdef object _refuse_alike(self, DecisionCache cache, Repeat repeat, list argv)
    @cython.locals(missed=bint)
    cdef bint _admits_as_plain(self, list argv) except -1
    cdef bint _fits(self, object judge, object touches, Py_ssize_t size) except -1


cdef bint _is_named(bytes name, bytes wanted) except -1
cdef object _special(object name)
