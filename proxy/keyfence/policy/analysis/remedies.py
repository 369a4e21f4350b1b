"""Why a command doesn't pass, and what would have to change so that it does: for `keyfence explain`.

Rule: what is said to let a command pass does so (`remedy`); no text shows what a secret placeholder holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keyfence.commands.arguments import fold, word
from keyfence.commands.model import GROUP, READ, WRITE, Channel, Script, Streamed, Touches
from keyfence.commands.table import COMMANDS, KNOWN_COMMANDS
from keyfence.policy.compiled.permissions import EVERY
from keyfence.policy.compiled.policy import MAX_CONFIRMED, TOP, CompiledPolicy, Target
from keyfence.policy.compiled.scripts import registered_as
from keyfence.policy.compiled.tenants import Values, own_key, own_values
from keyfence.policy.compiler.families import own_members
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.masking import fill, shown_in, standard_key
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.patterns.patterns import Hole, KeyPattern, Literal, Mismatch
from keyfence.policy.show import printable
from keyfence.policy.verdict import Violation

from .remedies_values import adding, field_ways, hint_of, maxlen_ways, size_ways, ttl_ways, type_ways
from .remedy import Question, Remedy, Way, Ways

__all__ = ["Remedy", "remedies"]


def remedies(
    policy: CompiledPolicy,
    service: int,
    argv: Sequence[bytes],
    touches: Touches,
    found: Sequence[Violation],
    values: Values = (),
) -> list[Remedy]:
    """What would have to change for each violation, in their order."""
    evaluator = Evaluator(policy)
    told: dict[tuple[str, str], Remedy] = {}
    for violation in found:
        evaluator.values = values
        question = Question(policy, evaluator, service, argv, touches, violation, values)
        for text, command, add in _WAYS.get(violation.rule, _nothing)(question):
            told.setdefault((violation.rule, text), Remedy(violation.rule, text, command, add))
    return list(told.values())


def _nothing(_question: Question) -> Ways:
    return iter(())


def _by_grant(question: Question, text: str, **grant: list[str]) -> Way:
    """A grant of the command. A service has one grant: where it has one already, that isn't opened wider."""
    name = question.name
    is_known = name in KNOWN_COMMANDS or "." in name
    if not is_known or (grant and question.policy.grants.get(question.service)):
        return Way(text)
    lines = {question.who: {"commands": [name], **grant}}
    return Way(f"{text}; or grant it", add={"grants": lines})


# -- rights


def _rights(question: Question) -> Ways:
    target, access = question.target, question.access
    right, verb, field = (READ, "read", "readers")
    if question.violation.rule == "scope.write":
        right, verb, field = (WRITE, "write", "writers")
    if target is None:
        yield from hint_of(question)
        return
    if (
        target.rights[question.service]
        & right
        & ~target.held(question.service, question.violation.key or b"", question.values)
    ):
        yield from _own_tenants_key(question, target)
        return
    section, name = question.place
    place = f"the {'scope' if section == 'scopes' else 'entry'} {name}"
    keeps_books = access is not None and access.needs & GROUP
    if target.successor is not None and target.denied[question.service] & right:
        yield Way(f"{name} is replaced; use {target.successor.text}")
    elif target.denied[question.service] & right:
        yield Way(f"deny_{verb} takes it from {question.who}, for {place} or for a scope around it")
    elif verb == "write" and not keeps_books and not target.is_written_by(_script_name(question)):
        yield Way(f"only a script may write here: {', '.join(sorted(target.written_by))}")
    elif target.bound and _is_anothers(question, target, right):
        yield from _own_key(question, target)
    elif verb == "read" and target.rights[question.service] & right:
        yield from hint_of(question)  # it may read it, but others may not to whom it would show it
    else:
        yield _by_listing(question, target, right, verb, field)


