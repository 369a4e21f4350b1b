"""One policy with its modes: the answer that the relay acts on.

Rule: asking never raises. A fault inside a decision is a violation of `internal.error`, so it refuses where
that rule is enforced and passes, counted and told, where it is observed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Sequence

from keyfence.commands.extract import extract
from keyfence.commands.model import MANY, Streamed, Touches
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.sizes import Question, questions
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.compiled.ttl import FINE, SETTLING, UNSIZED
from keyfence.policy.enforcement.modes import BreakGlass, Modes
from keyfence.policy.show import shown_name
from keyfence.policy.verdict import PASS, Action, Finding, Gathering, Peer, Ruling, Verdict, Violation

from .decision_cache import DecisionCache
from .evaluator import Evaluator, Transaction
from .forms import CachedDecision, Lookup
from .pending_sizes import Write
from .pending_ttl import Pending, PendingTtls

# Whether these are broken is told by the form of the command, by what the key is, and by what the glance sees
# of the value.
ALIKE = frozenset(
    {
        "command.forbidden",
        "scope.read",
        "scope.write",
        "key.legacy",
        "key.format",
        "key.unregistered",
        "type.mismatch",
        "ttl.required",
        "ttl.forbidden",
        "ttl.range",
        "field.unknown",
        "value.invalid",
        "value.size",
        "stream.maxlen",
    }
)


# A judgement that is made step by step: it yields nothing, and returns the ruling and what was touched.
Steps = Generator[None, None, tuple[Ruling, Touches]]


class InForce:
    """The judge that holds now: a reload puts another in its place."""

    __slots__ = ("judge",)

    def __init__(self, judge: Authorizer) -> None:
        self.judge = judge


class Authorizer:
    """A compiled policy, the modes of this environment, and whatever break-glass is open.

    A reload makes a new Judge; transactions keep the one they began with.
    """

    def __init__(
        self,
        policy: CompiledPolicy,
        modes: Modes,
        glass: list[BreakGlass] | None = None,
        clock: Callable[[], float] = time.time,
        on_error: Callable[[Exception], None] = lambda _: None,
        pending: PendingTtls | None = None,
    ) -> None:
        """`pending` is the process's table of keys to ask Redis about; without one nothing is asked later."""
        self.policy = policy
        self.modes = modes
        self.glass = glass if glass is not None else []
        self.evaluator = Evaluator(policy, clock)
        self.pending = pending
        self.steps_on_patterns = 0  # of the command that was weighed last
        self._caches: dict[int, DecisionCache] = {}
        self._questions_known: dict[tuple[str, int], tuple[Question, ...]] = {}
        self._clock = clock
        self._on_error = on_error

    def number(self, service: str) -> int:
        """The number under which `rule` knows a service; an unlisted one is `unknown`."""
        return self.policy.number(service)

    def rule(self, service: int, argv: Sequence[bytes], values: Values = ()) -> Ruling:
        """What would be done about a command; nothing is kept of it."""
        return _driven(self._decide(service, argv, None, values))[0]

    def authorize(
        self,
        service: int,
        argv: Sequence[bytes],
        transaction: Transaction | None = None,
        database: int = 0,
        client: Peer | str = "",
        connection: object = None,
        values: Values = (),
    ) -> tuple[Ruling, Touches]:
        """What is done about a command (queued in `transaction`, if any), and what it touches.

        What a command that passes leaves open is kept in `pending` until it is settled, by another command on
        `connection` (any object of its own; else `client` stands for it) or by Redis. `database` is the one
        that is selected; `values` are what the policy's bound placeholders hold for the caller
        (CompiledPolicy.values).
        """
        steps = self.authorize_in_steps(service, argv, transaction, database, client, connection, values)
        return _driven(steps)

    def authorize_in_steps(
        self,
        service: int,
        argv: Sequence[bytes],
        transaction: Transaction | None = None,
        database: int = 0,
        client: Peer | str = "",
        connection: object = None,
        values: Values = (),
    ) -> Steps:
        """As `authorize`; yields whenever a turn is over, so that others can be judged before it goes on.

        What holds when it begins holds to its end, but for break-glass: that is asked for at the end.
        """
        answer = yield from self._decide(service, argv, transaction, values)
        if self.evaluator.left_open and self.pending is not None and answer[0].refused_by is None:
            sender = client if connection is None else connection
            self._follow(self.pending, service, answer[1], transaction, database, client, sender)
        return answer

    def cache(self, service: int, among: Container[str]) -> DecisionCache:
        """The short way to a yes for a service, for those commands whose names are `among` these.

        What it admits passes in every mode; `PendingTtls.keep_open` is to be told of what it leaves open.
        """
        known = self._caches.get(service)
        if known is None or not known.is_current:
            known = self._caches[service] = DecisionCache(self.evaluator, service, among)
            self.evaluator.caches.append(known)
        return known

    def keep_size_open(
        self, cache: DecisionCache, decision: CachedDecision, key: bytes, database: int, client: Peer | str
    ) -> None:
        """As `authorize` does for a command that the cache admits and that leaves a size open."""
        if self.pending is None:
            return
        name, position = decision.form.name, decision.form.index
        target = self.policy.targets[decision.target]
        asked = self._questions(name, position, decision.target)
        self._ask_sizes(self.pending, asked, cache.service, client, name, database, key, position, target)

    def _questions(self, name: str, position: int, target: int) -> tuple[Question, ...]:
        """What to ask about the size of a key that a command with one key has written, by its target."""
        known = self._questions_known.get((name, target))
        if known is None:
            entry = self.policy.targets[target].entry
            touches = extract([name.encode()] * (position + 1))
            known = questions(entry, touches.accesses[0]) if entry is not None and touches.accesses else ()
            self._questions_known[name, target] = known
        return known

    def repeats(
        self,
        service: int,
        cache: DecisionCache,
        lookup: Lookup,
        argv: list[bytes],
        touches: Touches,
        ruling: Ruling,
    ) -> int | None:
        """What each command like this one, which the cache does not admit, means for its key's time to live,
        if it has the findings of this ruling, with the same done about them: their rules are about command
        and target alone. None if it needn't have.

        Where one is refused that holds as long as no break-glass is open.
        """
        if any(violation.more > _MOST_MORE for violation, _ in ruling.findings):
            return None
        decision = lookup.decision
        if decision is None:
            return None
        target = self.policy.targets[decision.target] if decision.target >= 0 else None
        if target is not None and self.policy.tells_callers_apart(target):
            return None
        if len(touches.accesses) != 1 or not cache.may_count(lookup, argv):
            return None
        ttl = touches.accesses[0].ttl
        if ttl is not None and ttl.absolute:
            return None
        if not self.evaluator.judges_alike(service, decision.form.name, target):
            return None
        name = self.policy.services[service]
        alike = all(
            violation.rule in ALIKE
            and not self.modes.may_waive(name, violation.rule)
            and action == self._always(violation, service)
            for violation, action in ruling.findings
        )
        if not alike:
            return None
        left = self.evaluator.left_open if ruling.refused_by is None else []
        return left[0][0] if left else FINE

    def _always(self, violation: Violation, service: int) -> Action | None:
        """What is done about a violation whatever its key and the time, where nothing is waived."""
        if violation.severity == "should" or self.modes.mode(violation.rule, service) == "observe":
            return "observed"
        return "refused" if not self.glass else None

    def _follow(
        self,
        pending: PendingTtls,
        service: int,
        touches: Touches,
        transaction: Transaction | None,
        database: int,
        client: Peer | str,
        sender: object,
    ) -> None:
        """Keep what the command leaves open about times to live, and let go what it settles."""
        name = touches.command.name if touches.command is not None else ""
        pending.dropped += self.evaluator.not_kept
        for found, access, target, rule in self.evaluator.left_open:
            if isinstance(access.key, Streamed):
                continue  # what is at hand of it is another key's name
            if UNSIZED.get(found, found) in SETTLING and name in _MAY_LEAVE:
                continue
            where = database
            if touches.databases and access.ttl is not None and access.ttl.kind == "carries":
                where = touches.databases[0][1]  # MOVE and COPY … DB write elsewhere
            key, position = access.key, access.position
            if found in UNSIZED and target.entry is not None:
                asked = questions(target.entry, access)
                self._ask_sizes(pending, asked, service, client, name, where, key, position, target)
            if rule is not None:
                pending.keep(
                    self,
                    service,
                    client,
                    name,
                    sender,
                    transaction,
                    where,
                    key,
                    position,
                    target,
                    rule,
                    UNSIZED.get(found, found),
                )

    def _ask_sizes(
        self,
        pending: PendingTtls,
        asked: Sequence[Question],
        service: int,
        client: Peer | str,
        command: str,
        database: int,
        key: bytes,
        position: int,
        target: Target,
    ) -> None:
        """Have Redis asked how large a key is that a command has written."""
        writes = [Write(self, service, client, command, position, target, one) for one in asked]
        pending.sizes.ask(database, key, writes)

    def late(self, pending: Pending, left: int) -> tuple[Finding, ...]:
        """What is told of a key whose PTTL turned out to be `left`; it can't be refused any more."""
        return self._late(self.evaluator.late(pending, left), pending.service, pending.command)

    def late_size(self, key: bytes, write: Write, size: int) -> tuple[Finding, ...]:
        """What is told of a key that a write has made too large."""
        return self._late(self.evaluator.late_size(key, write, size), write.service, write.command)

    def _late(self, violation: Violation | None, service: int, command: str) -> tuple[Finding, ...]:
        if violation is None:
            return ()
        ruling = self._rule_on(Verdict((violation,)), service, command)
        return tuple(
            Finding(found, "waived" if action == "waived" else "late") for found, action in ruling.findings
        )

    def _decide(
        self, service: int, argv: Sequence[bytes], transaction: Transaction | None, values: Values
    ) -> Steps:
        evaluator, touches = self.evaluator, _NOTHING
        gathering: Gathering[Action] = Gathering()
        is_any = False
        self.steps_on_patterns = evaluator.not_kept = 0
        try:
            touches = extract(argv)
            if len(touches.accesses) <= MANY and evaluator.admits(service, touches, values):
                return PASS, touches
            name = command_name(argv, touches)
            for found in evaluator.violations(service, argv, touches, transaction, values):
                if found is None:
                    kept = evaluator.left_open, evaluator.not_kept, evaluator.budget
                    # Those judged meanwhile have a budget of their own.
                    evaluator.left_open, evaluator.budget = [], Budget()
                    yield
                    evaluator.left_open, evaluator.not_kept, evaluator.budget = kept
                    evaluator.values = values
                    continue
                is_any = True
                action = self.modes.action(found, service, name)
                if action is not None:
                    gathering.take(found, action)
            self.steps_on_patterns = evaluator.budget.spent
        except Exception as exc:
            verdict = self._internal_error(argv, exc)
            return self._rule_on(verdict, service, command_name(argv, touches)), touches
        if not is_any:
            return PASS, touches
        return self.modes.ruling(gathering.listed(), service, self._clock(), self.glass), touches

    def opaque(self, service: int, command: str, reason: str) -> Ruling:
        """What is done about a command after which the session can't be read any more."""
        violation = Violation(
            "session.opaque",
            "must",
            0,
            None,
            "",
            "",
            "",
            f"{self.evaluator.who(service)} may not use {command} through keyfence: {reason}",
            "observe mode passes such a session unread",
        )
        return self._rule_on(Verdict((violation,)), service, command)

    def strangers_connection(self, service: int, command: str, position: int) -> Ruling:
        """What is done about a command that names another client's connection, by its id at `position`."""
        violation = Violation(
            "command.forbidden",
            "must",
            position,
            None,
            "",
            "",
            "",
            f"{self.evaluator.who(service)} may not use {command} to redirect to "
            "a connection of somebody else",
            "a client may name its own and its service's, by the ids that CLIENT ID tells them",
        )
        return self._rule_on(Verdict((violation,)), service, command)

    def enforces(self, service: int) -> bool:
        """Whether any rule is enforced for the service."""
        return self.modes.enforces(service)

    def _rule_on(self, verdict: Verdict, service: int, command: str) -> Ruling:
        return self.modes.rule_on(verdict, service, command, self._clock(), self.glass)

    def _internal_error(self, argv: Sequence[bytes], exc: Exception) -> Verdict:
        self._on_error(exc)
        name = shown_name(argv[0]) if argv else ""
        text = f"{name} can't be judged: keyfence failed ({type(exc).__name__})"
        violation = Violation("internal.error", "must", 0, None, "", "", "", text, "tell keyfence's operator")
        return Verdict((violation,))


def command_name(argv: Sequence[bytes], touches: Touches) -> str:
    """The command's name in upper case, with its subcommand; for an unknown one what the client sent."""
    return touches.command.name if touches.command is not None else shown_name(argv[0])


def _driven(steps: Steps) -> tuple[Ruling, Touches]:
    """The end of a judgement, all its turns at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: tuple[Ruling, Touches] = end.value
            return answer


_NOTHING = Touches(None)
_MOST_MORE = 16  # what isn't listed of a command is counted one by one for those like it
# They take a key away, or leave all as it is: where the new name is taken, where only a copy is asked for.
_MAY_LEAVE = frozenset({"RENAMENX", "MIGRATE"})
