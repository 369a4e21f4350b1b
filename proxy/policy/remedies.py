"""Why a command doesn't pass, and what would have to change so that it does: for `keyfence explain`.

Rule: a command is offered in place of the one that was sent only if the decider finds the rule kept by it; no
text shows what a secret placeholder holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..commands.model import READ, WRITE, Touches
from ..commands.table import COMMANDS
from ..commands.words import fold, word
from .compiled import CompiledPolicy, Target
from .decide import Decider
from .diagnostics import did_you_mean
from .families import own_members
from .masking import fill, shown_in, standard_key
from .patterns import Hole, KeyPattern, Literal, Mismatch
from .show import printable, shown_name
from .tenants import Values, own_key, own_values
from .units import duration_text
from .verdict import Violation


class Remedy(NamedTuple):
    """One thing that would let a command keep a rule."""

    rule: str
    text: str
    command: list[bytes]  # to send instead, secrets and all; empty where only the policy can change it


class _Question(NamedTuple):
    policy: CompiledPolicy
    decider: Decider
    service: int
    argv: Sequence[bytes]
    touches: Touches
    violation: Violation
    values: Values

    @property
    def who(self) -> str:
        return self.policy.services[self.service]

    @property
    def target(self) -> Target | None:
        key = self.violation.key
        return self.policy.target(key) if key is not None else None

    @property
    def name(self) -> str:
        return self.touches.command.name if self.touches.command else shown_name(self.argv[0])

    def instead(self, changed: Sequence[bytes]) -> list[bytes]:
        """The changed command, where it keeps the rule and breaks no other that the first one kept."""
        before = {one.rule for one in self.decider.decide(self.service, self.argv, self.values).violations}
        after = {one.rule for one in self.decider.decide(self.service, changed, self.values).violations}
        return list(changed) if self.violation.rule not in after and after <= before else []

    def with_key(self, key: bytes) -> list[bytes]:
        """The command on another key."""
        at, argv = self.violation.position, list(self.argv)
        if not 0 < at < len(argv):
            return []
        argv[at] = key
        return self.instead(argv)


def remedies(
    policy: CompiledPolicy,
    service: int,
    argv: Sequence[bytes],
    touches: Touches,
    found: Sequence[Violation],
    values: Values = (),
) -> list[Remedy]:
    """What would have to change for each violation, in their order."""
    decider = Decider(policy)
    told: dict[tuple[str, str], Remedy] = {}
    for violation in found:
        question = _Question(policy, decider, service, argv, touches, violation, values)
        for text, command in _WAYS.get(violation.rule, _nothing)(question):
            told.setdefault((violation.rule, text), Remedy(violation.rule, text, command))
    return list(told.values())


Ways = Iterator[tuple[str, list[bytes]]]


def _nothing(_question: _Question) -> Ways:
    return iter(())


# -- rights


def _rights(question: _Question) -> Ways:
    target, violation = question.target, question.violation
    right, word, field = (READ, "read", "readers")
    if violation.rule == "scope.write":
        right, word, field = (WRITE, "write", "writers")
    if target is None:
        return
    key = question.violation.key or b""
    if target.rights[question.service] & right & ~target.held(question.service, key, question.values):
        tenancy = target.tenancy
        own = own_key(key, target.pattern, tenancy, question.values) if tenancy is not None else None
        yield violation.hint, question.with_key(own) if own is not None else []
        return
    if target.is_others(question.service) and not _owns(question, target):
        yield from _own_key(question, target)
        return
    place = f"the scope {target.name}" if target.kind == "scope" else f"the entry {target.name}"
    if word == "read" and target.rights[question.service] & right & ~target.denied[question.service]:
        yield from _hint(question)  # it may read it, but others may not to whom it would show it
        return
    if target.denied[question.service] & right:
        yield f"deny_{word} takes it from {question.who}: it would have to go for {place}", []
        return
    if word == "write" and target.written_by and target.rights[question.service] & WRITE:
        yield f"only a script may write here: {', '.join(sorted(target.written_by))}", []
        return
    if question.policy.name_services:
        holders = target.names_with(right, question.policy.services)
        told = ", ".join(holders) if holders else "nobody"
        yield f"{told} may {word} it; or list {question.who} under {field} of {place}", []
    else:
        yield f"list {question.who} under {field} of {place}", []


def _owns(question: _Question, target: Target) -> bool:
    """Whether the service has rights on another key with the same bound values."""
    others = (one for one in question.policy.targets if one.bound == target.bound)
    return any(one.rights[question.service] for one in others)


def _own_key(question: _Question, target: Target) -> Ways:
    """The same key with the service's own values, in place of those of another."""
    key = question.violation.key or b""
    told = ", ".join(f"<{name}> {printable(value)}" for name, value in target.bound)
    yield f"{told} belongs to others; bind it to {question.who} too", []
    captured = target.pattern.capture(key)
    family = [
        one
        for one in question.policy.targets
        if (one.kind, one.name, one.home) == (target.kind, target.name, target.home) and one.bound
    ]
    for own in own_members(family, question.service) if captured is not None else ():
        if {hole.name for hole in own.pattern.holes} <= (captured or {}).keys():
            meant = fill(own.pattern, captured or {})
            command = question.with_key(meant)
            if command:
                yield f"or use its own key {shown_in(question.policy, meant, own)}", command