def _own_tenants_key(question: Question, target: Target) -> Ways:
    """The same key with the caller's own values, in place of those of another caller."""
    key, tenancy = question.violation.key or b"", target.tenancy
    own = own_key(key, target.pattern, tenancy, question.values) if tenancy is not None else None
    argv = question.with_key(own) if own is not None else []
    yield Way(question.violation.hint, question.instead(argv) if argv else [])


def _is_anothers(question: Question, target: Target, right: int) -> bool:
    """Whether the service lacks a right on a member of a family because its value belongs to others: it has
    the right on a member of its own, or no right on any key with these values."""
    if any(one.rights[question.service] & right for one in _family(question, target)):
        return True
    others = (one for one in question.policy.targets if one.bound == target.bound)
    return not any(one.rights[question.service] for one in others)


def _family(question: Question, target: Target) -> list[Target]:
    return [
        one
        for one in question.policy.targets
        if (one.kind, one.name, one.home) == (target.kind, target.name, target.home) and one.bound
    ]


def _own_key(question: Question, target: Target) -> Ways:
    """The same key with the service's own values, in place of those of another."""
    key = question.violation.key or b""
    told = ", ".join(f"<{name}> {printable(value)}" for name, value in target.bound)
    yield Way(f"{told} belongs to others; bind says whose it is")
    captured = target.pattern.capture(key)
    for own in own_members(_family(question, target), question.service) if captured is not None else ():
        if {hole.name for hole in own.pattern.holes} <= (captured or {}).keys():
            meant = fill(own.pattern, captured or {})
            argv = question.with_key(meant)
            if offered := question.instead(argv) if argv else []:
                yield Way(f"use its own key {shown_in(question.policy, meant, own)}", offered)


def _by_listing(question: Question, target: Target, right: int, verb: str, field: str) -> Way:
    """The service among those that have the right, where the key's rights are said."""
    section, name = question.place
    place = f"the {'scope' if section == 'scopes' else 'entry'} {name}"
    if target.rights_of:  # its entry has no rights of its own: with some, the scope's would be lost
        section, name = "scopes", target.rights_of
        place = f"the scope {name}, whose rights {question.place[1]} has"
    lines = adding((section, name), **{field: [question.who]})
    if target.rights_of == TOP:
        place, lines = f"{TOP}, whose rights {question.place[1]} has", {field: [question.who]}
    text = f"list {question.who} under {field} of {place}"
    if question.policy.name_services:
        holders = target.names_with(right, question.policy.services)
        text = f"{', '.join(holders) if holders else 'nobody'} may {verb} it; or {text}"
    return Way(text, add=lines)


def _script_name(question: Question) -> str:
    """The registered script that runs; "" for a plain command."""
    script = question.touches.script
    registration = question.policy.registration(script) if script is not None else None
    return registration.name if registration is not None else ""


def _legacy(question: Question) -> Ways:
    target, key = question.target, question.violation.key
    if target is None or key is None:
        return
    standard = _standard(question, key, target)
    argv = question.with_key(standard.encode()) if question.key_is_shown and "<" not in standard else []
    offered = question.instead(argv) if argv else []
    if offered or not argv:
        beginning = "use the standard key" if offered else "the standard key is"
        yield Way(f"{beginning} {standard}", offered)
    else:
        broken = ", ".join(question.breaks(argv)) or "nothing, but isn't complete"
        yield Way(f"the standard key is {standard}; there it breaks {broken}")
    if target.kind == "legacy":
        yield Way(f"what the form may be used for is its allow, of the rights on its entry {target.name}")
    else:
        yield Way(f"what may still be done with {target.name} is the allow of the entry that replaces it")


def _standard(question: Question, key: bytes, target: Target) -> str:
    """The key to use instead, of the legacy form's entry or of the entry that replaces the key's own."""
    if target.successor is None:
        return standard_key(key, target, question.service, own_values(target.tenancy, question.values))
    captured = None if target.secrets else target.pattern.capture(key)
    if captured is None or not {hole.name for hole in target.successor.holes} <= captured.keys():
        return target.successor.text
    return printable(fill(target.successor, captured))


# -- names


