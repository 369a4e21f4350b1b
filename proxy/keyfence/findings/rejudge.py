"""Judges findings again, under a policy that was put in force.

Rule: a finding is resolved only if all of it is known to keep the rule now. The examples are all of it if
they account for all violations; otherwise the rule must have one answer for all commands of the finding. What
an example leaves out (values, the caller) is never guessed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from keyfence.commands.model import DELETE, READ, WRITE, Access, Touches
from keyfence.policy.analysis.command_log import Recorded, from_line
from keyfence.policy.analysis.replay import depends_on_the_caller, makes_keys_of_arguments
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.enforcement.waiver_keys import keys_of_shape, waived_keys
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.patterns.set_operations import TooLarge, joint_samples
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import Violation, script_in

from .finding import AT_REST, Finding, State
from .proof.basis import InForce
from .proof.changes import Changes
from .queries import Reader

# Rules on values, which examples do not hold.
ON_VALUES = frozenset({"value.invalid", "value.size", "key.members"})
# Rules on the session, on Redis' answers or on faults of keyfence: no example can decide.
NEVER = frozenset({"internal.error", "session.opaque", "redis.address"})


# Rules with one answer for all commands of a name that need the same rights on keys of one target.
BY_PLACE = frozenset({"scope.read", "scope.write", "key.legacy", "key.format", "key.unregistered"})
# Rules with one answer for all commands of a finding, because it names what they look at.
BY_NAME = frozenset({"script.unregistered"})

Keeps = Callable[[str, float], bool]


def resolved(
    policy: CompiledPolicy,
    findings: Iterable[Finding],
    since: float,
    keeps: Keeps = lambda _entry, _since: False,
) -> list[str]:
    """The ids of the findings that the policy allows as a whole, and that were not seen since a time. `keeps`
    says whether all keys of an entry that were seen since some time are the entry's keys now."""
    evaluator = Evaluator(policy)
    return [
        one.id
        for one in findings
        if one.state is not State.RESOLVED
        and one.revision != policy.revision
        and one.last < since + 1.0
        and keeps_its_rule(evaluator, one, keeps)
    ]


def judged_again(
    policy: CompiledPolicy, findings: Iterable[Finding], keeps: Keeps = lambda _entry, _since: False
) -> tuple[list[str], list[str]]:
    """The ids of the findings that an earlier policy resolved: those that this one allows as well, and the
    others."""
    evaluator = Evaluator(policy)
    allowed: list[str] = []
    others: list[str] = []
    for one in findings:
        if one.state is State.RESOLVED and one.service != AT_REST and one.resolved_by != policy.revision:
            is_kept = one.revision != policy.revision and keeps_its_rule(evaluator, one, keeps)
            (allowed if is_kept else others).append(one.id)
    return allowed, others


class Kept:
    """Which entries have the keys that they had, under all bases that the findings store knows."""

    def __init__(self, reader: Reader, basis: str) -> None:
        self._reader = reader
        self._basis = basis
        self._changes: dict[str, Changes | None] | None = None
        self._begin = 0.0

    def keeps(self, entry: str, since: float) -> bool:
        """Whether all keys of an entry, or scope, that were seen since a time are the entry's keys now."""
        if self._changes is None:
            names, self._begin = self._reader.bases_since(0.0)
            known = self._reader.bases({*names, self._basis})
            new = known.get(self._basis)
            self._changes = {
                name: Changes(known[name], new) if name in known and new is not None else None
                for name in names
            }
        if since < self._begin:
            return False
        return all(one is not None and one.keeps(entry) for one in self._changes.values())


def keeps_its_rule(
    evaluator: Evaluator, finding: Finding, keeps: Keeps = lambda _entry, _since: False
) -> bool:
    """Whether every violation of a finding is known to keep its rule under the evaluator's policy."""
    if finding.rule in NEVER | ON_VALUES or not finding.examples or finding.counts.get("late"):
        return False
    if finding.rule not in RULES or finding.service not in evaluator.policy.services:
        return False
    if not all(_allows(evaluator, finding, example["command"]) for example in finding.examples):
        return False
    shown = sum(max(0, example.get("times", 1)) for example in finding.examples)
    if finding.total <= shown or finding.rule in BY_NAME:
        return True
    if finding.rule not in BY_PLACE:
        return False
    keys = _keys_of(evaluator.policy, finding, keeps)
    return all(_allows_alike(evaluator, finding, example["command"], keys) for example in finding.examples)


def _keys_of(policy: CompiledPolicy, finding: Finding, keeps: Keeps) -> list[bytes]:
    """A key of each target that keys of the finding may belong to; none if that is not known, or if one key
    does not stand for all keys of its target."""
    if policy.grants.get(policy.number(finding.service)):
        return []
    found: list[tuple[Target | None, bytes]] = []
    if finding.shape:
        found = _targets_of_shape(policy, finding)
    elif finding.entry and keeps(finding.entry, finding.first):
        found = [(one, one.pattern.example()) for one in policy.targets if one.name == finding.entry]
    for target, _ in found:
        if target is None:
            continue
        depends_on_name = finding.rule == "key.format" and not (target.names_sure and not target.alike)
        if depends_on_name or policy.depends_on_caller(target):
            return []
    return [key for _, key in found]