def _legacy(question: _Question) -> Ways:
    target, key = question.target, question.violation.key
    if target is None or key is None:
        return
    standard = standard_key(key, target, question.service, own_values(target.tenancy, question.values))
    shown = shown_in(question.policy, key, target) == printable(key)
    command = question.with_key(standard.encode()) if shown and "<" not in standard else []
    yield f"use the standard key {standard}", command
    yield f"or let the legacy form allow it: its entry is {target.name}", []


# -- names


def _format(question: _Question) -> Ways:
    target, key = question.target, question.violation.key
    if target is None or key is None:
        return
    pattern = target.standard
    if target.kind != "malformed" or pattern is None:
        yield from _nearest(question)
        return
    wrong = pattern.mismatch(key)
    if wrong is not None:
        secrecy, byte = question.policy.secrecy, key[wrong.offset : wrong.offset + 1]
        secret = bool(target.secrets) or (secrecy is not None and secrecy.may_hold(byte))
        told = _mismatch_text(wrong, key, pattern, secret)
        yield f"{told}; the form is {target.text}", []


def _mismatch_text(wrong: Mismatch, key: bytes, pattern: KeyPattern, secret: bool) -> str:
    """What is wrong with a key, where, and what may stand there."""
    hole = next((one for one in pattern.holes if one.name == wrong.placeholder), None)
    where = f"<{hole.name}>" if hole is not None else "the form's own text"
    admits = _admits(hole) if hole is not None else ""
    segment = key[: wrong.offset].count(b":") + 1
    if wrong.kind == "end":
        return f"the key ends where {where} should come{admits}"
    if wrong.kind == "length":
        return f"{where} is too long or too short in segment {segment}{admits}"
    if pattern.matches(key[: wrong.offset]):
        last = pattern.holes[-1]
        return f"the key goes on at offset {wrong.offset}, where <{last.name}> ends{_admits(last)}"
    byte = "a byte" if secret else repr(printable(key[wrong.offset : wrong.offset + 1]))
    return f"{byte} at offset {wrong.offset}, in segment {segment}, isn't of {where}{admits}"


def _admits(hole: Hole) -> str:
    return f", which admits {hole.expression.text}"


def _nearest(question: _Question) -> Ways:
    """The entry whose form is nearest, with what to write for it."""
    key = question.violation.key
    if key is None:
        return
    entries = [
        one for one in question.policy.targets if one.kind == "entry" and not one.is_others(question.service)
    ]
    near = sorted(entries, key=lambda one: -_likeness(one.pattern, key))[:1]
    for target in near:
        if _likeness(target.pattern, key) >= 0.5:
            meant = _as_meant(target.pattern, key)
            command = question.with_key(meant) if meant is not None else []
            yield f"the nearest entry is {target.name}: {target.text}", command
    yield "or register the key: an entry of its own under keys, or another form of one", []


