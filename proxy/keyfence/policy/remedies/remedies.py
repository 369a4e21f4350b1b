"""Remedies for each violation of a command, for `keyfence explain`.

Rule: a remedy that claims to make a command pass does so (see `remedy`). No text shows the value of a secret
placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from keyfence.commands.arguments import fold, word
from keyfence.commands.model import GROUP, READ, WRITE, Script, Streamed, Touches
from keyfence.commands.own import KEYFENCE, own_name
from keyfence.commands.table import COMMANDS, KNOWN_COMMANDS
from keyfence.policy.compiled.permissions import EVERY
from keyfence.policy.compiled.policy import MAX_CONFIRMED, TOP, CompiledPolicy, Target
from keyfence.policy.compiled.scripts import registered_as
from keyfence.policy.compiled.tenants import Values, own_key
from keyfence.policy.compiler.families import own_members
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.permissions import FORBIDDEN
from keyfence.policy.patterns.patterns import Hole, KeyPattern, Mismatch
from keyfence.policy.rules import RULES
from keyfence.policy.show import printable
from keyfence.policy.verdict import Violation
from keyfence.policy.wording.masking import fill, shown_in, standard_key

from .nearest import nearest_entry_in_steps, slip
from .remedy import Proposal, Proposals, Question, Remedy
from .values import (
    field_proposals,
    hint_proposals,
    lines_at,
    maxlen_proposals,
    size_proposals,
    ttl_proposals,
    type_proposals,
)
from .wide import by_grant, channel_pattern_proposals


def remedies_in_steps(
    evaluator: Evaluator,
    service: int,
    argv: Sequence[bytes],
    touches: Touches,
    found: Sequence[Violation],
    values: Values = (),
) -> Iterator[Remedy | None]:
    """Yields the remedies of each violation, in the order of the violations, without duplicates, and None
    where other work may be done meanwhile. With a large policy, some steps
    take tens of milliseconds: those that try a changed policy, and the first on a pattern of keys."""
    yield None
    proposed = set()
    for violation in found:
        question = Question(evaluator.policy, evaluator, service, argv, touches, violation, values)
        for proposal in _PROPOSALS.get(violation.rule, _default)(question):
            if proposal is None:
                yield None
            elif (violation.rule, proposal.text) not in proposed:
                proposed.add((violation.rule, proposal.text))
                yield Remedy(violation.rule, *proposal)
        yield None


def _default(question: Question) -> Proposals:
    """Yields the violation's hint; without one, the remedy in the table of rules."""
    yield Proposal(question.violation.hint or RULES[question.violation.rule].remedy)


# -- rights


def _rights(question: Question) -> Proposals:
    target, access = question.target, question.access
    right, verb, field = (READ, "read", "readers")
    if question.violation.rule == "scope.write":
        right, verb, field = (WRITE, "write", "writers")
    if target is None or target.kind == "legacy":  # legacy: the fault is who may read the copied content
        yield from hint_proposals(question)
        return
    if (
        target.rights[question.service]
        & right
        & ~target.held(question.service, question.violation.key or b"", question.values)
    ):
        yield from _own_tenant_key(question, target)
        return
    section, name = question.place
    place = f"the {'scope' if section == 'scopes' else 'entry'} {name}"
    keeps_books = access is not None and access.needs & GROUP
    if target.successor is not None and target.denied[question.service] & right:
        yield Proposal(f"{name} is replaced; use {target.successor.text}")
    elif target.denied[question.service] & right:
        yield Proposal(f"deny_{verb} denies it to {question.who}, on {place} or on a scope around it")
    elif verb == "write" and not keeps_books and not target.is_written_by(_script_name(question)):
        yield Proposal(f"only a script may write here: {', '.join(sorted(target.written_by))}")
    elif target.bound and _belongs_to_others(question, target, right):
        yield from _own_key(question, target)
    elif verb == "read" and target.rights[question.service] & right:
        yield from hint_proposals(question)  # the command would show it to services that may not read it
    else:
        yield _list_service(question, target, right, verb, field)


def _own_tenant_key(question: Question, target: Target) -> Proposals:
    """Yields the same key with the caller's own values in place of another caller's."""
    key, tenancy = question.violation.key or b"", target.tenancy
    own = own_key(key, target.pattern, tenancy, question.values) if tenancy is not None else None
    argv = question.with_key(own) if own is not None else []
    yield Proposal(question.violation.hint, question.instead(argv) if argv else [])


