"""What would have to change for a value or a time to live to be right.

Rule: as with all remedies, a command is offered only where the evaluator finds that it keeps the rule.
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

from .remedy import Question, Way, Ways

Argv = Sequence[bytes]


def said_by(question: Question, item: str) -> tuple[str, str]:
    """The section and the name under which something that is asked of a key stands: of its entry, or of the
    scope that the entry has it from."""
    target = question.target
    if target is None or target.kind == "scope" or target.entry is None:
        return question.place
    asked = getattr(target.entry, item)
    for one in question.policy.targets:
        if one.kind == "scope" and one.entry is not None and getattr(one.entry, item) is asked:
            return "scopes", one.name.rpartition("/")[2]
    return question.place


def adding(place: tuple[str, str], **lines: Any) -> dict[str, Any]:
    """Lines of an entry or a scope."""
    section, name = place
    return {section: {name: lines}} if section else {}


def hint_of(question: Question) -> Ways:
    """What the violation itself says."""
    if question.violation.hint:
        yield Way(question.violation.hint)


# -- types and content


def type_ways(question: Question) -> Ways:
    """For `type.mismatch`."""
    target, access = question.target, question.access
    types = target.entry.types if target is not None and target.entry is not None else ()
    yield from hint_of(question)
    if target is not None and access is not None and types and access.types:
        one = _type_to_add(question, target, access)
        text = f"or let {target.name} be of type {one} too"
        yield Way(text, add=adding(question.place, type=[*types, one]))


def _type_to_add(question: Question, target: Target, access: Access) -> str:
    """Returns a type that the access admits; one that suits all accesses to the target, if there is one."""
    others = [
        one.types
        for one in question.touches.accesses
        if one.types and question.policy.target(one.key) is target
    ]
    return next((one for one in access.types if all(one in types for types in others)), access.types[0])


def field_ways(question: Question) -> Ways:
    """For `field.unknown`."""
    target, at = question.target, question.violation.position
    fields = target.entry.fields if target is not None and target.entry is not None else None
    if fields is None or not 0 < at < len(question.argv):
        yield from hint_of(question)
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
        yield Way(f"the nearest field is {printable(near)}", question.instead(argv))
    if meant is not None:
        return  # it is listed: another spelling of it is nothing to add
    place = said_by(question, "fields")
    if fields.hides_names or not _is_plain(field) or not place[0]:
        yield Way(f"its fields: {fields.text}")
        return
    text = f"its fields: {fields.text}; or list this one under fields of {place[1]}"
    yield Way(text, add=adding(place, fields={field.decode(): "any"}))


def _is_plain(name: bytes) -> bool:
    """Whether a policy can have it as a name, as it is."""
    return name.isascii() and name.decode().isprintable() and b"<" not in name and not _is_long(name)


def _is_long(name: bytes) -> bool:
    return isinstance(name, Streamed) or len(name) > 256


def maxlen_ways(question: Question) -> Ways:
    """For `stream.maxlen`."""
    target = question.target
    entry = target.entry if target is not None else None
    if entry is None or entry.maxlen is None:
        return
    trim = [b"MAXLEN", *([] if entry.maxlen_exact else [b"~"]), str(entry.maxlen).encode()]
    argv = list(question.argv)
    yield Way(question.violation.hint, question.instead([*argv[:2], *trim, *_untrimmed(argv[2:])]))


def size_ways(question: Question) -> Ways:
    """For `value.size` and `key.members`."""
    target = question.target
    raised = f"; or raise the limit of {target.name}" if target is not None else ""
    yield Way(f"{question.violation.hint}{raised}")


def _untrimmed(arguments: Argv) -> list[bytes]:
    """XADD's arguments behind the key without what trims."""
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


