"""Finds the member of a family that a key of another form (a legacy form, a replaced entry) stands for.

Rule: it is the member whose values the form names, or else the caller's own member. It is never a member of
another service.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from keyfence.commands.model import WRITE
from keyfence.policy.compiled.policy import Target
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.patterns.patterns import KeyPattern, Literal, literal_class, parse_pattern

from .bindings import Bound, bound_texts, escaped
from .context import SCOPE_HOLE, CompilerContext, Values


class Standard(NamedTuple):
    """The members that a key of another form stands for."""

    target: Target  # the member, or one of several
    pattern: KeyPattern  # its form; for several, with placeholders where they differ
    rights: tuple[int, ...]  # by service number, on its own member
    denied: tuple[int, ...]
    # By service number: the form of its own member, or None for `pattern`; () if the entry is not a family.
    own: tuple[KeyPattern | None, ...]
    unclear: frozenset[int]  # services that have several members of their own


def texts_of_family(
    context: CompilerContext, text: str, path: Sequence[str | int]
) -> Iterator[tuple[str, Values, Bound]]:
    """Yields every pattern that a form stands for, with the values that it names, <scope> included."""
    hole = f"<{SCOPE_HOLE}>"
    names = dict.fromkeys(scope.name for scope in context.scopes) if hole in text else [""]
    for name in names:
        for one in bound_texts(context, text.replace(hole, escaped(name)) if name else text, path):
            yield one.text, (*one.values, *(((SCOPE_HOLE, name.encode()),) if name else ())), one


def standard_of(
    context: CompilerContext, entry: str, named: Mapping[str, bytes], pattern: KeyPattern
) -> Standard | None:
    """Returns the members of an entry that a form with this pattern and these values stands for, or None."""
    named = {**_named_literally(context, entry, pattern, named), **named}
    question = (entry, tuple(sorted(named.items())))
    if question not in context.standards:
        family = [(dict(values), context.entries[index]) for values, index in context.members.get(entry, ())]
        members = [one for values, one in family if named.items() <= {**named, **values}.items()]
        whole = [one for _, one in family]
        context.standards[question] = _standard(context, entry, named, members, whole) if members else None
    found: Standard | None = context.standards[question]
    return found


def _standard(
    context: CompilerContext,
    entry: str,
    named: Mapping[str, bytes],
    members: list[Target],
    family: list[Target],
) -> Standard:
    first = members[0]
    if not first.bound and len(family) == 1:
        return Standard(first, first.pattern, first.rights, first.denied, (), frozenset())
    rights: list[int] = []
    denied: list[int] = []
    own: list[KeyPattern | None] = []
    unclear: set[int] = set()
    whole = _general(context, entry, {})
    for service in range(len(context.services)):
        mine = own_members(members, service)
        rights.append(reduce(operator.and_, (one.rights[service] for one in mine)) if mine else 0)
        denied.append(reduce(operator.or_, (one.denied[service] for one in mine), 0))
        forms = [one.pattern for one in mine or own_members(family, service)]
        own.append(forms[0] if len(forms) == 1 else None if mine else whole)
        if len(mine) > 1:
            unclear.add(service)
    form = first.pattern if len(members) == 1 else _general(context, entry, named)
    return Standard(first, form, tuple(rights), tuple(denied), tuple(own), frozenset(unclear))


def own_members(members: Sequence[Target], service: int) -> list[Target]:
    """Returns a service's own members of a family: those that it may write, or else those that it may
    read."""
    held = [(one, one.rights[service] & ~one.denied[service]) for one in members]
    return [one for one, right in held if right & WRITE] or [one for one, right in held if right]


def read_member(
    context: CompilerContext, entry: str, member: Mapping[str, str], path: tuple[str, ...]
) -> dict[str, bytes]:
    """Returns the values under a form's `member`; faults are recorded."""
    known: dict[str, dict[str, None]] = {}
    for values, _ in context.members.get(entry, ()):
        for hole, held in values:
            known.setdefault(hole, {})[held.decode()] = None
    named = {}
    for name, value in member.items():
        if entry not in context.members:
            continue  # reported already
        if name not in known:
            what = did_you_mean(name, known) or "; it is not a family"
            context.error((*path, name), f"the key of {entry} has no bound <{name}>{what}", of_key=True)
        elif value not in known[name]:
            near = did_you_mean(value, known[name])
            context.error((*path, name), f"{value!r} is not a value of <{name}>{near}", relies_on=[("bind",)])
        else:
            named[name] = value.encode()
    return named


def _named_literally(
    context: CompilerContext, entry: str, pattern: KeyPattern, named: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Returns the values that are words in a form's literal text but not in the entry's own text."""
    values: dict[str, set[bytes]] = {}
    for member, _ in context.members.get(entry, ()):
        for name, value in member:
            values.setdefault(name, set()).add(value)
    if not values:
        return {}
    given = _literal_text(pattern)
    own = re.sub(r"<[^<>]*>", "<>", context.model.keys[entry].key).encode()
    found = {}
    for name, known in values.items():
        words = [value for value in known if _has_word(given, value) and not _has_word(own, value)]
        if name not in named and len(words) == 1:
            found[name] = words[0]
    return found


def _literal_text(pattern: KeyPattern) -> bytes:
    return b"".join(part.text if isinstance(part, Literal) else b"<>" for part in pattern.parts)


def _has_word(text: bytes, word: bytes) -> bool:
    return re.search(rb"(?<![A-Za-z0-9])" + re.escape(word) + rb"(?![A-Za-z0-9])", text) is not None


def _general(context: CompilerContext, entry: str, named: Mapping[str, bytes]) -> KeyPattern:
    """Returns the entry's form, with placeholders for the values that are not named."""
    text = context.model.keys[entry].key
    for name, value in named.items():
        text = text.replace(f"<{name}>", escaped(value.decode()))
    if f"<{SCOPE_HOLE}>" not in text:
        return parse_pattern(text, context.classes)
    scopes = literal_class(scope.name.encode() for scope in context.scopes)
    return parse_pattern(text, context.classes.new_child({SCOPE_HOLE: scopes}))
