"""The evaluator: gives the verdict on the keys and channels that a command touches.

Rule: every access is evaluated and every violation is found, in the order of `policy.rules`. The same inputs
give the same verdict. The evaluator refuses nothing, and its answers are not exceptions.

docs/policy.md has a table of which rule fires when, and tests/policy/engine/test_which_rule_fires.py compares
it with the evaluator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence

from keyfence.commands.arguments import integer
from keyfence.commands.extract import extract
from keyfence.commands.model import ANY_KEY, READ, WRITE, Access, Command, Problem, Touches, Unseen
from keyfence.policy.budget import cost, driven
from keyfence.policy.compiled.hash_slots import hash_slot, hash_tag
from keyfence.policy.compiled.key_targets import KeyTargets
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.tenants import Values, differing
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.show import printable
from keyfence.policy.verdict import ALLOWED, Found, Gathering, Verdict
from keyfence.policy.wording.messages import Wording, said

from .asker import Asker
from .channels import ChannelChecks
from .checks import BY_KIND, Standing
from .counts import Validity
from .evaluation import Evaluation, Use
from .keys import KeyChecks
from .patterns import Patterns
from .permissions import Grants, Permissions
from .scripts import ScriptChecks

_UNSURE = Standing(-1, 0)  # every doubt
_MOST_SHOWN = 4  # the number of globs in a hint


def _named_by_elements(touches: Touches) -> Sequence[Access]:
    """Returns what the BY and GET patterns of SORT read: a glob for each, in place of a key."""
    problem = touches.problem
    if problem is None or problem.rule != "command.unknown" or tuple(problem.unseen) == ANY_KEY:
        return ()
    return [Access(problem.position, one.glob, one.needs) for one in problem.unseen]


class CommandChecks:
    """All checks of a command under one policy. A lapse makes new ones, so an evaluation ends as it began."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float]) -> None:
        self.policy = policy
        self.wording = Wording(policy)
        self.grants = Grants(policy)
        self.permissions = Permissions(policy)
        self.keys = KeyChecks(policy, clock, self.grants, self.wording)
        self.patterns = Patterns(policy, clock, self.grants, self.permissions)
        self.channels = ChannelChecks(policy, self.grants, self.permissions, self.keys, self.patterns)
        self.scripts = ScriptChecks(policy, self.keys, self.patterns, self.channels)
        self._binds = any(target.alike for target in policy.targets)

    def admits(self, evaluation: Evaluation) -> bool:
        """Whether a command certainly breaks nothing. False: only `violations` knows.

        It takes a fraction of the time of `violations`, which then finds none (test_evaluator.py).
        """
        command, accesses, channels, pattern, script, databases, problem = evaluation.touches
        if command is None or problem or channels or pattern or script or databases:
            return False
        if self.policy.cluster and (evaluation.asker.transaction is not None or len(accesses) > 1):
            return False  # rules about keys together are left to `violations`
        if self.permissions.reason(evaluation.asker.service, command):
            return False
        if self._binds and len(accesses) > 1:
            return False
        for access in accesses:
            if not self.keys.is_clean(evaluation, command, access):
                evaluation.unclean = access
                evaluation.left_open.clear()  # `violations` looks at the others again
                evaluation.not_kept = 0
                return False
        return True

    def violations(self, evaluation: Evaluation) -> Iterator[Found | None]:
        """Yields every violation as it is found, and None when a turn's steps are used up, as a place to
        pause."""
        touches, budget = evaluation.touches, evaluation.budget
        if touches.command is not None:
            reason = self.permissions.reason(evaluation.asker.service, touches.command)
            if reason:
                yield self.permissions.violation(evaluation, reason)
        for position, number in touches.databases:
            if budget.works(1):
                yield None
            yield from self.channels.check_database(evaluation, position, number)
        if touches.pattern is not None:
            yield from self.patterns.check(evaluation, touches.pattern.position, touches.pattern.glob, READ)
        for channel in touches.channels:
            if budget.works(cost(channel.name)):
                yield None
            yield from self.channels.check(evaluation, channel)
        accesses = touches.accesses
        registration = self.policy.registration(touches.script) if touches.script is not None else None
        named: Sequence[Access] = ()
        if touches.script is not None and registration is not None:
            yield from self.scripts.registered(evaluation, touches.script, registration)
        else:
            if touches.problem is not None or touches.script is not None:
                named = _named_by_elements(touches)
                for unknown in self._unknown_parts(evaluation):
                    named = ()
                    yield unknown
            yield from self._all_accesses(evaluation)
        if registration is not None and touches.script is not None:
            accesses = (*accesses, *registration.made(touches.script, evaluation.asker.values))
        crosses = False
        for found in self._slots(evaluation, accesses, named) if self.policy.cluster else ():
            crosses = crosses or found is not None
            yield found
        if self._binds and len(accesses) > 1 and not crosses:
            yield from self._bindings(evaluation, accesses)

    def _all_accesses(self, evaluation: Evaluation) -> Iterator[Found | None]:
        touches, is_script = evaluation.touches, evaluation.touches.script is not None
        for access in touches.accesses:
            if evaluation.budget.works(cost(access.key)):
                yield None
            # Of a clean key, its time to live and its size may stay open, also if a grant covers it.
            command = None if is_script else touches.command
            if access is evaluation.unclean or not self.keys.is_clean(evaluation, command, access):
                yield from self.keys.access(Use(evaluation, access, touches.command, is_script))

    def _unknown_parts(self, evaluation: Evaluation) -> Iterator[Found | None]:
        """Yields the violations of a command with unknown keys or effects, unless the service may do
        everything that it might do."""
        touches = evaluation.touches
        problem = touches.problem
        if problem is not None and not (
            self.permissions.answers(evaluation.asker.service, evaluation.argv, touches.command)
            or self._may_do_all(evaluation, problem)
        ):
            yield evaluation.plain(
                problem.rule,
                problem.position,
                f"{evaluation.name} cannot be evaluated: {problem.reason}",
                self._unknown_hint(evaluation, problem),
            )
        if touches.script is not None:
            yield from self.scripts.unregistered(evaluation, touches.script)

    def _may_do_all(self, evaluation: Evaluation, problem: Problem) -> bool:
        """Whether the service may do everything that the command might do.

        It needs rights or grants on all keys that the command might touch, as for a pattern. The command's
        effects must be known, or the policy must allow the command by its name or by `*`.
        """
        unseen = problem.unseen
        if not unseen and self.permissions.let_unknown(evaluation):
            unseen = ANY_KEY
        is_reached = bool(unseen) and all(
            self.patterns.reach_only_own(evaluation, evaluation.name, one.glob, right)
            for one in unseen
            for right in (READ, WRITE)
            if one.needs & right
        )
        return is_reached and self._are_open(evaluation, problem, unseen)

    def _are_open(self, evaluation: Evaluation, problem: Problem, unseen: Sequence[Unseen]) -> bool:
        """Whether the command certainly keeps the command restrictions of the entries of these keys."""
        if not self.patterns.restrict:
            return True
        command = evaluation.touches.command
        is_known = command is not None and problem.rule != "script.keys" and tuple(unseen) != ANY_KEY
        one = (
            command
            if command is not None
            else Command(evaluation.name, 0, frozenset(), frozenset(), (), True)
        )
        return all(
            self.patterns.are_open_to(
                evaluation,
                one,
                Access(problem.position, may.glob, may.needs),
                is_script=not is_known,
            )
            for may in unseen
        )

    def _unknown_hint(self, evaluation: Evaluation, problem: Problem) -> str:
        """Returns the hint that would make the command known, or let it pass."""
        if problem.rule == "script.keys":
            section = "functions" if evaluation.name.startswith("FCALL") else "scripts"
            argv, at = evaluation.argv, problem.position
            if at < len(argv) and integer(argv[at]) == 0:
                return f"register it under {section}, with keys: 0 and what it touches"
            return "say how many keys follow"
        if problem.unseen:
            globs = " and ".join(
                evaluation.wording.shown(one.glob, None) for one in problem.unseen[:_MOST_SHOWN]
            )
            writes = any(one.needs & WRITE for one in problem.unseen)
            verb = "read and write" if writes else "read"
            return f"it needs the right to {verb} every key that matches {globs}{self._also_open()}"
        if self.permissions.let_unknown(evaluation):
            return f"it needs the right to read and write every key{self._also_open()}"
        return "use a command that keyfence knows; or the policy allows this one by its name"

    def _also_open(self) -> str:
        return ", and that no entry of these restricts commands" if self.patterns.restrict else ""

    def _slots(
        self, evaluation: Evaluation, accesses: Sequence[Access], named: Sequence[Access]
    ) -> Iterator[Found | None]:
        """Checks that all keys of a command, and of its transaction, are in one hash slot.

        `named`: the globs of keys that sorted elements name.
        """
        name, transaction = evaluation.name, evaluation.asker.transaction
        first = transaction.slot if transaction is not None else None
        for access in accesses:
            if evaluation.budget.works(cost(access.key)):
                yield None
            target = evaluation.target(access.key)
            if not self.policy.home(target).cluster:
                continue
            slot = hash_slot(access.key)
            if first is None:
                first = slot
            elif slot != first:
                text = evaluation.wording.shown(access.key, target)
                message = f"{name} {text} is in hash slot {slot}, an earlier key in {first}"
                hint = "give the keys one hash tag, as {tag}"
                words = said(message, hint)
                yield evaluation.violation("slot.cross", access.position, access.key, target, words)
                break
        else:
            yield from self._named_slots(evaluation, named, first)
        if transaction is not None:
            transaction.slot = first

    def _named_slots(
        self, evaluation: Evaluation, named: Sequence[Access], first: int | None
    ) -> Iterator[Found | None]:
        """Checks that the hash tag of each glob shows that its keys are in the hash slot of the others."""
        for access in named:
            if evaluation.budget.works(cost(access.key)):
                yield None
            known = Glob(access.key).literal_prefix
            slot = hash_slot(known) if hash_tag(known) != known else None
            if not self.policy.home(self.policy.target(known)).cluster:
                continue
            if slot is not None and first in (None, slot):
                first = slot
                continue
            where = "may be in any hash slot"
            if slot is not None:
                where = f"are in hash slot {slot}, an earlier key in {first}"
            shown = evaluation.wording.shown(access.key, None)
            message = f"{evaluation.name} reads keys that match {shown}; they {where}"
            words = said(message, "give the pattern the hash tag of the sorted key, as {tag}")
            yield evaluation.violation("slot.cross", access.position, access.key, None, words)
            return

    def _bindings(self, evaluation: Evaluation, accesses: Sequence[Access]) -> Iterator[Found | None]:
        """Checks that a bound placeholder has one value in a command, except on keys that a grant covers."""
        seen: dict[str, bytes] = {}
        for access in accesses:
            if evaluation.budget.works(cost(access.key)):
                yield None
            target = evaluation.target(access.key)
            if target is None or not target.alike or self.grants.cover(evaluation, access, target):
                continue
            difference = differing(seen, target.alike)
            if difference is not None:
                placeholder, value, first = difference
                told = f"the {placeholder} {printable(value)}, an earlier key {printable(first)}"
                shown = evaluation.wording.shown(access.key, target)
                message = f"{evaluation.name} {shown} has {told}"
                hint = f"the keys of one command share their {placeholder}"
                yield evaluation.about("key.format", access, target, said(message, hint))
                return