def _belongs_to_others(question: Question, target: Target, right: int) -> bool:
    """Whether the service lacks a right on a family member because its value belongs to other services.

    That is so if the service has the right on its own member, or no right on any key with these values.
    """
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


def _own_key(question: Question, target: Target) -> Proposals:
    """Yields the same key with the service's own values in place of another service's."""
    key = question.violation.key or b""
    values = ", ".join(f"<{name}> {printable(value)}" for name, value in target.bound)
    yield Proposal(f"{values} belongs to others; bind says whose it is")
    captured = target.pattern.capture(key)
    for own in own_members(_family(question, target), question.service) if captured is not None else ():
        if {hole.name for hole in own.pattern.holes} <= (captured or {}).keys():
            meant = fill(own.pattern, captured or {})
            argv = question.with_key(meant)
            if offered := question.instead(argv) if argv else []:
                yield Proposal(f"use its own key {shown_in(question.policy, meant, own)}", offered)


def _list_service(question: Question, target: Target, right: int, verb: str, field: str) -> Proposal:
    """Proposes to list the service at the place in the policy that grants the right."""
    section, name = question.place
    place = f"the {'scope' if section == 'scopes' else 'entry'} {name}"
    if target.rights_of:  # rights on the entry itself would replace the scope's
        section, name = "scopes", target.rights_of
        place = f"the scope {name}, whose rights {question.place[1]} has"
    lines = lines_at((section, name), **{field: [question.who]})
    if target.rights_of == TOP:
        place, lines = f"{TOP}, whose rights {question.place[1]} has", {field: [question.who]}
    text = f"list {question.who} under {field} of {place}"
    if question.policy.name_services:
        holders = target.names_with(right, question.policy.services)
        text = f"{', '.join(holders) if holders else 'no service'} may {verb} it; or {text}"
    return Proposal(text, add=lines)


def _script_name(question: Question) -> str:
    """Returns the name of the registered script that runs; "" for a plain command."""
    script = question.touches.script
    registration = question.policy.registration(script) if script is not None else None
    return registration.name if registration is not None else ""


def _legacy(question: Question) -> Proposals:
    target, key = question.target, question.violation.key
    if target is None or key is None:
        return
    yield _standard_key(question, key, target)
    if target.kind == "legacy":
        yield Proposal(f"allow says which of the rights on the entry {target.name} this form keeps")
    else:
        yield Proposal(f"the allow of the entry that replaces {target.name} says which rights it keeps")


def _standard_key(question: Question, key: bytes, target: Target) -> Proposal:
    """Proposes the standard key of a legacy form, or the key of the replacing entry."""
    own = question.policy.own_values(question.service, target, question.values)
    standard = standard_key(key, target, question.service, own)
    argv = question.with_key(standard.encode()) if question.key_is_shown and "<" not in standard else []
    offered = question.instead(argv) if argv else []
    if offered or not argv:
        beginning = "use the standard key" if offered else "the standard key is"
        return Proposal(f"{beginning} {standard}", offered)
    broken = ", ".join(question.breaks(argv)) or "no rule, but it is incomplete"
    return Proposal(f"the standard key is {standard}; there it breaks {broken}")


# -- names


def _format(question: Question) -> Proposals:
    target, key = question.target, question.violation.key
    if target is None or key is None or target.kind not in ("malformed", "claim"):
        yield from hint_proposals(question)  # the fault is in the name or in the command's other keys
        return
    pattern = target.standard
    if target.kind == "claim" or pattern is None:
        yield from _nearest(question)
        return
    wrong = pattern.mismatch(key)
    if wrong is not None:
        secrecy, byte = question.policy.secrecy, key[wrong.offset : wrong.offset + 1]
        secret = bool(target.secrets) or (secrecy is not None and secrecy.may_hold(byte))
        fault = _mismatch_text(wrong, key, pattern, secret)
        yield Proposal(f"{fault}; the form is {target.text}")