def _targets_of_shape(policy: CompiledPolicy, finding: Finding) -> list[tuple[Target | None, bytes]]:
    """The targets that keys of the finding's shape may belong to, with such a key; none if that is not
    known."""
    keys = "" if script_in(finding.rule, finding.shape) else keys_of_shape(finding.shape)
    language = waived_keys((keys,)) if keys else None
    if language is None:
        return []
    automaton = policy.classifier.automaton
    try:
        samples = joint_samples(language, automaton)
    except TooLarge:
        return []
    found: list[tuple[Target | None, bytes]] = []
    for (left, right), key in samples.items():
        if left < 0:
            continue
        members = automaton.sets[right] if right >= 0 else ()
        for target in _by_length(policy, members):
            known = (key,) if target is None else (key, target.pattern.example())
            ours = [one for one in known if policy.target(one) is target]
            if not ours:
                return []
            found.append((target, ours[0]))
    return found


def _by_length(policy: CompiledPolicy, members: Sequence[int]) -> Iterator[Target | None]:
    """The targets among which the length of a key decides, of those that cover its characters."""
    for index in members:
        yield policy.targets[index]
        if not policy.targets[index].pattern.needs_verification:
            return
    yield None


def _allows_alike(
    evaluator: Evaluator, finding: Finding, line: Mapping[str, object], keys: Sequence[bytes]
) -> bool:
    """Whether commands like an example keep the finding's rule on each of these keys, if any, in place of the
    keys of the example that the finding is about, whatever else differs in the commands."""
    one = from_line(dict(line))
    accesses, touches = one.touches.accesses, one.touches
    if not keys or not accesses or touches.script is not None or touches.pattern is not None:
        return False
    if any(access.content is not None and access.content.carried is not None for access in accesses):
        return False
    for key in keys:
        on_key = tuple(_strictest(access._replace(key=key), finding.rule) for access in accesses)
        if finding.rule in _broken(evaluator, one._replace(touches=Touches(touches.command, on_key))):
            return False
    return True


def _strictest(access: Access, rule: str) -> Access:
    """The access with the needs of the strictest form of its command, as far as the rule goes."""
    if rule == "key.legacy":
        return access._replace(needs=READ | WRITE)
    return access._replace(needs=access.needs & ~DELETE)


def _allows(evaluator: Evaluator, finding: Finding, line: Mapping[str, object]) -> bool:
    """Whether a command of the finding keeps its rule. False: it does not, or nobody can tell."""
    try:
        one = from_line(dict(line))
    except ValueError:
        return False
    policy = evaluator.policy
    if one.is_cut:
        return False
    if makes_keys_of_arguments(policy, one.touches.script) or depends_on_the_caller(policy, one.touches):
        return False
    return finding.rule not in _broken(evaluator, one)


class Outcome(enum.StrEnum):
    """What becomes of a finding's commands if its rule is enforced."""

    NOTHING = "no command"  # an audit found keys
    ADVISED = "advised"  # the policy only advises it
    WAIVED = "waived"
    LATE = "late"  # found when it can no longer be refused
    ALLOWED = "allowed"  # the policy in force allows it
    REFUSED = "refused"


def if_enforced(finding: Finding, in_force: InForce) -> Outcome:
    """What becomes of a finding's commands if its rule is enforced."""
    if finding.service == AT_REST:
        return Outcome.NOTHING
    if finding.severity == "should":
        return Outcome.ADVISED
    policy = in_force.policy
    if finding.state is State.RESOLVED and (policy is None or finding.resolved_by == policy.revision):
        return Outcome.ALLOWED
    known = in_force.modes is not None
    names = (finding.service, finding.rule, finding.entry, finding.command, finding.shape)
    if in_force.waives_all(*names) or (finding.state is State.WAIVED and not known):
        return Outcome.WAIVED
    is_late = finding.counts.get("late", 0) == finding.total
    return Outcome.LATE if is_late else Outcome.REFUSED


def as_of_now(evaluator: Evaluator, finding: Finding) -> Finding:
    """A finding with the owner and the hint that the policy in force gives, where it was seen last under
    another one."""
    policy = evaluator.policy
    if finding.revision == policy.revision or finding.service == AT_REST:
        return finding
    homes = {
        policy.home(one).contact for one in policy.targets if finding.entry and one.name == finding.entry
    }
    owner = homes.pop() if len(homes) == 1 else finding.owner
    hint = RULES[finding.rule].remedy if finding.rule in RULES else ""
    for example in finding.examples[:1]:
        try:
            violations = _violations(evaluator, from_line(dict(example["command"])))
        except ValueError:
            break
        for one in violations:
            if one.rule == finding.rule and one.entry == finding.entry:
                owner, hint = one.contact, one.hint
                break
    return dataclasses.replace(finding, owner=owner, hint=hint)


def _broken(evaluator: Evaluator, one: Recorded) -> set[str]:
    return {violation.rule for violation in _violations(evaluator, one)}


def _violations(evaluator: Evaluator, one: Recorded) -> tuple[Violation, ...]:
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    values = evaluator.policy.owners_values(access.key for access in one.touches.accesses)
    verdict = evaluator.evaluate(evaluator.policy.number(one.service), argv, one.touches, values=values)
    return verdict.violations