class Evaluator:
    """Evaluates commands against one compiled policy, as it is at any time."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self.validity = Validity()  # of the answers that others keep
        self.basis = ""  # of the evidence that others draw; "": the policy alone
        self._clock = clock
        self._take(policy.without_lapsed(clock()))

    def _take(self, policy: CompiledPolicy) -> None:
        """Evaluates by this policy from now on, and forgets all answers under the earlier one."""
        self.policy = policy
        self.checks = CommandChecks(policy, self._clock)
        self._next_lapse = policy.next_lapse()
        self._renew()

    def _renew(self) -> None:
        self.validity.is_current = False
        self.validity = Validity()

    def forget_permissions(self) -> None:
        """Forgets all kept answers, because the command table has changed."""
        self._renew()
        self.checks.permissions.forget()
        self.checks.grants.forget()

    def decide(self, service: int, argv: Sequence[bytes], values: Values = ()) -> Verdict:
        """Returns the verdict on a command (argv with its name first) of the service with this number.

        `values` are the caller's (CompiledPolicy.values).
        """
        return self.evaluate(Asker(service, values), argv, extract(argv))

    def evaluation(
        self, asker: Asker, argv: Sequence[bytes], touches: Touches, keys: KeyTargets | None = None
    ) -> Evaluation:
        """Begins the evaluation of a command that touches these keys and channels. The `checks` of this
        moment go through it to its end. `keys` are used if the policy that has classified them is that of
        this moment."""
        if self._next_lapse is not None and self._clock() >= self._next_lapse:
            self._take(self.policy.without_lapsed(self._clock()))
        if keys is None or keys.policy is not self.policy:
            keys = KeyTargets(self.policy)
        return Evaluation(self.checks.wording, asker, argv, touches, keys)

    def standing_of_all(self, service: int, command: Command, access: Access, target: Target) -> Standing:
        """The standing of the service for every access of this kind to this target, at any time.

        If rights depend on the caller, it holds for the caller's own keys. The decision cache keeps it.
        """
        if target.kind in BY_KIND or self._depends_on_more(service):
            return _UNSURE
        if self.checks.permissions.reason(service, command):
            return _UNSURE
        held = target.rights[service] & ~target.denied[service]
        return self.checks.keys.standings.of(command.name, command, access, target, held)

    def _depends_on_more(self, service: int) -> bool:
        """Whether the service's rights depend on the time."""
        return self._next_lapse is not None and service in self.policy.grants

    def admits_alone(self, service: int, name: bytes) -> bool:
        """Whether a command without arguments breaks nothing, at any time."""
        if self._next_lapse is not None and service in self.policy.grants:
            return False
        return not self.decide(service, [name]).violations

    def has_grants(self, service: int, name: str) -> bool:
        """Whether the service has grants of this command, which cover some keys of a target or all."""
        return service in self.policy.grants and bool(self.checks.grants.of(service, name))

    @property
    def may_lapse(self) -> bool:
        """Whether rights or grants of the policy end at some time."""
        return self._next_lapse is not None

    def fails_alike(self, service: int, name: str) -> bool:
        """Whether a command with one key breaks the same rules on rights, form and time to live for every key
        of the same target, or of none."""
        return self._next_lapse is None and not self.has_grants(service, name)

    def evaluate(self, asker: Asker, argv: Sequence[bytes], touches: Touches) -> Verdict:
        """Returns the verdict on a command that touches these keys and channels."""
        return driven(self.verdict(self.evaluation(asker, argv, touches)))

    def verdict(self, evaluation: Evaluation) -> Generator[None, None, Verdict]:
        """Returns the verdict on a command, and yields where its evaluation may pause."""
        gathering: Gathering[None] = Gathering()
        for found in self.checks.violations(evaluation):
            if found is None:
                yield
            else:
                gathering.take(found, None)
        listed = tuple(violation for violation, _ in gathering.listed())
        return Verdict(listed) if listed else ALLOWED