def _likeness(pattern: KeyPattern, key: bytes) -> float:
    """How much a key looks like a pattern's keys, from 0 to 1: segment by segment."""
    wanted, given = pattern.text.split(":"), printable(key, 512).split(":")
    score = 0.0
    for one, other in zip(wanted, given, strict=False):
        score += 0.75 if "<" in one else difflib.SequenceMatcher(None, one, other).ratio()
    return score / max(len(wanted), len(given))


def _as_meant(pattern: KeyPattern, key: bytes) -> bytes | None:
    """The pattern filled with the key's own segments, where they fit; None where they don't."""
    wanted, given = pattern.text.split(":"), key.split(b":")
    if len(wanted) != len(given) or "\\" in pattern.text:
        return None
    filled = b":".join(
        other if "<" in one else one.encode() for one, other in zip(wanted, given, strict=True)
    )
    return filled if pattern.matches(filled) else None


def _length(question: _Question) -> Ways:
    yield question.violation.hint or "shorten the key", []


def _charset(question: _Question) -> Ways:
    key = question.violation.key or b""
    lowered = key.lower()
    command = (
        question.with_key(lowered) if lowered != key and question.violation.shown == printable(key) else []
    )
    yield question.violation.hint or "leave these bytes out", command


def _hint(question: _Question) -> Ways:
    if question.violation.hint:
        yield question.violation.hint, []


def _scan(question: _Question) -> Ways:
    hint = question.violation.hint
    if hint:
        yield hint, []
    yield f"or give {question.who} the right to read all that it matches", []


# -- values


def _type(question: _Question) -> Ways:
    target = question.target
    types = target.entry.types if target is not None and target.entry is not None else ()
    access = next(
        (one for one in question.touches.accesses if one.position == question.violation.position), None
    )
    if question.violation.hint:
        yield question.violation.hint, []
    if target is not None and access is not None and types and access.types:
        yield f"or let {target.name} be of type {' or '.join(access.types)} too", []