def _mismatch_text(wrong: Mismatch, key: bytes, pattern: KeyPattern, secret: bool) -> str:
    """Says what is wrong with a key, where, and what is admitted there."""
    hole = next((one for one in pattern.holes if one.name == wrong.placeholder), None)
    where = f"<{hole.name}>" if hole is not None else "the form's own text"
    admits = _admitted_text(hole) if hole is not None else ""
    segment = key[: wrong.offset].count(b":") + 1
    if wrong.kind == "end":
        return f"the key ends where {where} should come{admits}"
    if wrong.kind == "length":
        return f"{where} is too long or too short in segment {segment}{admits}"
    if pattern.matches(key[: wrong.offset]):
        last = pattern.holes[-1]
        return f"the key goes on at offset {wrong.offset}, where <{last.name}> ends{_admitted_text(last)}"
    byte = "a byte" if secret else repr(printable(key[wrong.offset : wrong.offset + 1]))
    return f"{byte} at offset {wrong.offset}, in segment {segment}, does not fit {where}{admits}"


def _admitted_text(hole: Hole) -> str:
    return f", which admits {hole.expression.text}"


def _nearest(question: Question) -> Proposals:
    """Yields the entry with the nearest pattern, and the key in that pattern."""
    key = question.violation.key
    if key is None:
        return
    stray = question.policy.target(key)
    if stray is not None and stray.kind == "stray":
        yield _standard_key(question, key, stray)
        yield _register_key(question, key)
        return
    target = yield from nearest_entry_in_steps(question.policy, question.service, key)
    if target is not None:
        meant = _filled_from(target.pattern, key)
        argv = question.with_key(meant) if meant is not None else []
        offered = question.instead(argv) if argv else []
        slipped = slip(target, key)
        guess = f"did you mean {slipped.meant}? " if slipped is not None and question.key_is_shown else ""
        yield Proposal(f"{guess}the nearest entry is {target.name}: {target.text}", offered)
    yield _register_key(question, key)


def _register_key(question: Question, key: bytes) -> Proposal:
    """Proposes to register an entry for the key."""
    claims = tuple(claim.encode() for claim in question.policy.claims)
    at = question.violation.position
    is_streamed = at < len(question.argv) and isinstance(question.argv[at], Streamed)
    if is_streamed or len(key) > MAX_CONFIRMED:
        return Proposal("no pattern admits a key of this length")
    if claims and not key.startswith(claims):
        return Proposal("or register the key: its beginning under claims, and an entry of its own under keys")
    text = "or register the key: an entry of its own under keys, or another form of one"
    if not key or not question.key_is_shown or len(question.policy.homes) > 1:
        return Proposal(text)
    rule, names = question.violation.rule, question.policy.homes[0].names
    if any(fault.rule == rule for fault in names.faults(key, None)):
        return Proposal(f"{text}; its name also breaks {rule}")
    writes = question.access is None or question.access.needs & WRITE
    entry = {"key": _as_pattern(key), "writers" if writes else "readers": [question.who]}
    return Proposal(text, add={"keys": {_fresh_name(question, "new-entry"): entry}})


def _fresh_name(question: Question, name: str) -> str:
    taken = {one.name for one in (*question.policy.targets, *question.policy.channels)}
    others = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return next(one for one in (name, *others) if one not in taken)


def _as_pattern(text: bytes) -> str:
    r"""Returns the pattern that matches only this text: `\xHH` for each byte that is not plain."""
    plain = frozenset(range(0x21, 0x7F)) - frozenset(b"<>\\")
    return "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in text)


def _filled_from(pattern: KeyPattern, key: bytes) -> bytes | None:
    """Returns the pattern filled with the key's own segments; None if they do not fit."""
    wanted, given = pattern.text.split(":"), key.split(b":")
    if len(wanted) != len(given) or "\\" in pattern.text:
        return None
    filled = b":".join(
        other if "<" in one else one.encode() for one, other in zip(wanted, given, strict=True)
    )
    return filled if pattern.matches(filled) else None


def _charset(question: Question) -> Proposals:
    key = question.violation.key or b""
    lowered = key.lower()
    argv = question.with_key(lowered) if lowered != key and question.key_is_shown else []
    yield Proposal(question.violation.hint or "leave these bytes out", question.instead(argv) if argv else [])


