# cython: annotation_typing=False
"""The fast path: requests that the decision cache admits join a run, which is sent upstream as one piece.

Rule: one entry and one exit. `FastPath.read` takes in requests for as long as the decision cache admits them,
and says in one outcome what comes then. It never refuses by itself: a refusal that the cache holds is handed
to the session, which sends it.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import MANY
from keyfence.policy.compiled.tenants import Caller, Values
from keyfence.policy.compiled.ttl import GIVES, SETTLES
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.engine.decision_cache import ELSEWHERE, DecisionCache
from keyfence.policy.engine.forms import COMMAND, Call, KeyKind, Lookup, new_lookup
from keyfence.policy.engine.pending import PendingTtls
from keyfence.resp.requests import PLACES, RequestReader
from keyfence.session.conversation.conversation import Conversation
from keyfence.session.conversation.known_client import KnownClient
from keyfence.session.conversation.routing import BLOCKING, FIXED_SHAPE, OF_ALL_NODES, SCRIPTS, SHAREABLE
from keyfence.session.handlers.table import HANDLERS

from .comparison import Comparison

# The commands that the cache may admit: each gives one reply, on any connection …
PLAIN = SHAREABLE - {name.decode() for name in HANDLERS}
# … or on one that the session chooses.
KNOWN = PLAIN | SCRIPTS | BLOCKING
_KNOWN_OF_CLUSTER = KNOWN - OF_ALL_NODES  # if a whole cluster is behind one address

# The cache takes less than 0.1 µs for each argument. A request with more arguments is evaluated in turns.
MOST_ARGUMENTS = 16 * MANY

# Measuring the time costs a tenth of a request's authorization, so only one in this many is timed.
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
    """What `FastPath.read` has found. The next call changes it, whichever session's it is: a session is done
    with it before another one reads."""

    def __init__(self) -> None:
        self.kind = NOTHING
        self.argv = _UNREAD  # EVALUATE: the request
        self.lookup: Lookup | None = None  # EVALUATE: the cache's answer; None: it was not asked
        self.refusal = b""  # REFUSED
        self.call: Call | None = None  # LEAVES: the answer that admits the request


_OUTCOME = Outcome()


class FastPath:
    """One session's use of the decision cache, and the run of requests that the cache has admitted."""

    def __init__(self, client: KnownClient, conversation: Conversation) -> None:
        self._client = client
        self._conversation = conversation
        self.cache: DecisionCache | None = None
        self._values: Values = ()  # the caller's values, under the cache's policy
        self._authorizer: Authorizer | None = None  # the owner of the cache
        self._caller: Caller | None = None  # whom the cache is for; each login makes another one
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
        self._needed_own = False  # a request of the current read needed the dedicated connection
        self._until_timed = 0
        self._started = 0.0  # when the current request's authorization began; 0.0: it is not timed

    def current_cache(self) -> DecisionCache | None:
        """The cache for the next request. None if every command is evaluated, because a recorder needs to see
        it, or because the policy lacks the service under whose name the cache would count."""
        if self._client.observer.recorder is not None:
            return None
        authorizer = self._client.current_authorizer()
        cache = self.cache
        if (
            cache is None
            or self._authorizer is not authorizer
            or self._caller is not self._client.caller
            or not cache.validity.is_current
        ):
            asker = self._client.asker()
            self._caller = self._client.caller
            known = authorizer.policy.services[asker.service] == self._client.service
            self._values = asker.values
            may_admit = _KNOWN_OF_CLUSTER if self._client.context.roams else KNOWN
            cache = self.cache = authorizer.cache(asker.service, may_admit) if known else None
            self._authorizer = authorizer
            self._pending = authorizer.pending
            comparison = self.comparison(authorizer)
            self._beside = comparison.cache(KNOWN) if comparison is not None else None
            self._counted = None
        return cache

    def comparison(self, authorizer: Authorizer) -> Comparison | None:
        """How a candidate policy beside `authorizer` sees the client; None without a candidate."""
        candidate = authorizer.candidate
        if candidate is None:
            self._comparison = None
        elif self._comparison is None or not self._comparison.is_of(
            authorizer, self._client.service, self._client.caller
        ):
            self._comparison = Comparison(authorizer, candidate, self._client.service, self._client.caller)
        return self._comparison

    def read(self, cache: DecisionCache | None) -> Outcome:
        """Add every request that `cache` (from `current_cache`) admits to the run. Returns what comes then.
        Raises ProtocolError."""
        outcome = _OUTCOME
        if cache is None or self._conversation.partly_sent:
            outcome.kind = self._next(outcome)
        else:
            outcome.kind = self._read(cache, outcome)
        return outcome

    def _read(self, cache: DecisionCache, outcome: Outcome) -> int:
        """Returns the kind of the outcome, whose other parts it sets."""
        conversation = self._conversation
        reader, largest = conversation.reader, conversation.largest_request()
        beside = self._beside
        self._needed_own = False
        while True:
            peeked = reader.peek()
            kind = _EVALUATE
            lookup = None
            if peeked and self._until_timed > 0 and reader.end - reader.start <= largest:
                lookup = cache.find_unread(reader.data(), _PLACES, reader.count, self._values)
                kind = self._known(cache, lookup, None)
            if kind != _EVALUATE:
                self._until_timed -= 1
                if beside is not None:
                    self._compare_unread(beside)
            else:
                argv = reader.reparse() if peeked else reader.next()
                if not argv:
                    return _NOTHING if argv is None else _EMPTY
                self._begin(outcome, argv)
                if reader.end - reader.start > largest or len(argv) > MOST_ARGUMENTS:
                    return _EVALUATE
                if beside is not None and len(argv) > MANY:
                    return _EVALUATE  # the candidate may have to evaluate it in turns
                if len(argv) == 1 and self._begins_or_ends(argv[0]):
                    return _EVALUATE
                outcome.lookup = cache.find(argv, self._values, lookup)
                kind = self._known(cache, outcome.lookup, argv)
                if kind == _EVALUATE:
                    return kind
                self.end_timing()
                if beside is not None:
                    self.compare(argv)
                if kind == _ADMITTED and conversation.wants_turn:
                    self.join(reader)
                    return _NOTHING
            if kind != _ADMITTED:
                return kind
            self.join(reader)

    def _next(self, outcome: Outcome) -> int:
        """The same where each request is evaluated."""
        argv = self._conversation.reader.next()
        if not argv:
            return _NOTHING if argv is None else _EMPTY
        self._begin(outcome, argv)
        return _EVALUATE

    def _begin(self, outcome: Outcome, argv: list[bytes]) -> None:
        """Nothing is known yet of the request in hand. Its authorization may be timed."""
        outcome.argv = argv
        outcome.lookup = None
        self._started = 0.0
        self._until_timed -= 1
        if self._until_timed < 0:
            self._begin_timing()

    def join(self, reader: RequestReader) -> None:
        """Add the current request, which directly follows the run, to the run."""
        if self.count == 0:
            self.start = reader.start
        self.end = reader.end
        self.count += 1

    def send_run(self) -> None:
        """Send the run upstream."""
        if self.count:
            count, self.count = self.count, 0
            conversation = self._conversation
            conversation.send(conversation.reader.span(self.start, self.end), count)

    def let_go(self) -> None:
        """Keep nothing of the request that was read last."""
        _OUTCOME.argv = _UNREAD

    def forget(self) -> None:
        """Forget the cache and its policy: another one is in force."""
        self.cache = self._beside = None
        self._authorizer = self._pending = self._comparison = self._counted = None
        _OUTCOME.lookup = _OUTCOME.call = None

    # -- one request

    def _known(self, cache: DecisionCache, lookup: Lookup | None, argv: list[bytes] | None) -> int:
        """The kind of outcome that the current request has; `lookup` is what the cache knows of it. `argv`
        None: only the places of the request's arguments are known."""
        if lookup is None:
            return _EVALUATE
        decision, call = lookup.decision, lookup.call
        if decision is None and call is None:
            return _EVALUATE
        if cache.has_slots and not self._shares_slot(cache, decision, argv):
            _OUTCOME.lookup = ELSEWHERE
            return _EVALUATE
        if decision is None:
            return _EVALUATE if call is None else self._takes(lookup, call, argv)
        outcome = decision.outcome
        if not lookup.is_admitted:
            key = (
                b""
                if decision.is_covered
                else _argument(self._conversation.reader, argv, decision.form.index)
            )
            counter = decision.counter(lookup.faults, key)
            if counter is None and argv is not None:
                counter = self._counter_by_shape(decision, lookup, argv)
            if counter is None:
                return _EVALUATE
            if counter.refusal is not None:
                key = key or _argument(self._conversation.reader, argv, decision.form.index)
                if self._refuses(decision, counter, key):
                    return _REFUSED
                # It has a counter already, so only the target of its key is of use.
                _OUTCOME.lookup = new_lookup(None, COMMAND, -1, None, None, lookup.form, lookup.number)
                return _EVALUATE
            counter.times += 1
            outcome = counter.outcome
            self._counted = counter
        self.counted(decision)
        if outcome and self._leaves_open(outcome):
            key = _argument(self._conversation.reader, argv, decision.form.index)
            self._keep_open(cache, decision, outcome, key)
        return _ADMITTED

    def _begins_or_ends(self, name: bytes) -> bool:
        """Whether a command without arguments opens a transaction, or runs the open one; not for the
        cache."""
        return is_named(name, b"MULTI" if self._conversation.transaction is None else b"EXEC")

    def _shares_slot(
        self,
        cache: DecisionCache,
        decision: KeyKind | None,
        argv: list[bytes] | None,
    ) -> bool:
        """Whether the current request's keys are in the hash slot of the open transaction's keys, if the
        policy of `cache` asks that of them. `decision` is what `cache` knows of a single key; None: it has
        just found several, or a script."""
        transaction = self._conversation.transaction
        if transaction is None:
            return True
        queued = transaction.evaluated
        if cache is self._beside and self._comparison is not None:
            queued = self._comparison.own(queued)
        if decision is None:
            return cache.call_shares_slot(queued)
        index = decision.form.index
        if argv is None:
            data = self._conversation.reader.data()
            return cache.shares_slot(decision, data, _PLACES[2 * index], _PLACES[2 * index + 1], queued)
        key = argv[index]
        return cache.shares_slot(decision, key, 0, len(key), queued)

    def _takes(self, lookup: Lookup, call: Call, argv: list[bytes] | None) -> int:
        """Take a request with several keys, a script, a pattern or a channel, which the cache admits. Returns
        the kind of its outcome."""
        if lookup.opens is not None:
            self._keep_call(lookup.opens, argv)
        if not call.way:
            call.way = _way(call)
        if call.way != _AS_PLAIN:
            fits = call.way == _TRUSTED or self._takes_own()
            if call.way != _BLOCKS:
                self._conversation.mark_shapeable(fits)
            if not fits:
                _OUTCOME.call = call
                return _LEAVES
        self.counted(call)
        return _ADMITTED

    def _takes_own(self) -> bool:
        """Whether the client uses its dedicated connection, which a request needs. The clock is read once for
        all such requests of a read."""
        if not self._needed_own:
            self._needed_own = True
            self._conversation.route.needs_own()
        return not self._conversation.route.is_shared

    def _counter_by_shape(
        self, decision: KeyKind, lookup: Lookup, argv: list[bytes]
    ) -> ViolationCounter | None:
        """The counter for a key of no known skeleton, by the key's shape."""
        if not decision.by_shape or lookup.faults != 0:
            return None
        shape = self._client.observer.final_shape(argv[decision.form.index])
        counter = decision.by_shape.get(shape) if shape is not None else None
        if counter is None or not counter.live:
            return None
        cache = self.cache
        if cache is not None and cache.may_count(lookup, argv):
            cache.remember(lookup, argv, counter)  # by its skeleton, if this key comes again
        return counter

    def _refuses(self, decision: KeyKind, counter: ViolationCounter, key: bytes) -> bool:
        """Take the refusal that the counter holds for a request with this key, unless break-glass is open."""
        prepared = counter.refusal
        if prepared is None or self._client.current_authorizer().glass:
            return False
        try:
            reply = prepared.reply(key)
        except Exception:
            return False  # the evaluator will meet the same fault, and report it
        counter.times += 1
        self._count(decision.further)
        self._counted = counter
        _OUTCOME.refusal = reply
        return True

    def counted(self, admitted: Admitted) -> None:
        """Count one more admitted command."""
        self._count(admitted)
        self._conversation.route.begins_work()

    def _count(self, admitted: Admitted) -> None:
        """Count one more command of this kind, and what it is evidence of."""
        admitted.times += 1
        if not admitted.is_gathered:
            self._client.observer.gather_from(self._client.service, admitted)

    def _keep_call(self, opens: list[tuple[KeyKind, int]], argv: list[bytes] | None) -> None:
        """Record what such a request leaves open for these keys."""
        authorizer = self._client.current_authorizer()
        pending = authorizer.pending
        if pending is None:
            return
        asker = self._client.asker()
        for kind, at in opens:
            if self._leaves_open(kind.outcome):
                key = _argument(self._conversation.reader, argv, at)
                pending.keep_key_open(authorizer, asker, kind, at, key)

    def _leaves_open(self, outcome: int) -> bool:
        """Whether there is something to record for a command with this outcome. No command settles a key's
        lifetime while none is open."""
        pending = self._pending
        return pending is not None and (outcome not in (_GIVES, _SETTLES) or pending.has_keys())

    def _keep_open(self, cache: DecisionCache, decision: KeyKind, outcome: int, key: bytes) -> None:
        """Record what an admitted command leaves open."""
        pending, authorizer = self._pending, self._authorizer
        if pending is None or authorizer is None:
            return
        pending.keep_open(authorizer, self._client.asker(), cache, decision, outcome, key)

    # -- beside a candidate policy

    def _compare_unread(self, beside: DecisionCache) -> None:
        """Compare what the two policies say of an admitted or refused request, of which no object has been
        made."""
        reader, comparison = self._conversation.reader, self._comparison
        has_slots = beside.has_slots and self._conversation.transaction is not None
        if self._counted is None and comparison is not None and beside.validity.is_current and not has_slots:
            lookup = beside.find_unread(reader.data(), _PLACES, reader.count, comparison.values)
            if lookup is not None and lookup.is_admitted:
                self._compared_as(comparison, lookup)
                return
        argv = reader.reparse()
        if argv:
            self.compare(argv)

    def compare(self, argv: list[bytes]) -> None:
        """Compare what the two policies say of a request that the cache has admitted or refused."""
        comparison, counted = self._comparison, self._counted
        self._counted = None
        if comparison is None or self._beside is None:
            return
        if not self._beside.validity.is_current:
            self._beside = comparison.cache(KNOWN)
        beside, transaction = self._beside, self._conversation.transaction
        lookup = beside.find(argv, comparison.values)
        decision, kind = lookup.decision, None
        if (
            (decision is not None or lookup.call is not None)
            and beside.has_slots
            and not self._shares_slot(beside, decision, argv)
        ):
            lookup, decision = ELSEWHERE, None
        if decision is not None and not lookup.is_admitted:
            kind = decision.counter(lookup.faults, argv[decision.form.index])
        is_known = lookup.is_admitted or kind is not None
        if is_known and ((counted is None and kind is None) or comparison.counts(counted, kind)):
            self._compared_as(comparison, lookup)
            if transaction is not None:
                comparison.queued(transaction.evaluated, argv)
            return
        comparison.compare_cached(self._client.asker(), argv, counted, beside, lookup, kind)

    def compare_transaction(self, name: bytes) -> None:
        """The same for MULTI or EXEC, which the policy in force admits."""
        comparison, beside = self._comparison, self._beside
        if comparison is None or beside is None:
            return
        if beside.validity.is_current and beside.admits_transactions:
            self._compared(comparison, beside.multi if name == b"MULTI" else beside.execution)
        else:
            self._counted = None
            self.compare([name])

    def _compared_as(self, comparison: Comparison, lookup: Lookup) -> None:
        if lookup.call is not None:
            self._compared(comparison, lookup.call)
        elif lookup.decision is not None:
            self._compared(comparison, lookup.decision)

    def _compared(self, comparison: Comparison, admitted: Admitted) -> None:
        """Count one more compared request of this kind, of which nothing more needs to be reported."""
        admitted.times += 1
        if not admitted.is_gathered:
            comparison.observer.gather_from(self._client.service, admitted)

    # -- how long it takes to authorize a request

    def _begin_timing(self) -> None:
        """Time the authorization that begins: a session's first one, and then each 64th. The turn's time is
        looked at as rarely."""
        self._until_timed = TIMED_EACH - 1
        self._started = perf_counter()
        self._conversation.yields()

    def take_timing(self) -> float:
        """Return when the current authorization began; 0.0: it is not timed. The caller measures it from now
        on."""
        started, self._started = self._started, 0.0
        return started

    def end_timing(self) -> None:
        """Report the time of the current authorization, which has ended, if it is timed."""
        if self._started:
            self._client.observer.authorized(self._client.service, perf_counter() - self._started)
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


def is_named(name: bytes, wanted: bytes) -> bool:
    """Whether a command's name surely is this one, in upper or lower case: as `arguments.fold`, but in C."""
    return len(name) == len(wanted) and name.upper() == wanted
