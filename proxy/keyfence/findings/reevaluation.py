"""Evaluates findings again, under a policy that was put in force.

Rule: a finding is resolved only if all of it is known to keep the rule now. The examples are all of it if
they account for all violations, and none of them is masked: a masked one stands for several commands.
Otherwise the rule must have one answer for all commands of the finding. What an example leaves out (values,
the caller, secrets) is never guessed.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from keyfence.commands.effects import all_types_of
from keyfence.commands.model import DELETE, READ, WRITE, Access, Command, Script, Touches
from keyfence.commands.table import lookup
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.requirements import rules_of
from keyfence.policy.compiled.tenants import NOBODY
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.reach.callers import depends_on_the_caller, makes_keys_of_arguments
from keyfence.policy.reach.channels import key_of
from keyfence.policy.rules import RULES, rules_at, rules_with
from keyfence.policy.verdict import Violation, script_in
from keyfence.policy.wording.command_log import Recorded, from_line
from keyfence.telemetry.counters import OTHER

from .finding import AT_REST, Finding, State
from .proof.basis import InForce
from .proof.changes import ON_CHANNELS, Changes
from .proof.shapes import Sample, channels_of, keys_of, keys_of_entry, only_name_of
from .queries import Reader
from .readiness import is_resolved, is_waived

# Rules on values, which examples do not hold.
ON_VALUES = frozenset(rule.name for rule in RULES.values() if rule.on_values)
# Rules on the session, on Redis' answers or on faults of keyfence: no example can decide.
NEVER = frozenset(rules_at("session"))
# Rules on the form of a key: one answer for all commands on keys of one target that need the same rights.
ON_FORM = frozenset(rules_with("form"))
ON_TYPES = frozenset(rules_with("type"))
# Rules with one answer for all commands of one name on keys, or channels, of one target.
BY_PLACE = ON_FORM | frozenset(ON_CHANNELS) | ON_TYPES | frozenset(rules_with("rights"))
# Rules that a command can break only if the key's entry requires something, or words of the key a type.
REQUIRED = frozenset((*rules_at("type"), *rules_at("content"), *rules_at("lifetime")))

Keeps = Callable[[str, float], bool]


def keeps_nothing(_entry: str, _since: float) -> bool:
    return False


def resolved(
    policy: CompiledPolicy,
    findings: Iterable[Finding],
    since: float,
    keeps: Keeps = keeps_nothing,
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


def evaluated_again(
    policy: CompiledPolicy, findings: Iterable[Finding], keeps: Keeps = keeps_nothing
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


def keeps_its_rule(evaluator: Evaluator, finding: Finding, keeps: Keeps = keeps_nothing) -> bool:
    """Whether every violation of a finding is known to keep its rule under the evaluator's policy."""
    policy = evaluator.policy
    if finding.rule in NEVER or finding.counts.get("late"):
        return False
    if finding.rule not in RULES or finding.service not in policy.services:
        return False
    if _admits_script(policy, finding) or _requires_nothing(policy, finding, keeps):
        return True
    if finding.rule in ON_VALUES:
        return False
    examples = [_example(line["command"]) for line in finding.examples]
    known = [one for one in examples if one is not None]
    if not known or len(known) < len(examples):
        return False
    if not all(_allows(evaluator, finding, one) for one in known):
        return False
    shown = sum(max(0, example.get("times", 1)) for example in finding.examples)
    if finding.total <= shown and not any(one.is_masked for one in known):
        return True
    if finding.rule not in BY_PLACE:
        return False
    samples = _samples_of(policy, finding, keeps)
    return bool(samples) and all(_allows_alike(evaluator, finding, one, samples) for one in known)


def _admits_script(policy: CompiledPolicy, finding: Finding) -> bool:
    """Whether the policy lets the service call the script that a finding is about, whatever the call
    declares."""
    script = script_in(finding.rule, finding.shape)
    if script in ("", OTHER):
        return False
    kind: Literal["sha1", "function"] = "function" if finding.command.startswith("FCALL") else "sha1"
    if policy.registration(Script(kind, 0, script.encode("utf-8", "surrogateescape"), (), ())) is not None:
        return True
    word = policy.strictest_on_unregistered(policy.number(finding.service))
    return word != "forbid" if finding.command == "SCRIPT LOAD" else word == "declared"


def _requires_nothing(policy: CompiledPolicy, finding: Finding, keeps: Keeps) -> bool:
    """Whether the finding's rule asks nothing of commands on its keys any more."""
    if finding.rule not in REQUIRED:
        return False
    samples = _samples_of(policy, finding, keeps)
    return bool(samples) and not any(
        target is None or _requires(policy, target, finding.rule) for _, target in samples
    )


def _requires(policy: CompiledPolicy, target: Target, rule: str) -> bool:
    """Whether a rule of REQUIRED asks something of commands on a target's keys."""
    if target.entry is not None and rule in rules_of(target.entry):
        return True
    return rule in ON_TYPES and bool(policy.home(target).type_words)


def _samples_of(policy: CompiledPolicy, finding: Finding, keeps: Keeps) -> Sequence[Sample]:
    """Names that answer for all those that the finding is about; none if there are no such names."""
    if policy.grants.get(policy.number(finding.service)):
        return ()  # a grant may cover some of the names only
    return _channels_of(policy, finding) if finding.rule in ON_CHANNELS else _keys_of(policy, finding, keeps)