def ttl_ways(question: Question) -> Ways:
    """For the rules of `ttl`."""
    target, access = question.target, question.access
    rule = target.entry.ttl if target is not None and target.entry is not None else None
    if rule is None or access is None or access.ttl is None:
        yield from hint_of(question)
    elif question.violation.rule == "ttl.forbidden":
        yield from _without_ttl(question, access.ttl)
    elif question.violation.rule == "ttl.required":
        yield from _with_ttl(question, rule, access)
    else:
        wanted = _wanted(rule)
        offered = question.instead(_retimed(question.argv, access.ttl, wanted))
        if offered:
            yield Way(f"a time to live of {duration_text(wanted)}, for example", offered)
        else:
            yield from hint_of(question)


def _wanted(rule: TtlRule) -> int:
    return rule.default or rule.max or rule.min or 60_000


def _without_ttl(question: Question, ttl: Ttl) -> Ways:
    argv, at = list(question.argv), ttl.position
    name = fold(argv[0])
    offered: list[bytes] = []
    if name in (b"SETEX", b"PSETEX"):
        offered = [b"SET", argv[1], *argv[3:]]
    elif name == b"RESTORE":
        offered = [*argv[:2], b"0", argv[3], *(one for one in argv[4:] if word(one) != b"ABSTTL")]
    elif 2 < at < len(argv) and word(argv[at - 1]) in _TIMES:
        offered = argv[: at - 1] + argv[at + 1 :]
    if offered := question.instead(offered) if offered else []:
        yield Way("leave the time to live out", offered)
    elif ttl.kind == "expires":
        yield Way(f"{question.name} gives it one: leave the command out")
    else:
        yield from hint_of(question)


_TIMES = frozenset({b"EX", b"PX", b"EXAT", b"PXAT"})


def _with_ttl(question: Question, rule: TtlRule, access: Access) -> Ways:
    wanted = _wanted(rule)
    for argv in _bringing(question.argv, wanted):
        if offered := question.instead(argv):
            yield Way(f"bring the time to live with it, {duration_text(wanted)} for example", offered)
            return
    ttl = access.ttl
    if ttl is None or not (ttl.kind == "keeps" or ttl.follows):
        yield Way(f"{question.name} takes the time to live away, or can't be known to leave one")
        return
    place = said_by(question, "ttl")
    lines = {"at": "refresh"} | ({"immediate": "no"} if rule.immediate else {})
    why = "immediate" if rule.immediate else "at: write"
    text = f"{question.name} can't bring a time to live; without {why} of {place[1]} an EXPIRE may follow"
    yield Way(text, add=adding(place, ttl=lines))


def _bringing(argv: Argv, wanted: int) -> Iterator[list[bytes]]:
    """The command with a time to live, or another one that does the same and brings it."""
    seconds, rest = divmod(wanted, 1000)
    brings = [b"PX", str(wanted).encode()] if rest else [b"EX", str(seconds).encode()]
    name, arguments = fold(argv[0]), list(argv[1:])
    if name == b"SET":
        yield [argv[0], *arguments[:2], *(one for one in arguments[2:] if word(one) != b"KEEPTTL"), *brings]
    elif name == b"GETEX":
        yield [argv[0], *arguments[:1], *brings]
    elif name == b"RESTORE":
        yield [argv[0], *arguments[:1], str(wanted).encode(), *arguments[2:]]
    elif name in _AS_SET and len(arguments) == 2:
        yield [b"SET", *arguments, *_AS_SET[name], *brings]


# What SET has to be asked for to do what they do with one key.
_AS_SET: dict[bytes, list[bytes]] = {b"SETNX": [b"NX"], b"MSETNX": [b"NX"], b"GETSET": [b"GET"], b"MSET": []}


def _retimed(argv: Argv, ttl: Ttl, wanted: int) -> list[bytes]:
    """The command with another time, in its own unit."""
    given = integer(argv[ttl.position]) if 0 < ttl.position < len(argv) else None
    if given is None or ttl.milliseconds is None:
        return list(argv)
    unit = 1000 if given and ttl.milliseconds == given * 1000 else 1
    left = wanted + (int(time.time() * 1000) if ttl.absolute else 0)
    return [*argv[: ttl.position], str(left // unit).encode(), *argv[ttl.position + 1 :]]
