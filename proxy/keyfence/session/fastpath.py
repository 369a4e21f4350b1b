# cython: annotation_typing=False
"""The fast path: requests that the decision cache admits join a run, which is sent upstream as one piece.

Rule: one entry and one exit. `FastPath.read` takes in requests for as long as the decision cache admits them,
and says in one outcome what comes then. It never refuses by itself: a refusal that the cache holds is handed
to the session, which sends it.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import MANY
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import GIVES, SETTLES
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.engine.decision_cache import ELSEWHERE, DecisionCache
from keyfence.policy.engine.forms import Call, KeyKind, Lookup
from keyfence.policy.engine.pending import PendingTtls
from keyfence.resp.requests import PLACES, RequestReader
from keyfence.session.conversation.executor import Executor
from keyfence.session.conversation.routing import BLOCKING, FIXED_SHAPE, SCRIPTS, SHAREABLE
from keyfence.session.handlers.table import HANDLERS

from .comparison import Comparison

# The commands that the cache may admit: each gives one reply, on any connection …
PLAIN = SHAREABLE - {name.decode() for name in HANDLERS}
# … or on one that the session chooses.
KNOWN = PLAIN | SCRIPTS | BLOCKING

# The cache takes less than 0.1 µs for each argument. A request with more arguments is evaluated in turns.
MOST_ARGUMENTS = 16 * MANY

# Measuring the time costs a tenth of a decision, so only one decision in this many is timed.
TIMED_EACH = 64

# A request with more arguments is evaluated in steps, because each argument may be a violation.
AT_ONCE = 250

# How commands with several keys, a script, a pattern or a channel are sent (`Call.way`): on any connection,
# on the client's own because they may block or run a script, or on any although they run a script.
_AS_PLAIN, _BLOCKS, _RUNS_SCRIPT, _TRUSTED = 1, 2, 3, 4

_PLACES = PLACES  # as C integers, where this runs compiled
_GIVES, _SETTLES = GIVES, SETTLES

# What `FastPath.read` has found (`Outcome.kind`).
NOTHING = 0  # no further request is complete, or the client's turn is over
EMPTY = 1  # `*0`, `*-1`, a blank line: it is no request
EVALUATE = 2  # the cache does not know what to do
REFUSED = 3  # the cache holds the refusal
LEAVES = 4  # the cache admits the request, but on the client's dedicated connection
_ADMITTED = 5  # within the fast path: the request joins the run
_NOTHING, _EMPTY, _EVALUATE, _REFUSED, _LEAVES = NOTHING, EMPTY, EVALUATE, REFUSED, LEAVES

_UNREAD: list[bytes] = []


class Outcome:
    """What `FastPath.read` has found. The next call changes it."""

    def __init__(self) -> None:
        self.kind = NOTHING
        self.argv = _UNREAD  # EVALUATE: the request
        self.lookup: Lookup | None = None  # EVALUATE: the cache's answer; None: it was not asked
        self.refusal = b""  # REFUSED
        self.call: Call | None = None  # LEAVES: the answer that admits the request


class FastPath:
    """One session's use of the decision cache, and the run of requests that the cache has admitted."""

    def __init__(self) -> None:
        self.cache: DecisionCache | None = None
        self._values: Values = ()  # the caller's values, under the cache's policy
        self._authorizer: Authorizer | None = None  # the owner of the cache
        self._pending: PendingTtls | None = None  # its table of keys to ask Redis about
        # While there is a candidate policy: the client as it sees it, its cache for the client's service, and
        # the counter of the violations of the request that was just admitted or refused.
        self._comparison: Comparison | None = None
        self._beside: DecisionCache | None = None
        self._counted: ViolationCounter | None = None
        # The run: its place in the reader's buffer, and the number of its requests.
        self.start = 0
        self.end = 0
        self.count = 0
        self._outcome = Outcome()
        self._needed_own = False  # a request of the current read needed the dedicated connection
        self._until_timed = 0
        self._started = 0.0  # when the current decision began; 0.0: it is not timed

    def current_cache(self, session: Executor) -> DecisionCache | None:
        """The cache for the next request. None if every command is evaluated, because a recorder needs to see
        it, or because the policy lacks the service under whose name the cache would count."""
        if session.observer.recorder is not None:
            return None
        authorizer = session.current_authorizer()
        cache = self.cache
        if cache is None or self._authorizer is not authorizer or not cache.validity.is_current:
            asker = session.asker()
            known = authorizer.policy.services[asker.service] == session.service
            self._values = asker.values
            cache = self.cache = authorizer.cache(asker.service, KNOWN) if known else None
            self._authorizer = authorizer
            self._pending = authorizer.pending
            comparison = self.comparison(session, authorizer)
            self._beside = comparison.cache(KNOWN) if comparison is not None else None
            self._counted = None
        return cache

    def comparison(self, session: Executor, authorizer: Authorizer) -> Comparison | None:
        """How a candidate policy beside `authorizer` sees the client; None without a candidate."""
        candidate = authorizer.candidate
        if candidate is None:
            self._comparison = None
        elif self._comparison is None or not self._comparison.is_of(
            authorizer, session.service, session.caller
        ):
            self._comparison = Comparison(authorizer, candidate, session.service, session.caller)
        return self._comparison

    def read(self, session: Executor, cache: DecisionCache | None) -> Outcome:
        """Add every request that `cache` (from `current_cache`) admits to the run. Returns what comes then.
        Raises ProtocolError."""
        outcome = self._outcome
        if cache is None or session.partly_sent:
            outcome.kind = self._next(session, outcome)
        else:
            outcome.kind = self._read(session, cache, outcome)
        return outcome

    def _read(self, session: Executor, cache: DecisionCache, outcome: Outcome) -> int:
        """Returns the kind of the outcome, whose other parts it sets."""
        reader = session.reader
        largest = session.largest_request()
        beside = self._beside
        self._needed_own = False
        while True:
            peeked = reader.peek()
            kind = _EVALUATE
            if peeked and self._until_timed > 0 and reader.end - reader.start <= largest:
                lookup = cache.find_unread(reader.data(), _PLACES, reader.count, self._values)
                kind = self._known(session, cache, lookup, None)
            if kind != _EVALUATE:
                self._until_timed -= 1
                if beside is not None:
                    self._compare_unread(session, beside)
            else:
                argv = reader.reparse() if peeked else reader.next()
                if not argv:
                    return _NOTHING if argv is None else _EMPTY
                self._begin(session, outcome, argv)
                if reader.end - reader.start > largest or len(argv) > MOST_ARGUMENTS:
                    return _EVALUATE
                if beside is not None and len(argv) > MANY:
                    return _EVALUATE  # the candidate may have to evaluate it in turns
                if len(argv) == 1 and _begins_or_ends(session, argv[0]):
                    return _EVALUATE
                outcome.lookup = cache.find(argv, self._values)
                kind = self._known(session, cache, outcome.lookup, argv)
                if kind == _EVALUATE:
                    return kind
                self.end_timing(session)
                if beside is not None:
                    self.compare(session, argv)
                if kind == _ADMITTED and session.wants_turn:
                    self.join(reader)
                    return _NOTHING
            if kind != _ADMITTED:
                return kind
            self.join(reader)

    def _next(self, session: Executor, outcome: Outcome) -> int:
        """The same where each request is evaluated."""
        argv = session.reader.next()
        if not argv:
            return _NOTHING if argv is None else _EMPTY
        self._begin(session, outcome, argv)
        return _EVALUATE

    def _begin(self, session: Executor, outcome: Outcome, argv: list[bytes]) -> None:
        """Nothing is known yet of the request in hand. The decision about it may be timed."""
        outcome.argv = argv
        outcome.lookup = None
        self._started = 0.0
        self._until_timed -= 1
        if self._until_timed < 0:
            self._begin_timing(session)

    def join(self, reader: RequestReader) -> None:
        """Add the current request, which directly follows the run, to the run."""
        if self.count == 0:
            self.start = reader.start
        self.end = reader.end
        self.count += 1

    def send_run(self, session: Executor) -> None:
        """Send the run upstream."""
        if self.count:
            count, self.count = self.count, 0
            session.send(session.reader.span(self.start, self.end), count)

    def let_go(self) -> None:
        """Keep nothing of the request that was read last."""
        self._outcome.argv = _UNREAD

    def forget(self) -> None:
        """Forget the cache and its policy: the client is another service now, or another policy is in
        force."""
        self.cache = self._beside = None
        self._authorizer = self._pending = self._comparison = self._counted = None
        self._outcome.lookup = self._outcome.call = None

    # -- one request

    def _known(
        self, session: Executor, cache: DecisionCache, lookup: Lookup | None, argv: list[bytes] | None
    ) -> int:
        """The kind of outcome that the current request has; `lookup` is what the cache knows of it. `argv`
        None: only the places of the request's arguments are known."""
        if lookup is None:
            return _EVALUATE
        decision, call = lookup.decision, lookup.call
        if decision is None and call is None:
            return _EVALUATE
        if cache.has_slots and not self._shares_slot(session, cache, decision, argv):
            self._outcome.lookup = ELSEWHERE
            return _EVALUATE
        if decision is None:
            return _EVALUATE if call is None else self._takes(session, lookup, call, argv)
        outcome = decision.outcome
        if not lookup.is_admitted:
            key = b"" if decision.is_covered else _argument(session.reader, argv, decision.form.index)
            counter = decision.counter(lookup.faults, key)
            if counter is None and argv is not None:
                counter = self._counter_by_shape(session, decision, lookup, argv)
            if counter is None:
                return _EVALUATE
            if counter.refusal is not None:
                self._outcome.lookup = None  # it has a counter already
                key = key or _argument(session.reader, argv, decision.form.index)
                return _REFUSED if self._refuses(session, decision, counter, key) else _EVALUATE
            counter.times += 1
            outcome = counter.outcome
            self._counted = counter
        self.counted(session, decision)
        if outcome and self._leaves_open(outcome):
            key = _argument(session.reader, argv, decision.form.index)
            self._keep_open(session, cache, decision, outcome, key)
        return _ADMITTED

    def _shares_slot(
        self,
        session: Executor,
        cache: DecisionCache,
        decision: KeyKind | None,
        argv: list[bytes] | None,
    ) -> bool:
        """Whether the current request's keys are in the hash slot of the open transaction's keys, if the
        policy of `cache` asks that of them. `decision` is what `cache` knows of a single key; None: it has
        just found several, or a script."""
        transaction = session.transaction
        if transaction is None:
            return True
        queued = transaction.evaluated
        if cache is self._beside and self._comparison is not None:
            queued = self._comparison.own(queued)
        if decision is None:
            return cache.call_shares_slot(queued)
        index = decision.form.index
        if argv is None:
            data = session.reader.data()
            return cache.shares_slot(decision, data, _PLACES[2 * index], _PLACES[2 * index + 1], queued)
        key = argv[index]
        return cache.shares_slot(decision, key, 0, len(key), queued)

    def _takes(self, session: Executor, lookup: Lookup, call: Call, argv: list[bytes] | None) -> int:
        """Take a request with several keys, a script, a pattern or a channel, which the cache admits. Returns
        the kind of its outcome."""
        if lookup.opens is not None:
            self._keep_call(session, lookup.opens, argv)
        if not call.way:
            call.way = _way(call)
        if call.way != _AS_PLAIN:
            fits = call.way == _TRUSTED or self._takes_own(session)
            if call.way != _BLOCKS:
                session.mark_shapeable(fits)
            if not fits:
                self._outcome.call = call
                return _LEAVES
        self.counted(session, call)
        return _ADMITTED

    def _takes_own(self, session: Executor) -> bool:
        """Whether the client uses its dedicated connection, which a request needs. The clock is read once for
        all such requests of a read."""
        if not self._needed_own:
            self._needed_own = True
            session.route.needs_own()
        return not session.route.is_shared

    def _counter_by_shape(
        self, session: Executor, decision: KeyKind, lookup: Lookup, argv: list[bytes]
    ) -> ViolationCounter | None:
        """The counter for a key of no known skeleton, by the key's shape."""
        if not decision.by_shape or lookup.faults != 0:
            return None
        shape = session.observer.final_shape(argv[decision.form.index])
        counter = decision.by_shape.get(shape) if shape is not None else None
        if counter is None or not counter.live:
            return None
        cache = self.cache
        if cache is not None and cache.may_count(lookup, argv):
            cache.remember(lookup, argv, counter)  # by its skeleton, if this key comes again
        return counter

    def _refuses(self, session: Executor, decision: KeyKind, counter: ViolationCounter, key: bytes) -> bool:
        """Take the refusal that the counter holds for a request with this key, unless break-glass is open."""
        prepared = counter.refusal
        if prepared is None or session.current_authorizer().glass:
            return False
        try:
            reply = prepared.reply(key)
        except Exception:
            return False  # the evaluator will meet the same fault, and report it
        counter.times += 1
        self._count_evidence(session, decision.further)
        self._counted = counter
        self._outcome.refusal = reply
        return True

    def counted(self, session: Executor, admitted: Admitted) -> None:
        """Count one more admitted command."""
        admitted.times += 1
        if not admitted.is_gathered:
            session.observer.gather_from(session.service, admitted)
        session.route.begins_work()

    def _keep_call(
        self, session: Executor, opens: list[tuple[KeyKind, int]], argv: list[bytes] | None
    ) -> None:
        """Record what such a request leaves open for these keys."""
        authorizer = session.current_authorizer()
        pending = authorizer.pending
        if pending is None:
            return
        asker = session.asker()
        for kind, at in opens:
            if self._leaves_open(kind.outcome):
                key = _argument(session.reader, argv, at)
                pending.keep_key_open(authorizer, asker, kind, at, key)

    def _count_evidence(self, session: Executor, further: Admitted) -> None:
        further.times += 1
        if not further.is_gathered:
            session.observer.gather_from(session.service, further)

    def _leaves_open(self, outcome: int) -> bool:
        """Whether there is something to record for a command with this outcome. No command settles a key's
        lifetime while none is open."""
        pending = self._pending
        return pending is not None and (outcome not in (_GIVES, _SETTLES) or pending.has_keys())

    def _keep_open(
        self, session: Executor, cache: DecisionCache, decision: KeyKind, outcome: int, key: bytes
    ) -> None:
        """Record what an admitted command leaves open."""
        pending, authorizer = self._pending, self._authorizer
        if pending is None or authorizer is None:
            return
        pending.keep_open(authorizer, session.asker(), cache, decision, outcome, key)

    # -- beside a candidate policy

    def _compare_unread(self, session: Executor, beside: DecisionCache) -> None:
        """Compare what the two policies say of an admitted or refused request, of which no object has been
        made."""
        reader, comparison = session.reader, self._comparison
        has_slots = beside.has_slots and session.transaction is not None
        if self._counted is None and comparison is not None and beside.validity.is_current and not has_slots:
            lookup = beside.find_unread(reader.data(), _PLACES, reader.count, comparison.values)
            if lookup is not None and lookup.is_admitted:
                self._compared_as(session, comparison, lookup)
                return
        argv = reader.reparse()
        if argv:
            self.compare(session, argv)

    def compare(self, session: Executor, argv: list[bytes]) -> None:
        """Compare what the two policies say of a request that the cache has admitted or refused."""
        comparison, counted = self._comparison, self._counted
        self._counted = None
        if comparison is None or self._beside is None:
            return
        if not self._beside.validity.is_current:
            self._beside = comparison.cache(KNOWN)
        beside = self._beside
        lookup = beside.find(argv, comparison.values)
        decision, kind = lookup.decision, None
        if (
            (decision is not None or lookup.call is not None)
            and beside.has_slots
            and not self._shares_slot(session, beside, decision, argv)
        ):
            lookup, decision = ELSEWHERE, None
        if decision is not None and not lookup.is_admitted:
            kind = decision.counter(lookup.faults, argv[decision.form.index])
        is_known = lookup.is_admitted or kind is not None
        if is_known and ((counted is None and kind is None) or comparison.counts(counted, kind)):
            self._compared_as(session, comparison, lookup)
            return
        comparison.compare_cached(session.asker(), argv, counted, beside, lookup, kind)

    def compare_transaction(self, session: Executor, name: bytes) -> None:
        """The same for MULTI or EXEC, which the policy in force admits."""
        comparison, beside = self._comparison, self._beside
        if comparison is None or beside is None:
            return
        if beside.validity.is_current and beside.admits_transactions:
            self._compared(session, comparison, beside.multi if name == b"MULTI" else beside.execution)
        else:
            self._counted = None
            self.compare(session, [name])

    def _compared_as(self, session: Executor, comparison: Comparison, lookup: Lookup) -> None:
        if lookup.call is not None:
            self._compared(session, comparison, lookup.call)
        elif lookup.decision is not None:
            self._compared(session, comparison, lookup.decision)

    def _compared(self, session: Executor, comparison: Comparison, admitted: Admitted) -> None:
        """Count one more compared request of this kind, of which nothing more needs to be reported."""
        admitted.times += 1
        if not admitted.is_gathered:
            comparison.observer.gather_from(session.service, admitted)

    # -- how long decisions take

    def _begin_timing(self, session: Executor) -> None:
        """Time the decision that begins: a session's first one, and then each 64th. The turn's time is
        looked at as rarely."""
        self._until_timed = TIMED_EACH - 1
        self._started = perf_counter()
        if session.turn_is_over():
            session.wants_turn = True

    def take_timing(self) -> float:
        """Return when the current decision began; 0.0: it is not timed. The caller measures it from now
        on."""
        started, self._started = self._started, 0.0
        return started

    def end_timing(self, session: Executor) -> None:
        """Report the time of the current decision, which was made, if it is timed."""
        if self._started:
            session.observer.decided(session.service, perf_counter() - self._started)
            self._started = 0.0


def _way(call: Call) -> int:
    """How such commands are sent."""
    if call.name in PLAIN:
        return _AS_PLAIN
    if call.name in FIXED_SHAPE:
        return _BLOCKS
    return _TRUSTED if call.is_trusted else _RUNS_SCRIPT


def _argument(reader: RequestReader, argv: list[bytes] | None, number: int) -> bytes:
    """One argument of the current request. `argv` None: only the places of its arguments are known."""
    if argv is not None:
        return argv[number]
    return reader.span(_PLACES[2 * number], _PLACES[2 * number + 1])


def _begins_or_ends(session: Executor, name: bytes) -> bool:
    """Whether a command without arguments opens a transaction, or runs the open one; not for the cache."""
    return is_named(name, b"MULTI") if session.transaction is None else is_named(name, b"EXEC")


def is_named(name: bytes, wanted: bytes) -> bool:
    """Whether a command's name surely is this one, in upper or lower case: as `arguments.fold`, but in C."""
    return len(name) == len(wanted) and name.upper() == wanted
