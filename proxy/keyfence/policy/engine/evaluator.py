"""From what a command touches to a verdict.

Rule: every access is judged, every violation is listed, rights before form before content; the same inputs
give the same verdict. Nothing is refused here, and no exception is part of the answer.

docs/policy.md has the table of which rule fires when;
tests/policy/engine/test_which_rule_fires.py holds it to this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from keyfence.commands.arguments import fold, integer, word
from keyfence.commands.extract import extract
from keyfence.commands.model import ANY_KEY, READ, WRITE, Access, Channel, Command, Problem, Touches, Unseen
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import Budget, cost
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.policy.compiled.keyspace import INVALIDATIONS
from keyfence.policy.compiled.permissions import forbidden_by_default, lets_unknown, names, selects
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.tenants import Values, differing
from keyfence.policy.show import printable, shown_name
from keyfence.policy.verdict import ALLOWED, Found, Gathering, Verdict
from keyfence.policy.wording.messages import said

from .checks import BY_KIND, Standing, Use
from .wide import WideEvaluator

if TYPE_CHECKING:
    from .decision_cache import DecisionCache

_TRACKING = COMMANDS[b"CLIENT"].subcommands[b"TRACKING"].command


FORBIDDEN = "the policy forbids it"  # a prohibition, to which a grant is no remedy
_UNSURE = Standing(-1, 0)  # every doubt
_MOST_SHOWN = 4  # globs in a hint


class Transaction:
    """What must be known of a transaction's earlier commands to judge a later one."""

    __slots__ = ("slot",)

    def __init__(self) -> None:
        self.slot: int | None = None  # of the first key, where the policy is for a cluster


