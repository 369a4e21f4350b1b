"""Remedies for types, fields, sizes and times to live.

Rule: a command is proposed only if the evaluator finds that it keeps the rule.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from keyfence.commands.arguments import fold, integer, word
from keyfence.commands.model import Access, Streamed, Ttl
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.show import printable
from keyfence.policy.units import duration_text

from .remedy import Proposal, Proposals, Question

Argv = Sequence[bytes]


def place_of(question: Question, item: str) -> tuple[str, str]:
    """Returns the section and the name that hold a requirement.

    They are those of the key's entry, or of the scope that the entry inherits the requirement from.
    """
    target = question.target
    if target is None or target.kind == "scope" or target.entry is None:
        return question.place
    required = getattr(target.entry, item)
    for one in question.policy.targets:
        if one.kind == "scope" and one.entry is not None and getattr(one.entry, item) is required:
            return "scopes", one.name.rpartition("/")[2]
    return question.place


def lines_at(place: tuple[str, str], **lines: Any) -> dict[str, Any]:
    """Returns lines to add to an entry or a scope; empty if the place is unknown."""
    section, name = place
    return {section: {name: lines}} if section else {}


def hint_proposals(question: Question) -> Proposals:
    """Yields the violation's own hint, if it has one."""
    if question.violation.hint:
        yield Proposal(question.violation.hint)


# -- types and content


def type_proposals(question: Question) -> Proposals:
    """Yields the remedies for `type.mismatch`."""
    target, access = question.target, question.access
    types = target.entry.types if target is not None and target.entry is not None else ()
    yield from hint_proposals(question)
    if target is not None and access is not None and types and access.types:
        one = _type_to_add(question, target, access)
        text = f"or let {target.name} be of type {one} too"
        yield Proposal(text, add=lines_at(question.place, type=[*types, one]))


def _type_to_add(question: Question, target: Target, access: Access) -> str:
    """Returns a type that the access admits; one that suits all accesses to the target, if there is one."""
    others = [
        one.types
        for one in question.touches.accesses
        if one.types and question.policy.target(one.key) is target
    ]
    return next((one for one in access.types if all(one in types for types in others)), access.types[0])


def field_proposals(question: Question) -> Proposals:
    """Yields the remedies for `field.unknown`."""
    target, at = question.target, question.violation.position
    fields = target.entry.fields if target is not None and target.entry is not None else None
    if fields is None or not 0 < at < len(question.argv):
        yield from hint_proposals(question)
        return
    field = question.argv[at]
    near = meant = fields.meant(field)
    if near is None and not fields.hides_names:
        names = [name.decode(errors="replace") for name in fields.named]
        close = difflib.get_close_matches(field.decode(errors="replace"), names, n=1)
        near = close[0].encode() if close else None
    if near is not None:
        argv = list(question.argv)
        argv[at] = near
        yield Proposal(f"the nearest field is {printable(near)}", question.instead(argv))
    if meant is not None:
        return  # the field is already listed in another spelling
    place = place_of(question, "fields")
    if fields.hides_names or not _is_plain(field) or not place[0]:
        yield Proposal(f"its fields: {fields.text}")
        return
    text = f"its fields: {fields.text}; or list this one under fields of {place[1]}"
    yield Proposal(text, add=lines_at(place, fields={field.decode(): "any"}))


def _is_plain(name: bytes) -> bool:
    """Whether a policy can hold the name unchanged."""
    return name.isascii() and name.decode().isprintable() and b"<" not in name and not _is_long(name)


def _is_long(name: bytes) -> bool:
    return isinstance(name, Streamed) or len(name) > 256


def maxlen_proposals(question: Question) -> Proposals:
    """Yields the remedies for `stream.maxlen`."""
    target = question.target
    entry = target.entry if target is not None else None
    if entry is None or entry.maxlen is None:
        return
    trim = [b"MAXLEN", *([] if entry.maxlen_exact else [b"~"]), str(entry.maxlen).encode()]
    argv = list(question.argv)
    yield Proposal(question.violation.hint, question.instead([*argv[:2], *trim, *_untrimmed(argv[2:])]))


def size_proposals(question: Question) -> Proposals:
    """Yields the remedies for `value.size` and `key.members`."""
    target = question.target
    raised = f"; or raise the limit of {target.name}" if target is not None else ""
    yield Proposal(f"{question.violation.hint}{raised}")


def _untrimmed(arguments: Argv) -> list[bytes]:
    """Returns XADD's arguments after the key without the trimming options."""
    kept: list[bytes] = []
    at = 0
    while at < len(arguments):
        name = word(arguments[at])
        if name in (b"MAXLEN", b"MINID"):
            at += 3 if word(b"".join(arguments[at + 1 : at + 2])) in (b"~", b"=") else 2
        elif name == b"LIMIT":
            at += 2
        elif name == b"NOMKSTREAM":
            kept.append(arguments[at])
            at += 1
        else:
            break
    return [*kept, *arguments[at:]]