def _ttl(question: _Question) -> Ways:
    target = question.target
    rule = target.entry.ttl if target is not None and target.entry is not None else None
    if rule is None:
        yield from _hint(question)
        return
    wanted = rule.default or rule.max or rule.min or 60_000
    argv = list(question.argv)
    if question.violation.rule == "ttl.forbidden":
        at = question.violation.position
        without = argv[: at - 1] + argv[at + 1 :]
        yield "leave the time to live out", question.instead(without) if 2 < at < len(argv) else []
    elif question.violation.rule == "ttl.required":
        text = f"bring the time to live with it, {duration_text(wanted)} for example"
        yield text, question.instead([*argv, b"EX", str(max(wanted // 1000, 1)).encode()])
    else:
        at = question.violation.position
        text = f"a time to live of {duration_text(wanted)}, for example"
        if 0 < at < len(argv):
            argv[at] = str(wanted if _in_milliseconds(argv, at) else max(wanted // 1000, 1)).encode()
        yield text, question.instead(argv)


def _in_milliseconds(argv: Sequence[bytes], at: int) -> bool:
    return word(argv[at - 1]) == b"PX" or fold(argv[0]) in (b"PEXPIRE", b"PSETEX")


def _fields(question: _Question) -> Ways:
    target, at = question.target, question.violation.position
    fields = target.entry.fields if target is not None and target.entry is not None else None
    if fields is None or not 0 < at < len(question.argv):
        yield from _hint(question)
        return
    near = fields.meant(question.argv[at])
    if near is None and not fields.hides_names:
        names = [name.decode(errors="replace") for name in fields.named]
        close = difflib.get_close_matches(question.argv[at].decode(errors="replace"), names, n=1)
        near = close[0].encode() if close else None
    if near is not None:
        argv = list(question.argv)
        argv[at] = near
        yield f"the nearest field is {printable(near)}", question.instead(argv)
    yield f"its fields: {fields.text}; or list this one under fields of {target.name if target else ''}", []


def _maxlen(question: _Question) -> Ways:
    target = question.target
    entry = target.entry if target is not None else None
    if entry is None or entry.maxlen is None:
        return
    trim = [b"MAXLEN", *([] if entry.maxlen_exact else [b"~"]), str(entry.maxlen).encode()]
    argv = list(question.argv)
    yield question.violation.hint, question.instead([*argv[:2], *trim, *_untrimmed(argv[2:])])


def _size(question: _Question) -> Ways:
    target = question.target
    raised = f"; or raise the limit of {target.name}" if target is not None else ""
    yield f"{question.violation.hint}{raised}", []


def _untrimmed(arguments: Sequence[bytes]) -> list[bytes]:
    """XADD's arguments behind the key without a MAXLEN of their own."""
    if not arguments or word(arguments[0]) != b"MAXLEN":
        return list(arguments)
    return list(arguments[3 if arguments[1:2] and word(arguments[1]) in (b"~", b"=") else 2 :])


# -- commands, databases, channels, scripts


def _forbidden(question: _Question) -> Ways:
    if question.violation.key is not None:
        name = question.violation.entry or "the entries among these"
        yield f"commands of {name} would have to admit {question.name}, for every service", []
        return
    able = [
        name
        for number, name in enumerate(question.policy.services)
        if question.decider.judge(number, question.argv[:1], Touches(question.touches.command)).allowed
    ]
    if able and question.policy.name_services:
        yield f"{', '.join(able)} may use it", []
    yield f"grant it: grants: {{{question.who}: {{commands: [{question.name}]}}}}", []


def _unknown(question: _Question) -> Ways:
    near = did_you_mean(question.name, [name.decode() for name in COMMANDS]).removeprefix("; ")
    if near:
        yield near, []
    yield "or use a command whose keys can be known, or ask for a grant on all keys", []


def _database(question: _Question) -> Ways:
    admitted = sorted(question.policy.databases or ())
    yield f"use database {' or '.join(map(str, admitted))}; or list this one under databases", []


def _channel(question: _Question) -> Ways:
    name = question.violation.key or b""
    channels = [one for one in question.policy.channels if one.kind == "channel"]
    texts = [one.text for one in channels if not one.is_others(question.service)]
    target = next(
        (one for one in question.policy.channels if one.kind == "channel" and one.pattern.matches(name)), None
    )
    field = "publishers" if question.violation.rule == "channel.write" else "subscribers"
    is_publisher = target is not None and target.rights[question.service] & WRITE
    if target is not None and field == "publishers" and target.written_by and is_publisher:
        yield f"only a script may publish here: {', '.join(sorted(target.written_by))}", []
    elif target is not None:
        yield f"list {question.who} under {field} of the channel {target.name}", []
    else:
        near = did_you_mean(printable(name), texts).removeprefix("; ")
        yield near or "no channel of the policy is like this one; register it under channels", []


def _script(question: _Question) -> Ways:
    if question.violation.hint:
        yield question.violation.hint, []
    names = sorted(
        {one.name for one in (*question.policy.scripts.values(), *question.policy.functions.values())}
    )
    if names:
        yield f"the policy knows {', '.join(names)}", []


def _slot(question: _Question) -> Ways:
    tags = {
        part.text
        for target in question.policy.targets
        for part in target.pattern.parts
        if isinstance(part, Literal)
    }
    tagged = any(b"{" in text for text in tags)
    yield "give the keys one hash tag, as {tag}" + ("; the policy's forms have one" if tagged else ""), []


_WAYS: Mapping[str, Callable[[_Question], Ways]] = {
    "scope.read": _rights,
    "scope.write": _rights,
    "key.legacy": _legacy,
    "key.format": _format,
    "key.unregistered": _nearest,
    "key.length": _length,
    "key.charset": _charset,
    "key.hash_tag": _hint,
    "slot.cross": _slot,
    "scan.scope": _scan,
    "channel.read": _channel,
    "channel.write": _channel,
    "script.keys": _script,
    "script.unregistered": _script,
    "type.mismatch": _type,
    "ttl.required": _ttl,
    "ttl.forbidden": _ttl,
    "ttl.range": _ttl,
    "field.unknown": _fields,
    "value.invalid": _hint,
    "value.size": _size,
    "key.members": _size,
    "stream.maxlen": _maxlen,
    "command.unknown": _unknown,
    "command.forbidden": _forbidden,
    "database.forbidden": _database,
}