def _format(question: Question) -> Ways:
    target, key = question.target, question.violation.key
    if target is None or key is None or target.kind not in ("malformed", "claim"):
        yield from hint_of(question)  # its name, or what other keys of the command have
        return
    pattern = target.standard
    if target.kind == "claim" or pattern is None:
        yield from _nearest(question)
        return
    wrong = pattern.mismatch(key)
    if wrong is not None:
        secrecy, byte = question.policy.secrecy, key[wrong.offset : wrong.offset + 1]
        secret = bool(target.secrets) or (secrecy is not None and secrecy.may_hold(byte))
        told = _mismatch_text(wrong, key, pattern, secret)
        yield Way(f"{told}; the form is {target.text}")


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


def _nearest(question: Question) -> Ways:
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
            argv = question.with_key(meant) if meant is not None else []
            offered = question.instead(argv) if argv else []
            yield Way(f"the nearest entry is {target.name}: {target.text}", offered)
    yield _by_registering(question, key)


def _by_registering(question: Question, key: bytes) -> Way:
    """An entry of the key's own."""
    claims = tuple(claim.encode() for claim in question.policy.claims)
    at = question.violation.position
    is_streamed = at < len(question.argv) and isinstance(question.argv[at], Streamed)
    if is_streamed or len(key) > MAX_CONFIRMED:
        return Way("a key of this length is of no form")
    if claims and not key.startswith(claims):
        return Way("or register the key: its beginning under claims, and an entry of its own under keys")
    text = "or register the key: an entry of its own under keys, or another form of one"
    if not key or not question.key_is_shown or len(question.policy.homes) > 1:
        return Way(text)
    rule, names = question.violation.rule, question.policy.homes[0].names
    if any(fault.rule == rule for fault in names.faults(key, None)):
        return Way(f"{text}; its name breaks {rule} too")
    writes = question.access is None or question.access.needs & WRITE
    entry = {"key": _as_pattern(key), "writers" if writes else "readers": [question.who]}
    return Way(text, add={"keys": {_fresh_name(question, "new-entry"): entry}})


def _fresh_name(question: Question, name: str) -> str:
    taken = {one.name for one in (*question.policy.targets, *question.policy.channels)}
    others = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (name, *others) if one not in taken)


def _as_pattern(text: bytes) -> str:
    r"""A pattern for this text alone: `\xHH` for what isn't plain."""
    plain = frozenset(range(0x21, 0x7F)) - frozenset(b"<>\\")
    return "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in text)


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


def _length(question: Question) -> Ways:
    yield Way(question.violation.hint or "shorten the key")


def _charset(question: Question) -> Ways:
    key = question.violation.key or b""
    lowered = key.lower()
    argv = question.with_key(lowered) if lowered != key and question.key_is_shown else []
    yield Way(question.violation.hint or "leave these bytes out", question.instead(argv) if argv else [])


def _scan(question: Question) -> Ways:
    glob, at = question.violation.key, question.violation.position
    if glob is None:  # several prefixes
        yield _by_grant(question, question.violation.hint, keys=[EVERY])
        return
    near = question.evaluator.near(question.service, question.name, glob)
    if near is not None:
        argv = list(question.argv)
        if question.name == "KEYS":
            argv = [b"SCAN", b"0", b"MATCH", near]
        elif 0 < at < len(argv):
            argv[at] = near
        else:
            argv += [b"MATCH" if question.name == "SCAN" else b"PREFIX", near]
        yield Way(question.violation.hint, question.instead(argv))
    elif question.violation.hint:
        yield Way(question.violation.hint)
    shown = shown_in(question.policy, glob, None)
    yield _by_grant(question, f"it needs the right to read every key that matches {shown}", keys=[EVERY])


# -- commands, databases, channels, scripts