def _scan(question: Question) -> Proposals:
    glob, at = question.violation.key, question.violation.position
    if glob is None:  # several prefixes
        several = question.touches.problem
        globs = [one.glob for one in several.unseen] if several is not None else []
        yield by_grant(question, question.violation.hint, globs)
        return
    evaluator = question.evaluator
    asked = evaluator.evaluation(question.asker, question.argv, question.touches)
    near = evaluator.checks.patterns.near(asked, glob)
    if near is not None:
        argv = list(question.argv)
        if question.name == "KEYS":
            argv = [b"SCAN", b"0", b"MATCH", near]
        elif 0 < at < len(argv):
            argv[at] = near
        else:
            argv += [b"MATCH" if question.name == "SCAN" else b"PREFIX", near]
        yield Proposal(question.violation.hint, question.instead(argv))
    elif question.violation.hint:
        yield Proposal(question.violation.hint)
    shown = shown_in(question.policy, glob, None)
    yield by_grant(question, f"it needs the right to read every key that matches {shown}", [glob])


# -- commands, databases, channels, scripts


def _forbidden(question: Question) -> Proposals:
    if question.violation.key is not None:
        if question.touches.script is not None:  # admitting EVALSHA on the keys may not be enough
            yield from hint_proposals(question)
            return
        yield Proposal(question.violation.hint, _without_overwriting(question))
        return
    able = [
        name
        for number, name in enumerate(question.policy.services)
        if question.evaluator.evaluate(
            Asker(number), question.argv[:1], Touches(question.touches.command)
        ).allowed
    ]
    if able and question.policy.name_services:
        yield Proposal(f"{', '.join(able)} may use it")
    command = question.touches.command
    if (
        command is None
        or question.evaluator.checks.permissions.reason(question.service, command) == FORBIDDEN
    ):
        yield from hint_proposals(question)
    elif question.name in KNOWN_COMMANDS or "." in question.name:
        lines = {question.who: {"commands": [question.name]}}
        yield Proposal("grant it", add={"grants": lines})


def _without_overwriting(question: Question) -> list[bytes]:
    """Returns the command in a form that overwrites nothing; empty if it has none."""
    argv = list(question.argv)
    if question.name == "MSET":
        return question.instead([b"MSETNX", *argv[1:]])
    return question.instead([*argv, b"NX"]) if question.name == "SET" else []


def _unknown(question: Question) -> Proposals:
    problem, command = question.touches.problem, question.touches.command
    if problem is not None and problem.unseen:
        if _restricts(question.policy):  # a grant on these keys would lift that too
            yield from hint_proposals(question)
            return
        yield by_grant(question, question.violation.hint, [one.glob for one in problem.unseen])
        return
    if command is None and own_name(question.argv):
        if question.policy.grants.get(question.service):
            yield from hint_proposals(question)
        else:
            lines = {question.who: {"commands": [KEYFENCE]}}
            yield Proposal("to have keyfence answer it, grant it", add={"grants": lines})
        return
    row = COMMANDS.get(command.name.encode()) if command is not None else None
    at = 1 if row is not None and row.subcommands else 0
    if at < len(question.argv) and (row is None or row.subcommands):
        known = row.subcommands if row is not None else COMMANDS
        yield from _respelled(question, at, [name.decode() for name in known if b" " not in name])
    yield from hint_proposals(question)
    forbids_some = any(one.startswith("@") for one in question.policy.forbid)
    own = fold(question.argv[0]).decode("latin-1") if question.argv else ""
    name = own if "." in own and own.isprintable() else EVERY
    is_bypass = _restricts(question.policy) or (name == EVERY and forbids_some)
    if question.policy.grants.get(question.service) or is_bypass:
        return
    lines = {question.who: {"commands": [name], "keys": [EVERY]}}
    yield Proposal("if the server has it, grant it", add={"grants": lines})


def _restricts(policy: CompiledPolicy) -> bool:
    """Whether an entry or scope restricts the commands on its keys."""
    return any(one.entry is not None and one.entry.commands is not None for one in policy.targets)


def _respelled(question: Question, at: int, known: Sequence[str]) -> Proposals:
    """Yields the known command or subcommand that is nearest to the argument at this position."""
    near = did_you_mean(printable(word(question.argv[at])), known).removeprefix("; ")
    if near:
        meant = near.removeprefix("did you mean ").removesuffix("?").encode()
        argv = [*question.argv[:at], meant, *question.argv[at + 1 :]]
        yield Proposal(near, question.instead(argv))


