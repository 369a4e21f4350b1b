# cython: annotation_typing=False
"""The fast path: requests that the decision cache admits join a run, which is sent upstream as one piece.

Rule: one entry and one exit. `FastPath.read` takes in requests for as long as the decision cache admits them,
and returns the first one that needs an evaluation. It never refuses by itself: a refusal that the cache holds
is handed to the session, which sends it.
"""

from __future__ import annotations

from time import perf_counter

from keyfence.commands.model import MANY
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import Admitted, ViolationCounter
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.forms import CachedDecision, Lookup
from keyfence.resp.limits import ProtocolError
from keyfence.resp.requests import RequestReader
from keyfence.session.conversation.executor import Decided, Executor
from keyfence.session.conversation.routing import SHAREABLE
from keyfence.session.handlers.table import HANDLERS

# The commands that the cache may admit: each gives one reply, on whichever connection.
PLAIN = SHAREABLE - {name.decode() for name in HANDLERS}

# The cache takes less than 0.1 µs for each argument. A request with more arguments is evaluated in turns.
MOST_ARGUMENTS = 16 * MANY

# Taking the time costs a tenth of a decision, so one decision in this many is timed.
TIMED_EACH = 64


class FastPath:
    """The decision cache as one session uses it, and the run of requests that it has admitted."""

    def __init__(self) -> None:
        self.cache: DecisionCache | None = None
        self._values: Values = ()  # the client's, by the cache's policy
        self._authorizer: Authorizer | None = None  # whose cache it is
        # The run: where it lies in the reader's buffer, and how many requests it has.
        self.start = 0
        self.end = 0
        self.count = 0
        # About the request that `read` has returned: what the cache knows of it (None: it was not asked), and
        # the refusal that the cache holds for requests like it.
        self.lookup: Lookup | None = None
        self._refused: Decided | None = None
        self._until_timed = 0
        self._started = 0.0  # when the decision in hand began; 0.0: it is not timed

    def current_cache(self, session: Executor) -> DecisionCache | None:
        """The cache for the next request. None where every command is evaluated: a recorder wants to see it,
        or the policy does not know the service, under whose name the cache counts."""
        if session.observer.recorder is not None:
            return None
        authorizer = session.current_authorizer()
        cache = self.cache
        if cache is None or self._authorizer is not authorizer or not cache.is_current:
            authorizer, number = session.authorizer_and_number()
            known = authorizer.policy.services[number] == session.service
            self._values = session.values
            cache = self.cache = authorizer.cache(number, PLAIN) if known else None
            self._authorizer = authorizer
        return cache

    def read(self, session: Executor, cache: DecisionCache | None) -> list[bytes] | None:
        """Add to the run every request that `cache` admits (`current_cache`). Returns the first one that it
        does not admit; None where no further request is complete. Raises ProtocolError."""
        reader = session.reader
        largest = session.largest_request()
        if session.partly_sent:
            cache = None
        while True:
            peeked = cache is not None and reader.peek()
            may_admit = peeked and self._until_timed > 0 and reader.end - reader.start <= largest
            if not may_admit or cache is None or not self._admits_peeked(session, cache):
                argv = reader.reparse() if peeked else reader.next()
                if not argv:
                    break
                self.lookup = None
                self._started = 0.0
                self._until_timed -= 1
                if self._until_timed < 0:
                    self._begin_timing()
                if cache is None or reader.end - reader.start > largest or len(argv) > MOST_ARGUMENTS:
                    break
                if not self._admits_parsed(session, cache, argv):
                    break
            self.join(reader)
        return argv

    def join(self, reader: RequestReader) -> None:
        """Add the request in hand to the run. It stands right behind the run."""
        if self.count == 0:
            self.start = reader.start
        self.end = reader.end
        self.count += 1

    def take_refusal(self) -> Decided | None:
        """The refusal that the cache holds for the request that `read` has returned last."""
        refused, self._refused = self._refused, None
        return refused

    def forget(self) -> None:
        """The client is another service from here on."""
        self.cache = None

    # -- one request

    def _admits_peeked(self, session: Executor, cache: DecisionCache) -> bool:
        """Whether the cache admits the request in hand, no part of which has been made an object."""
        reader = session.reader
        decision = cache.find_unread(
            reader.data(),
            reader.count,
            reader.name_at,
            reader.name_end,
            reader.key_at,
            reader.key_end,
            reader.options_at,
            reader.end,
            self._values,
        )
        if decision is None:
            return False
        outcome = decision.outcome
        if not decision.is_clean:
            counter = cache.counter_unread(decision, reader.data(), reader.key_at, reader.key_end)
            if counter is None:
                return False
            counter.times += 1
            outcome = counter.outcome
        self._until_timed -= 1
        self.counted(session, decision)
        if outcome:
            self._keep_open(session, cache, decision, outcome, reader.span(reader.key_at, reader.key_end))
        return True

    def _admits_parsed(self, session: Executor, cache: DecisionCache, argv: list[bytes]) -> bool:
        """Whether the cache admits a request: it goes upstream as it is, and gives one reply."""
        if len(argv) == 1 and session.transaction is not None and is_named(argv[0], b"EXEC"):
            return False
        lookup = self.lookup = cache.find(argv, self._values)
        decision = lookup.decision
        if decision is None:
            return False
        outcome = decision.outcome
        if not lookup.is_admitted:
            counter = cache.counter(lookup, argv)
            if counter is None:
                return False
            if counter.refusal is not None:
                self._refuse(session, cache, lookup, counter, argv)
                self.lookup = None  # the counter is there already
                return False
            counter.times += 1
            outcome = counter.outcome
        if self._started:
            self.end_timing(session)
        form = decision.form
        self.counted(session, decision)
        if lookup.others is not None:
            self._count_others(session, lookup.others)
        if outcome:
            for at in range(form.index, len(argv) if form.has_more else form.index + 1):
                self._keep_open(session, cache, decision, outcome, argv[at])
        return True

    def _refuse(
        self,
        session: Executor,
        cache: DecisionCache,
        lookup: Lookup,
        counter: ViolationCounter,
        argv: list[bytes],
    ) -> None:
        """Find the refusal that the cache holds for a request, unless break-glass is open."""
        if session.current_authorizer().glass or lookup.decision is None:
            return
        reply = cache.refusal(lookup, counter, argv)
        if reply:
            counter.times += 1
            self._refused = Decided(None, reply, lookup.decision.form.name, True)
            self.end_timing(session)

    def counted(self, session: Executor, admitted: Admitted) -> None:
        """Count one more admitted command of a kind."""
        admitted.times += 1
        if not admitted.is_gathered:
            session.observer.gather_from(session.service, admitted)
        session.route.begins_work()

    def _count_others(self, session: Executor, others: list[CachedDecision]) -> None:
        """Count the evidence of further keys of an admitted command."""
        for decision in others:
            further = decision.further
            further.times += 1
            if not further.is_gathered:
                session.observer.gather_from(session.service, further)

    def _keep_open(
        self, session: Executor, cache: DecisionCache, decision: CachedDecision, outcome: int, key: bytes
    ) -> None:
        """Keep in mind what an admitted command leaves open."""
        authorizer = session.current_authorizer()
        pending = authorizer.pending
        if pending is not None:
            transaction = session.transaction
            queued = transaction.evaluated if transaction is not None else None
            database = session.profile.database
            peer, sender = session.peer, session.sender
            pending.keep_open(authorizer, cache, decision, outcome, key, queued, database, peer, sender)

    # -- how long decisions take

    def _begin_timing(self) -> None:
        """The decision that begins is timed: a session's first one, and then each 64th."""
        self._until_timed = TIMED_EACH - 1
        self._started = perf_counter()

    def take_timing(self) -> float:
        """When the decision in hand began; 0.0: it is not timed. From here on the caller takes the time."""
        started, self._started = self._started, 0.0
        return started

    def end_timing(self, session: Executor) -> None:
        """The decision in hand has been made."""
        if self._started:
            session.observer.decided(session.service, perf_counter() - self._started)
            self._started = 0.0


def exec_follows(reader: RequestReader, most_bytes: int, most_requests: int) -> bool:
    """Whether an EXEC has come behind the request in hand, with no more than this in between. It leaves the
    reader further on: the caller takes it back."""
    start = reader.start
    count = 0
    name = b""
    while not is_named(name, b"EXEC"):
        if reader.peek():
            name = reader.data()[reader.name_at : reader.name_end] if reader.count == 1 else b""
        else:
            try:
                argv = reader.next()
            except ProtocolError:
                return False  # it is met again, behind the requests before it
            if not argv or len(argv) > MANY:
                return False
            name = argv[0] if len(argv) == 1 else b""
        if reader.end - start > most_bytes or count > most_requests:
            return False
        count += 1
    return True


def is_named(name: bytes, wanted: bytes) -> bool:
    """Whether a command's name surely is this one, in any case: as `arguments.fold`, but in C."""
    return len(name) == len(wanted) and name.upper() == wanted