# -- time to live


def ttl_proposals(question: Question) -> Proposals:
    """Yields the remedies for the `ttl` rules."""
    target, access = question.target, question.access
    rule = target.entry.ttl if target is not None and target.entry is not None else None
    if rule is None or access is None or access.ttl is None:
        yield from hint_proposals(question)
    elif question.violation.rule == "ttl.forbidden":
        yield from _without_ttl(question, access.ttl)
    elif question.violation.rule == "ttl.required":
        yield from _with_ttl(question, rule, access)
    else:
        wanted = _suggested_ttl(rule)
        offered = question.instead(_retimed(question.argv, access.ttl, wanted))
        if offered:
            yield Proposal(f"a time to live of {duration_text(wanted)}, for example", offered)
        else:
            yield from hint_proposals(question)


def _suggested_ttl(rule: TtlRule) -> int:
    """Returns a time to live that the rule admits, in milliseconds."""
    return rule.default or rule.max or rule.min or 60_000


def _without_ttl(question: Question, ttl: Ttl) -> Proposals:
    argv, at = list(question.argv), ttl.position
    name = fold(argv[0])
    offered: list[bytes] = []
    if name in (b"SETEX", b"PSETEX"):
        offered = [b"SET", argv[1], *argv[3:]]
    elif name == b"RESTORE":
        offered = [*argv[:2], b"0", argv[3], *(one for one in argv[4:] if word(one) != b"ABSTTL")]
    elif 2 < at < len(argv) and word(argv[at - 1]) in _TTL_OPTIONS:
        offered = argv[: at - 1] + argv[at + 1 :]
    if offered := question.instead(offered) if offered else []:
        yield Proposal("leave the time to live out", offered)
    elif ttl.kind == "expires":
        yield Proposal(f"{question.name} sets a time to live: leave the command out")
    else:
        yield from hint_proposals(question)


_TTL_OPTIONS = frozenset({b"EX", b"PX", b"EXAT", b"PXAT"})


def _with_ttl(question: Question, rule: TtlRule, access: Access) -> Proposals:
    wanted = _suggested_ttl(rule)
    for argv in _commands_with_ttl(question.argv, wanted):
        if offered := question.instead(argv):
            yield Proposal(
                f"set the time to live in the same command, {duration_text(wanted)} for example", offered
            )
            return
    ttl = access.ttl
    if ttl is None or not (ttl.kind == "keeps" or ttl.follows):
        yield Proposal(
            f"{question.name} removes the time to live, or keyfence cannot tell whether one is left"
        )
        return
    place = place_of(question, "ttl")
    lines = {"at": "refresh"} | ({"immediate": "no"} if rule.immediate else {})
    why = "immediate" if rule.immediate else "at: write"
    text = f"{question.name} cannot set a time to live; without {why} on {place[1]} an EXPIRE may follow"
    yield Proposal(text, add=lines_at(place, ttl=lines))


def _commands_with_ttl(argv: Argv, wanted: int) -> Iterator[list[bytes]]:
    """Yields the command with a time to live, or a command with the same effect that sets one."""
    seconds, rest = divmod(wanted, 1000)
    option = [b"PX", str(wanted).encode()] if rest else [b"EX", str(seconds).encode()]
    name, arguments = fold(argv[0]), list(argv[1:])
    if name == b"SET":
        yield [argv[0], *arguments[:2], *(one for one in arguments[2:] if word(one) != b"KEEPTTL"), *option]
    elif name == b"GETEX":
        yield [argv[0], *arguments[:1], *option]
    elif name == b"RESTORE":
        yield [argv[0], *arguments[:1], str(wanted).encode(), *arguments[2:]]
    elif name in _SET_OPTIONS and len(arguments) == 2:
        yield [b"SET", *arguments, *_SET_OPTIONS[name], *option]


# The options with which SET does the same as these commands with one key.
_SET_OPTIONS: dict[bytes, list[bytes]] = {
    b"SETNX": [b"NX"],
    b"MSETNX": [b"NX"],
    b"GETSET": [b"GET"],
    b"MSET": [],
}


def _retimed(argv: Argv, ttl: Ttl, wanted: int) -> list[bytes]:
    """Returns the command with another time to live, in the unit of the original."""
    given = integer(argv[ttl.position]) if 0 < ttl.position < len(argv) else None
    if given is None or ttl.milliseconds is None:
        return list(argv)
    unit = 1000 if given and ttl.milliseconds == given * 1000 else 1
    left = wanted + (int(time.time() * 1000) if ttl.absolute else 0)
    return [*argv[: ttl.position], str(left // unit).encode(), *argv[ttl.position + 1 :]]