def _forbidden(question: Question) -> Ways:
    if question.violation.key is not None:
        if question.touches.script is not None:  # to admit EVALSHA on the keys may not be enough
            yield from hint_of(question)
            return
        name = question.violation.entry or "the entries among these"
        yield Way(f"commands of {name} would have to admit {question.name}, for every service")
        return
    able = [
        name
        for number, name in enumerate(question.policy.services)
        if question.evaluator.judge(number, question.argv[:1], Touches(question.touches.command)).allowed
    ]
    if able and question.policy.name_services:
        yield Way(f"{', '.join(able)} may use it")
    if question.name in KNOWN_COMMANDS or "." in question.name:
        lines = {question.who: {"commands": [question.name]}}
        yield Way("grant it", add={"grants": lines})


def _unknown(question: Question) -> Ways:
    problem, command = question.touches.problem, question.touches.command
    if problem is not None and problem.unseen:
        yield _by_grant(question, question.violation.hint, keys=[EVERY])
        return
    row = COMMANDS.get(command.name.encode()) if command is not None else None
    at = 1 if row is not None and row.subcommands else 0
    if at < len(question.argv) and (row is None or row.subcommands):
        known = row.subcommands if row is not None else COMMANDS
        yield from _spelled(question, at, [name.decode() for name in known if b" " not in name])
    yield from hint_of(question)
    forbids_some = any(one.startswith("@") for one in question.policy.forbid)
    own = fold(question.argv[0]).decode("latin-1") if question.argv else ""
    name = own if "." in own and own.isprintable() else EVERY
    if question.policy.grants.get(question.service) or (name == EVERY and forbids_some):
        return
    lines = {question.who: {"commands": [name], "keys": [EVERY]}}
    yield Way("if the server has it, grant it", add={"grants": lines})


def _spelled(question: Question, at: int, known: Sequence[str]) -> Ways:
    """The command or subcommand that the word at this place is like."""
    near = did_you_mean(printable(word(question.argv[at])), known).removeprefix("; ")
    if near:
        meant = near.removeprefix("did you mean ").removesuffix("?").encode()
        argv = [*question.argv[:at], meant, *question.argv[at + 1 :]]
        yield Way(near, question.instead(argv))


def _database(question: Question) -> Ways:
    admitted = sorted(question.policy.databases or ())
    at, argv = question.violation.position, list(question.argv)
    number = next((number for place, number in question.touches.databases if place == at), None)
    offered: list[bytes] = []
    if number is not None and admitted and 0 < at < len(argv):
        argv[at] = str(admitted[0]).encode()
        offered = question.instead(argv)
    texts = " or ".join(map(str, admitted))
    yield Way(f"use database {texts}" if offered else question.violation.hint, offered)
    if number is not None and len(question.policy.homes) == 1:
        yield Way(f"or list {number} under databases", add={"databases": [number]})


def _channel(question: Question) -> Ways:
    name, at = question.violation.key or b"", question.violation.position
    channel = next((one for one in question.touches.channels if one.position == at), None)
    if channel is None or isinstance(channel.name, Streamed):  # a script's, or too long to be looked at
        yield from hint_of(question)
        return
    if channel.is_pattern:
        yield from _channel_pattern(question, channel)
        return
    field = "publishers" if channel.publish else "subscribers"
    target = question.evaluator.channel(name)
    if target is None:
        yield from _new_channel(question, name, field)
    elif target.kind != "channel" or target.bound or target.tenancy is not None:
        yield from hint_of(question)
    elif channel.publish and target.written_by and target.rights[question.service] & WRITE:
        yield Way(f"only a script may publish here: {', '.join(sorted(target.written_by))}")
    else:
        text = f"list {question.who} under {field} of the channel {target.name}"
        yield Way(text, add=adding(("channels", target.name), **{field: [question.who]}))


def _new_channel(question: Question, name: bytes, field: str) -> Ways:
    channels = [one for one in question.policy.channels if one.kind == "channel"]
    texts = [one.text for one in channels if not one.is_others(question.service)]
    near = did_you_mean(printable(name), texts).removeprefix("; ")
    if near:
        yield Way(near)
    text = "no channel of the policy is like this one; register it under channels"
    if not name or shown_in(question.policy, name, None) != printable(name):
        yield Way(text)
        return
    line = {"channel": _as_pattern(name), field: [question.who]}
    yield Way(text, add={"channels": {_fresh_name(question, "new-channel"): line}})