def _channels_of(policy: CompiledPolicy, finding: Finding) -> Sequence[Sample]:
    """A channel of each target that channels of the finding may belong to; none if that is not known, or if
    one channel does not stand for all channels of its target."""
    only = only_name_of(finding.shape)
    if only is not None:
        return [Sample(only, None)]
    found = channels_of(policy, finding.shape) if finding.shape else []
    for _, target in found:
        # In such a channel, the key decides; and a channel that no target covers may be one of Redis' own.
        if target is None or target.kind == "keyspace" or policy.depends_on_caller(target):
            return ()
    return found


def _keys_of(policy: CompiledPolicy, finding: Finding, keeps: Keeps) -> Sequence[Sample]:
    """A key of each target that keys of the finding may belong to; none if that is not known, or if one key
    does not stand for all keys of its target."""
    found: Sequence[Sample] = ()
    if finding.shape:
        found = keys_of(policy, finding.shape)
    elif finding.entry and keeps(finding.entry, finding.first):
        found = keys_of_entry(policy, finding.entry)
    known = all(_answers_for_all(policy, target, finding.rule) for _, target in found)
    return found if known else ()


def _answers_for_all(policy: CompiledPolicy, target: Target | None, rule: str) -> bool:
    """Whether one key stands for all keys of its target, as far as a rule goes."""
    if target is None:
        return True
    if rule == "key.format" and not (target.names_sure and not target.alike):
        return False
    has_type = target.entry is not None and target.entry.types
    if rule in ON_TYPES and not has_type and policy.home(target).type_words:
        return False  # words of the key say the type
    return not policy.depends_on_caller(target)


def _allows_alike(evaluator: Evaluator, finding: Finding, one: Recorded, samples: Sequence[Sample]) -> bool:
    """Whether commands like an example keep the finding's rule with each of these names in place of those
    that the finding is about, whatever else differs in the commands."""
    on_channels = finding.rule in ON_CHANNELS
    if any(channel.is_pattern for channel in one.touches.channels) and only_name_of(finding.shape) is None:
        return False  # one pattern does not stand for others
    for name, _ in samples:
        with_name = (
            _on_channel(one.touches, name) if on_channels else _on_key(one.touches, name, finding.rule)
        )
        if with_name is None or depends_on_the_caller(evaluator.policy, with_name):
            return False
        if finding.rule in _broken(evaluator, one._replace(touches=with_name)):
            return False
    return True


def _on_channel(touches: Touches, name: bytes) -> Touches | None:
    """A command like this one on one channel; None if the command does not show what it does with it."""
    if touches.script is not None or not touches.channels:
        return None
    return Touches(touches.command, channels=tuple(one._replace(name=name) for one in touches.channels))


def _on_key(touches: Touches, key: bytes, rule: str) -> Touches | None:
    """A command like this one on one key, as strict as the rule can be; None if the command does not show
    what it does with it."""
    heard = (Access(one.position, key, READ) for one in touches.channels if key_of(one) is not None)
    accesses = (*touches.accesses, *heard)
    if not accesses or touches.pattern is not None:
        return None
    if rule not in ON_FORM:
        # The rights to use a key also depend on what a script does, and on where content comes from.
        carries = any(one.content is not None and one.content.carried is not None for one in accesses)
        if touches.script is not None or carries:
            return None
    if rule in ON_TYPES:
        # Options decide which kinds of keys a command has: SORT … STORE also has one for a list.
        types = _types_of(touches.command)
        return Touches(touches.command, tuple(Access(1, key, READ, one) for one in types)) if types else None
    on_key = (access._replace(key=key, content=None) for access in accesses)
    return Touches(touches.command, tuple(_strictest(access, rule) for access in on_key))


def _types_of(command: Command | None) -> tuple[tuple[str, ...], ...]:
    """The types of the keys that a command is for, by the role of the key; none if they are not known."""
    row = lookup(command.name.encode().split(b" ")) if command is not None else None
    return all_types_of(row) if row is not None and row.command is command else ()


def _strictest(access: Access, rule: str) -> Access:
    """The access with the needs of the strictest form of its command, as far as the rule goes."""
    if rule == "key.legacy":
        return access._replace(needs=READ | WRITE)
    return access._replace(needs=access.needs & ~DELETE)


def _example(line: Mapping[str, object]) -> Recorded | None:
    """The command of an example; None if it is not known as a whole."""
    try:
        one = from_line(dict(line))
    except ValueError:
        return None
    return None if one.is_cut else one


def _allows(evaluator: Evaluator, finding: Finding, one: Recorded) -> bool:
    """Whether a command of the finding keeps its rule. False: it does not, or nobody can tell."""
    policy = evaluator.policy
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
    if is_resolved(finding, in_force):
        return Outcome.ALLOWED
    if is_waived(finding, in_force) or (finding.state is State.WAIVED and in_force.modes is None):
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
    """The rules that a command breaks if its caller is nobody, who has no key of its own."""
    return {violation.rule for violation in _violations(evaluator, one)}


def _violations(evaluator: Evaluator, one: Recorded) -> tuple[Violation, ...]:
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    asker = Asker(evaluator.policy.number(one.service), evaluator.policy.values(NOBODY))
    return evaluator.evaluate(asker, argv, one.touches).violations