class Evaluator(WideEvaluator):
    """Judges commands against one compiled policy."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self._permissions: dict[tuple[int, str], str] = {}
        self.caches: list[DecisionCache] = []  # that hold while the policy does
        super().__init__(policy.without_lapsed(clock()), clock)
        # Rules about keys together, which `admits` leaves to `judge`.
        self._looks_closer = policy.cluster
        self._binds = any(target.alike for target in policy.targets)

    def _take(self, policy: CompiledPolicy) -> None:
        super()._take(policy)
        self.forget_permissions()
        self._next_lapse = policy.next_lapse()

    def forget_permissions(self) -> None:
        """The command table has changed: what a command may do is asked anew."""
        for cache in self.caches:
            cache.is_current = False
        self.caches.clear()
        self._permissions.clear()
        self._grants_known.clear()

    def decide(self, service: int, argv: Sequence[bytes], values: Values = ()) -> Verdict:
        """The verdict on one command (argv with its name first) of the service with this number, from a
        caller with these values (CompiledPolicy.values)."""
        return self.judge(service, argv, extract(argv), values=values)

    def admits(self, service: int, touches: Touches, values: Values = ()) -> bool:
        """Whether nothing is wrong, as far as a glance shows. False says nothing: ask `judge`.

        The way of most commands; where it says yes, `judge` finds no violation (test_evaluator.py).
        """
        self.values = values
        if self.left_open:
            self.left_open = []
        if self._next_lapse is not None and self._clock() >= self._next_lapse:
            return False
        command, accesses, channels, pattern, script, databases, problem = touches
        if command is None or problem or channels or pattern or script or databases or self._looks_closer:
            return False
        reason = self._permissions.get((service, command.name))
        if reason is None or reason:
            return False
        if self._binds and len(accesses) > 1:
            return False
        return all(self.is_clean(service, command.name, command, access) for access in accesses)

    def standing_of_all(self, service: int, command: Command, access: Access, target: Target) -> Standing:
        """What holds for each access of this kind by the service to this target, at any time.

        Where rights depend on the caller, it is about the caller's own keys. The decision cache keeps it.
        """
        if target.kind in BY_KIND or self._depends_on_more(service):
            return _UNSURE
        if next(self._permission(service, command), None) is not None:
            return _UNSURE
        held = target.rights[service] & ~target.denied[service]
        return self._standings.of(command.name, command, access, target, held)

    def _depends_on_more(self, service: int) -> bool:
        """Whether what the service may do depends on other keys of the command, or on the time."""
        return self._looks_closer or (self._next_lapse is not None and service in self.policy.grants)

    def admits_alone(self, service: int, name: bytes) -> bool:
        """Whether nothing is wrong with a command that has no arguments, at any time."""
        if self._next_lapse is not None and service in self.policy.grants:
            return False
        return not self.decide(service, [name]).violations

    def judges_alike(self, service: int, name: str, target: Target | None) -> bool:
        """Whether a command on a well named key of this target (None: on one of none) breaks the same rules
        whatever the key is called, as far as these are about rights, form and time to live."""
        if self._looks_closer or self._next_lapse is not None or self._grants_of(service, name):
            return False
        return target is None or not (
            target.kind in ("entry", "scope") and self.policy.home(target).type_words
        )

    def judge(
        self,
        service: int,
        argv: Sequence[bytes],
        touches: Touches,
        transaction: Transaction | None = None,
        values: Values = (),
    ) -> Verdict:
        """The verdict on what a command touches, where that is known already."""
        gathering: Gathering[None] = Gathering()
        for found in self.violations(service, argv, touches, transaction, values):
            if found is not None:
                gathering.take(found, None)
        listed = tuple(violation for violation, _ in gathering.listed())
        return Verdict(listed) if listed else ALLOWED

    def violations(
        self,
        service: int,
        argv: Sequence[bytes],
        touches: Touches,
        transaction: Transaction | None = None,
        values: Values = (),
    ) -> Iterator[Found | None]:
        """Every violation, as it is found; None whenever a turn's steps are done, where one may pause.

        Whoever judges another command meanwhile puts back `values`, `left_open`, `not_kept` and `budget`
        before this goes on.
        """
        self.values = values
        self.left_open = []
        self.not_kept = 0
        self.budget = Budget()
        if self._next_lapse is not None and self._clock() >= self._next_lapse:
            self._take(self.policy.without_lapsed(self._clock()))
        command = touches.command
        name = command.name if command is not None else shown_name(argv[0])
        if command is not None:
            yield from self._permission(service, command)
        yield from self._databases(service, name, touches)
        if touches.pattern is not None:
            yield from self._pattern(service, name, touches.pattern.position, touches.pattern.glob, READ)
        for channel in touches.channels:
            if self.budget.works(cost(channel.name)):
                yield None
            yield from self._channel(service, name, channel)
        accesses = touches.accesses
        registration = self.policy.registration(touches.script) if touches.script is not None else None
        if touches.script is not None and registration is not None:
            yield from self._registered(service, touches, touches.script, registration)
        else:
            yield from self._unknown_parts(service, name, argv, touches)
            yield from self._all_accesses(service, name, touches)
        if registration is not None and touches.script is not None:
            accesses = (*accesses, *registration.made(touches.script, values))
        crosses = False
        for found in self._slots(name, accesses, transaction) if self.policy.cluster else ():
            crosses = crosses or found is not None
            yield found
        if not crosses:
            yield from self._bindings(service, name, accesses)

    def _all_accesses(self, service: int, name: str, touches: Touches) -> Iterator[Found | None]:
        accesses = touches.accesses
        is_script = touches.script is not None
        several = len(accesses) > 1  # a single one isn't clean: `admits` has asked
        for access in accesses:
            if self.budget.works(cost(access.key)):
                yield None
            if not (several and self.is_clean(service, name, None if is_script else touches.command, access)):
                yield from self._access(Use(service, name, touches.command, access, is_script))

    # -- the command itself

    def _permission(self, service: int, command: Command) -> Iterator[Found]:
        key = (service, command.name)
        reason = self._permissions.get(key)
        if reason is None:
            reason = self._permissions[key] = self.why_forbidden(service, command)
        if reason:
            hint = "the policy can grant it to a service"
            if reason == FORBIDDEN:
                hint = "use another command; or ask the owner of the policy to change its commands"
            message = f"{self.who(service)} may not use {command.name}: {reason}"
            yield self._plain("command.forbidden", 0, message, hint)

    def why_forbidden(self, service: int, command: Command) -> str:
        policy = self.policy
        grants = [grant.selectors for grant in policy.grants.get(service, ())]
        if command.name in policy.allow or any(names(granted, command) for granted in grants):
            return ""
        if names(policy.forbid, command):
            return FORBIDDEN
        if any(selects(allowed, command) for allowed in (policy.allow, *grants)):
            return ""
        return forbidden_by_default(command, command.names_keys)

    def _channel(self, service: int, name: str, channel: Channel) -> Iterator[Found | None]:
        """Who may track keys may hear of their changes."""
        hears = channel.name == INVALIDATIONS and not channel.publish
        if not hears or next(self._permission(service, _TRACKING), None) is not None:
            yield from super()._channel(service, name, channel)

    def _unknown_parts(
        self, service: int, name: str, argv: Sequence[bytes], touches: Touches
    ) -> Iterator[Found]:
        """What can't be known of the command, unless the service may do all that it might."""
        problem = touches.problem
        if problem is not None and not self._may_do_all(service, name, argv, touches.command, problem):
            yield self._plain(
                problem.rule,
                problem.position,
                f"{name} can't be judged: {problem.reason}",
                self._unknown_hint(service, name, argv, touches.command, problem),
            )
        script, may = touches.script, self.policy.unregistered_scripts
        if script is not None and (may == "forbid" or (may == "load_only" and name != "SCRIPT LOAD")):
            yield self._unregistered_script(service, name, script)
        elif script is not None and may == "load_only":
            self._loaded(script)

    def _may_do_all(
        self, service: int, name: str, argv: Sequence[bytes], command: Command | None, problem: Problem
    ) -> bool:
        """Whether the service may do whatever the command might: to all keys that it might touch, by rights
        and grants, as with a pattern. What it does must be known, or else be allowed by name or `*`."""
        unseen = problem.unseen
        if not unseen and self._lets_unknown(service, name, argv, command):
            unseen = ANY_KEY
        is_reached = bool(unseen) and all(
            self._reaches_only_own(service, name, one.glob, right)
            for one in unseen
            for right in (READ, WRITE)
            if one.needs & right
        )
        return is_reached and self._are_open(service, name, command, problem, unseen)

    def _are_open(
        self, service: int, name: str, command: Command | None, problem: Problem, unseen: Sequence[Unseen]
    ) -> bool:
        """Whether no entry among these keys restricts commands in a way that this one might not keep to."""
        if not self._restricts:
            return True
        is_known = command is not None and problem.rule != "script.keys" and tuple(unseen) != ANY_KEY
        one = command if command is not None else Command(name, 0, frozenset(), frozenset(), (), True)
        return all(
            self._is_open_to(
                service,
                one,
                Access(problem.position, may.glob, may.needs),
                is_script=not is_known,
            )
            for may in unseen
        )

    def _lets_unknown(self, service: int, name: str, argv: Sequence[bytes], command: Command | None) -> bool:
        """Whether a command that no known server has is allowed all the same."""
        policy, spelled = self.policy, {name} if command is not None else set()
        first = fold(argv[0]).decode("latin-1") if argv else ""
        spelled |= {first, f"{first} {word(argv[1]).decode('latin-1')}"} if len(argv) > 1 else {first}
        grants = [grant.selectors for grant in policy.grants.get(service, ())]
        if any(command is not None and names(granted, command) for granted in grants):
            return True
        is_granted = any(not granted.isdisjoint(spelled) for granted in grants)
        return is_granted or lets_unknown(policy.allow.union(*grants), policy.forbid, spelled)

    def _unknown_hint(
        self, service: int, name: str, argv: Sequence[bytes], command: Command | None, problem: Problem
    ) -> str:
        """What would let it be judged, or pass."""
        if problem.rule == "script.keys":
            section = "functions" if name.startswith("FCALL") else "scripts"
            at = problem.position
            if at < len(argv) and integer(argv[at]) == 0:
                return f"register it under {section}, with keys: 0 and what it touches"
            return "say how many keys follow"
        if problem.unseen:
            globs = " and ".join(self._shown(one.glob, None) for one in problem.unseen[:_MOST_SHOWN])
            writes = any(one.needs & WRITE for one in problem.unseen)
            verb = "read and write" if writes else "read"
            return f"it needs the right to {verb} every key that matches {globs}{self._also_open()}"
        if self._lets_unknown(service, name, argv, command):
            return f"it needs the right to read and write every key{self._also_open()}"
        return "use a command that keyfence knows; or the policy allows this one by its name"

    def _also_open(self) -> str:
        return ", and that no entry of these restricts commands" if self._restricts else ""

    def _databases(self, service: int, name: str, touches: Touches) -> Iterator[Found | None]:
        for position, number in touches.databases:
            if self.budget.works(1):
                yield None
            yield from self._database(service, name, position, number)

    def _slots(
        self, name: str, accesses: Sequence[Access], transaction: Transaction | None
    ) -> Iterator[Found | None]:
        """All keys of a command, and of a transaction, in one hash slot."""
        first = transaction.slot if transaction is not None else None
        for access in accesses:
            if self.budget.works(cost(access.key)):
                yield None
            target = self.policy.target(access.key)
            if not self.policy.home(target).cluster:
                continue
            slot = hash_slot(access.key)
            if first is None:
                first = slot
            elif slot != first:
                text = self._shown(access.key, target)
                message = f"{name} {text} is in hash slot {slot}, an earlier key in {first}"
                hint = "give the keys one hash tag, as {tag}"
                words = said(message, hint)
                yield self._violation("slot.cross", access.position, access.key, target, words)
                break
        if transaction is not None:
            transaction.slot = first

    def _bindings(self, service: int, name: str, accesses: Sequence[Access]) -> Iterator[Found | None]:
        """A bound placeholder has one value within a command, whatever keys a grant covers left out."""
        if not self._binds or len(accesses) < 2:
            return
        seen: dict[str, bytes] = {}
        for access in accesses:
            if self.budget.works(cost(access.key)):
                yield None
            target = self.policy.target(access.key)
            if target is None or not target.alike or self._granted(service, name, access, target):
                continue
            difference = differing(seen, target.alike)
            if difference is not None:
                placeholder, value, first = difference
                told = f"the {placeholder} {printable(value)}, an earlier key {printable(first)}"
                message = f"{name} {self._shown(access.key, target)} has {told}"
                hint = f"the keys of one command share their {placeholder}"
                yield self._about("key.format", access, target, said(message, hint))
                return