def _database(question: Question) -> Proposals:
    admitted = sorted(question.policy.databases or ())
    at, argv = question.violation.position, list(question.argv)
    number = next((number for place, number in question.touches.databases if place == at), None)
    offered: list[bytes] = []
    if number is not None and admitted and 0 < at < len(argv):
        argv[at] = str(admitted[0]).encode()
        offered = question.instead(argv)
    texts = " or ".join(map(str, admitted))
    yield Proposal(f"use database {texts}" if offered else question.violation.hint, offered)
    if number is not None and len(question.policy.homes) == 1:
        yield Proposal(f"or list {number} under databases", add={"databases": [number]})


def _channel(question: Question) -> Proposals:
    name, at = question.violation.key or b"", question.violation.position
    channel = next((one for one in question.touches.channels if one.position == at), None)
    if channel is None or isinstance(channel.name, Streamed):  # a script's, or too long to examine
        yield from hint_proposals(question)
        return
    if channel.is_pattern:
        yield from channel_pattern_proposals(question, channel)
        return
    field = "publishers" if channel.publish else "subscribers"
    target = question.evaluator.checks.channels.target(name)
    if target is None:
        yield from _new_channel(question, name, field)
    elif target.kind != "channel" or target.bound or target.tenancy is not None:
        yield from hint_proposals(question)
    elif channel.publish and target.written_by and target.rights[question.service] & WRITE:
        yield Proposal(f"only a script may publish here: {', '.join(sorted(target.written_by))}")
    else:
        text = f"list {question.who} under {field} of the channel {target.name}"
        yield Proposal(text, add=lines_at(("channels", target.name), **{field: [question.who]}))


def _new_channel(question: Question, name: bytes, field: str) -> Proposals:
    channels = [one for one in question.policy.channels if one.kind == "channel"]
    texts = [one.text for one in channels if not one.is_others(question.service)]
    near = did_you_mean(printable(name), texts).removeprefix("; ")
    if near:
        yield Proposal(near)
    text = "no channel of the policy matches it; register it under channels"
    if not name or shown_in(question.policy, name, None) != printable(name):
        yield Proposal(text)
        return
    line = {"channel": _as_pattern(name), field: [question.who]}
    yield Proposal(text, add={"channels": {_fresh_name(question, "new-channel"): line}})


def _script(question: Question) -> Proposals:
    script = question.touches.script
    if script is not None and question.policy.registration(script) is None:
        yield Proposal(question.violation.hint, add=_registration(question, script))
    else:
        yield from hint_proposals(question)
    names = sorted(
        {one.name for one in (*question.policy.scripts.values(), *question.policy.functions.values())}
    )
    if names:
        yield Proposal(f"registered scripts: {', '.join(names)}")


def _registration(question: Question, script: Script) -> Mapping[str, Any]:
    """Returns the lines that the hint proposes; empty if a policy cannot hold them."""
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


def _hash_slot(question: Question) -> Proposals:
    targets = [question.policy.target(access.key) for access in question.touches.accesses]
    forms = list(dict.fromkeys(one.text for one in targets if one is not None and one.kind == "entry"))
    untagged = [form for form in forms if "{" not in form]
    if forms and not untagged:
        yield Proposal("give the keys the same text in their hash tags, or send a command for each key")
    elif untagged:
        yield Proposal(f"give the keys one hash tag, as {{tag}}; forms without one: {', '.join(untagged)}")
    else:
        yield Proposal("give the keys one hash tag, as {tag}")


# Rules with more specific remedies than the violation's hint.
_PROPOSALS: Mapping[str, Callable[[Question], Proposals]] = {
    "scope.read": _rights,
    "scope.write": _rights,
    "key.legacy": _legacy,
    "key.format": _format,
    "key.unregistered": _nearest,
    "key.charset": _charset,
    "slot.cross": _hash_slot,
    "scan.scope": _scan,
    "channel.read": _channel,
    "channel.write": _channel,
    "script.keys": _script,
    "script.unregistered": _script,
    "type.mismatch": type_proposals,
    "ttl.required": ttl_proposals,
    "ttl.forbidden": ttl_proposals,
    "ttl.range": ttl_proposals,
    "field.unknown": field_proposals,
    "value.invalid": hint_proposals,
    "value.size": size_proposals,
    "key.members": size_proposals,
    "stream.maxlen": maxlen_proposals,
    "command.unknown": _unknown,
    "command.forbidden": _forbidden,
    "database.forbidden": _database,
}