def _channel_pattern(question: Question, channel: Channel) -> Ways:
    """What the pattern reaches beyond what the service may listen to."""
    found = next((name for name in _reached(question, channel.name) if _is_refused(question, name)), None)
    if found is not None:
        shown = shown_in(question.policy, found, None) if found else "the channel with the empty name"
        yield Way(f"it also reaches {shown}, where {question.who} may not listen")
    else:
        yield from hint_of(question)
    yield _by_grant(question, "ask for a narrower pattern", keys=[EVERY], channels=[EVERY])


def _reached(question: Question, glob: bytes) -> Iterator[bytes]:
    """Some channels that the pattern matches."""
    policy, pattern = question.policy, Glob(glob)
    notified = (
        b"__keyspace@0__:" + one.pattern.example()
        for one in policy.targets
        if one.kind in ("entry", "scope", "legacy") and not one.secrets
    )
    examples = (one.pattern.example() for one in policy.channels if not one.secrets)
    made = (glob.replace(b"*", b"x").replace(b"?", b"x"), glob.replace(b"*", b"xyz0").replace(b"?", b"0"))
    names = (b"", b"__keyevent@0__:set", b"__keyspace@0__:x", *examples, *notified, *made)
    return (name for name in names if pattern.matches(name))


def _is_refused(question: Question, name: bytes) -> bool:
    return bool(question.evaluator.decide(question.service, [b"SUBSCRIBE", name], question.values).violations)


def _script(question: Question) -> Ways:
    script = question.touches.script
    if script is not None and question.policy.registration(script) is None:
        yield Way(question.violation.hint, add=_registration(question, script))
    else:
        yield from hint_of(question)
    names = sorted(
        {one.name for one in (*question.policy.scripts.values(), *question.policy.functions.values())}
    )
    if names:
        yield Way(f"the policy knows {', '.join(names)}")


def _registration(question: Question, script: Script) -> Mapping[str, Any]:
    """What the hint says to add, where a policy can have it."""
    lines = registered_as(script)
    is_many = len(script.keys) > 9999
    if lines is None or is_many or (question.touches.problem is not None and script.keys):
        return {}
    section, name = lines
    keys = {"keys": len(script.keys)}
    if section == "functions":
        shown = shown_in(question.policy, script.name, None)
        return {section: {name: keys}} if shown == name and name.isascii() else {}
    return {section: {_fresh_name(question, "new-script"): {"sha1": [name], **keys}}}


def _slot(question: Question) -> Ways:
    tags = {
        part.text
        for target in question.policy.targets
        for part in target.pattern.parts
        if isinstance(part, Literal)
    }
    tagged = any(b"{" in text for text in tags)
    yield Way("give the keys one hash tag, as {tag}" + ("; the policy's forms have one" if tagged else ""))


_WAYS: Mapping[str, Callable[[Question], Ways]] = {
    "scope.read": _rights,
    "scope.write": _rights,
    "key.legacy": _legacy,
    "key.format": _format,
    "key.unregistered": _nearest,
    "key.length": _length,
    "key.charset": _charset,
    "key.hash_tag": hint_of,
    "slot.cross": _slot,
    "scan.scope": _scan,
    "channel.read": _channel,
    "channel.write": _channel,
    "script.keys": _script,
    "script.unregistered": _script,
    "type.mismatch": type_ways,
    "ttl.required": ttl_ways,
    "ttl.forbidden": ttl_ways,
    "ttl.range": ttl_ways,
    "field.unknown": field_ways,
    "value.invalid": hint_of,
    "value.size": size_ways,
    "key.members": size_ways,
    "stream.maxlen": maxlen_ways,
    "command.unknown": _unknown,
    "command.forbidden": _forbidden,
    "database.forbidden": _database,
}
