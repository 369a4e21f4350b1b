"""The replay of logged commands under two policies: which rules services would newly break, and which no
longer.

Rule: the replay never guesses what a log omits. Rules on values are undecided for commands that wrote values,
rules on keys are undecided for masked keys, and all rules for commands of which the log has only a part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from keyfence.commands.effects import effect_of
from keyfence.commands.model import Access, Touches
from keyfence.commands.table import COMMANDS
from keyfence.commands.table import Row as CommandRow
from keyfence.policy.compiled.policy import CompiledPolicy, Entry
from keyfence.policy.compiled.requirements import requirements_of
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.patterns.set_operations import TooLarge
from keyfence.policy.reach.callers import depends_on_the_caller, makes_keys_of_arguments
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import Severity, Verdict, Violation
from keyfence.policy.wording.command_log import MASK, Recorded, feed_lines, from_line, keeps_its_kind
from keyfence.policy.wording.masking import shown_in

from .diff import differing_places
from .diff_text import plain

ON_VALUES = "undecided"
ON_PARTS = "cut"  # the log has only a part of the command
ON_SECRETS = "masked"  # the log has other text in place of a secret


@dataclasses.dataclass(slots=True)
class Row:
    """Equal commands whose verdict changes in the same way under the new policy."""

    service: str
    command: str
    rule: str  # or ON_VALUES, ON_PARTS, ON_SECRETS
    entry: str
    what: str  # breaks, mends, undecided
    count: int
    example: str


class _Break(NamedTuple):
    """How a command breaks a rule."""

    entry: str
    severity: Severity


_Broken = dict[str, _Break]  # by rule


class Replay:
    """Evaluates logged commands under an old and a new policy.

    For a decision log, the logged decision takes the place of the old policy's verdict.
    """

    def __init__(self, old: CompiledPolicy, new: CompiledPolicy) -> None:
        self._old = Evaluator(old)
        self._new = Evaluator(new)
        self.commands = 0
        self.undecided = 0
        self._rows: dict[tuple[str, str, str, str, str], Row] = {}

    def rows(self) -> list[Row]:
        """Returns the changes: newly broken rules first, then by frequency."""
        order = {"breaks": 0, "mends": 1, "undecided": 2}
        return sorted(self._rows.values(), key=lambda row: (order[row.what], -row.count, row.service))

    def feed(self, lines: Iterable[bytes], complain: Callable[[str], None]) -> None:
        """Replays the lines of a command log or a decision log.

        Calls `complain` for a line that is neither.
        """

        def take(line: dict[str, Any]) -> None:
            if "rule" in line:
                self._decision(line)
            else:
                self._command(from_line(line))

        feed_lines(lines, take, lambda number, fault: complain(f"line {number}: {fault}"))

    def _command(self, one: Recorded) -> None:
        self.commands += one.times
        if one.is_cut:
            self.undecided += one.times
            self._row(one, ON_PARTS, "", "undecided", one.times)
            return
        if one.is_masked and self._depends_on_secrets(one.touches):
            self.undecided += one.times
            self._row(one, ON_SECRETS, "", "undecided", one.times)
            return
        script = one.touches.script
        if any(makes_keys_of_arguments(evaluator.policy, script) for evaluator in (self._old, self._new)):
            self.undecided += one.times
            self._row(one, "script.keys", "", "undecided", one.times)
            return
        if any(depends_on_the_caller(evaluator.policy, one.touches) for evaluator in (self._old, self._new)):
            self.undecided += one.times
            self._row(one, "scan.scope", "", "undecided", one.times)
            return
        before, after = (_broken(verdict_on(each, one).violations) for each in (self._old, self._new))
        if not self._compare(one, before, after) and one.has_values:
            self._values(one, before)

    def _depends_on_secrets(self, touches: Touches) -> bool:
        """Whether the text in place of a secret may decide: the old policy may read a name otherwise than
        the one that was sent, or the new policy asks something else of it."""
        old, new = self._old.policy, self._new.policy
        for access in touches.accesses:
            if _form_of(old, access.key) != _form_of(new, access.key) or self._hides_its_form(access.key):
                return True
            if access.content is not None and any(MASK in field.name for field in access.content.fields):
                return True
        masked = [one.name for one in touches.channels if MASK in one.name]
        forms = [(_channel_form(old, name), _channel_form(new, name)) for name in masked]
        return any(before is None or before != after for before, after in forms)

    def _hides_its_form(self, key: bytes) -> bool:
        """Whether a mask stands in a key of no entry, and the new policy asks something else of some key
        of this kind."""
        if MASK not in key:
            return False
        place = self._old.policy.classifier.first(key)
        is_registered = place >= 0 and self._old.policy.targets[place].kind in ("entry", "legacy")
        is_changed = self._changed is None or place in self._changed
        return not keeps_its_kind(key) or (not is_registered and is_changed)

    @cached_property
    def _changed(self) -> frozenset[int] | None:
        """The places of the old policy where some key has another meaning in the new one; None if the
        policies are too large to be compared."""
        try:
            return frozenset(old for old, _ in differing_places(self._old.policy, self._new.policy))
        except TooLarge:
            return None

    def _compare(self, one: Recorded, before: _Broken, after: _Broken) -> bool:
        """Counts the rules that only one policy has broken. A should that becomes a must is broken by it, as
        the command is refused then; a must that becomes a should is mended. Returns whether any is broken."""
        breaks = False
        for rule, (entry, severity) in after.items():
            if rule not in before or (severity == "must" and before[rule].severity == "should"):
                self._row(one, rule, entry, "breaks", one.times)
                breaks = True
        for rule, (entry, severity) in before.items():
            if rule not in after or (severity == "must" and after[rule].severity == "should"):
                self._row(one, rule, entry, "mends", one.times)
        return breaks

    def _values(self, one: Recorded, before: _Broken) -> None:
        """Counts the command as undecided if the two policies have different requirements on its values, or
        if the old one saw a command for another type and so asked nothing of the values."""
        for access in one.touches.accesses:
            if access.content is None:
                continue
            old, new = self._old.policy.target(access.key), self._new.policy.target(access.key)
            if new is None or new.entry is None or not new.entry.on_content:
                continue
            is_new = old is None or _values_text(old.entry) != _values_text(new.entry)
            if is_new or "type.mismatch" in before:
                self.undecided += one.times
                self._row(one, ON_VALUES, new.name, "undecided", one.times)

    def _decision(self, line: Mapping[str, Any]) -> None:
        """Finds whether the new policy still has a logged violation. Only rules on keys can be decided."""
        try:
            key, rule, service = line["key"], str(line["rule"]), str(line["service"])
            count = 1 + int(line.get("merged", 0))
            command, position = str(line["command"]), int(line["position"])
        except (KeyError, TypeError, ValueError) as exc:
            raise ValueError(f"this is not a line of a decision log ({type(exc).__name__}: {exc})") from None
        self.commands += count
        access = _access_of(command, key, position)
        if access is None or not rule.startswith(("scope.", "key.")):
            self.undecided += count
            return
        evaluator = self._new
        target = evaluator.policy.target(access.key)
        if target is not None and target.tenancy is not None:
            self.undecided += count  # the log holds neither the key's owner nor the caller
            return
        touches = Touches(None, (access,))
        argv = [command.encode("utf-8", "surrogateescape")]
        verdict = evaluator.evaluate(Asker(evaluator.policy.number(service)), argv, touches)
        logged: Severity = "should" if line.get("severity") == "should" else "must"
        before = {rule: _Break(str(line.get("entry", "")), logged)}
        after = _broken(one for one in verdict.violations if one.rule.startswith(("scope.", "key.")))
        if rule in after:  # a line shows one violation; whether the others are new is unknown
            after = {rule: after[rule]}
        self._compare(Recorded(service, command, [command, str(key)], touches, count, False), before, after)

    def _row(self, one: Recorded, rule: str, entry: str, what: str, count: int) -> None:
        at = (one.service, one.command, rule, entry, what)
        row = self._rows.get(at)
        if row is None:
            row = self._rows[at] = Row(one.service, one.command, rule, entry, what, 0, self._example(one))
        row.count += count

    def _example(self, one: Recorded) -> str:
        policy = self._new.policy
        keys = [access.key for access in one.touches.accesses]
        return shown_in(policy, keys[0], policy.target(keys[0])) if keys else " ".join(one.argv)


def _form_of(policy: CompiledPolicy, key: bytes) -> tuple[object, ...]:
    """Returns what a policy asks of the name of a key."""
    target = policy.target(key)
    names = plain(policy.names(target))
    if target is None:
        return (names,)
    return names, target.kind, target.pattern, target.entry and target.entry.max_length


def _channel_form(policy: CompiledPolicy, name: bytes) -> KeyPattern | None:
    """Returns the pattern of the registered channels to which one belongs; None for other channels."""
    index = policy.channel_classifier.first(name)
    return policy.channels[index].pattern if index >= 0 and policy.channels[index].kind == "channel" else None


def _values_text(entry: Entry | None) -> str:
    if entry is None:
        return ""
    return "|".join(
        f"{one.item}: {plain(getattr(entry, one.item))}"
        for one in requirements_of(entry)
        if any(RULES[rule].on_values for rule in one.rules(entry))
    )


def _broken(violations: Iterable[Violation]) -> _Broken:
    """Returns the rules that a command breaks. A rule that it breaks as a must and as a should is a must."""
    found: _Broken = {}
    for violation in violations:
        if violation.rule not in found or violation.severity == "must":
            found[violation.rule] = _Break(violation.entry, violation.severity)
    return found


def row_named(command: str) -> CommandRow | None:
    """Returns the row of a command, or of the command that an unknown subcommand belongs to."""
    return COMMANDS.get(command.encode()) or COMMANDS.get(command.partition(" ")[0].encode())


def verdict_on(evaluator: Evaluator, one: Recorded) -> Verdict:
    """Returns the verdict on a recorded command."""
    policy = evaluator.policy
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    values = policy.owners_values(access.key for access in one.touches.accesses)
    return evaluator.evaluate(Asker(policy.number(one.service), values), argv, one.touches)


def _access_of(command: str, key: object, position: int) -> Access | None:
    """Returns the access that a line of the decision log names; None if the key is masked, cut or escaped."""
    if not isinstance(key, str) or not key or key.startswith("sha256:") or key.endswith("…"):
        return None
    if "<" in key or "\\" in key:
        return None
    row = row_named(command)
    if row is None or not row.specs:
        return None
    # The log does not hold the argument's role, so this takes the first key spec at its position.
    role = next(
        (number for number, spec in enumerate(row.specs) if spec.is_key and spec.start == position), 0
    )
    effect = effect_of(row, role)
    return Access(position, key.encode("utf-8", "surrogateescape"), effect.needs, losses=effect.losses)
