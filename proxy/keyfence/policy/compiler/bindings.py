"""Bound placeholders: `<ns>` stands for values that belong to services, as `cosky-{default}`.

Rule: a pattern with a bound placeholder is one pattern for each value, and a service holds rights only on
the patterns of its own values. One that binds writing alone leaves readers and consumers their rights on
the patterns of all values. A placeholder that is bound to the caller stays one (`tenants`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from keyfence.policy.compiled.tenants import Binding, Tenancy, places_in
from keyfence.policy.patterns.patterns import (
    ANYTHING,
    Hole,
    KeyPattern,
    PatternError,
    literal_class,
    parse_class,
)
from keyfence.policy.source.model import CallerModel, WriteModel

from .context import SCOPE_HOLE, CompilerContext

MAX_VALUES = 1000  # patterns that one text may stand for

_SPECIAL = re.compile(r"[<>\\]")


class Bound(NamedTuple):
    """One of the patterns that a text stands for."""

    text: str  # with the values filled in
    values: tuple[tuple[str, bytes], ...]  # (placeholder, value), by name


def read_bindings(context: CompilerContext) -> None:
    """The bound placeholders and whose their values are, into the draft."""
    for name, model in context.model.bind.items():
        path: tuple[str, ...] = ("bind", name)
        if isinstance(model, WriteModel):
            path = (*path, "write")
            context.write_only.add(name)
        by_service = model.write if isinstance(model, WriteModel) else model
        if name == SCOPE_HOLE or (name in context.declared and not isinstance(by_service, CallerModel)):
            message = f"the placeholder {name} is declared already; choose another name"
            context.error(("bind", name), message, of_key=True)
            continue
        if isinstance(by_service, CallerModel):
            _read_caller(context, name, by_service, path)
            continue
        values: dict[str, set[int]] = {}
        for service, owned in by_service.items():
            number = context.number(service, (*path, service), of_key=True)
            for index, value in enumerate(owned):
                if not value:
                    context.error(
                        (*path, service, index), "an empty value would bind every key; write its text"
                    )
                    continue
                values.setdefault(value, set()).update(() if number is None else (number,))
        if not any(values):
            relies_on = [("services",), path]
            context.error(path, f"no service has a value of <{name}>", of_key=True, relies_on=relies_on)
            context.declared[name] = ANYTHING  # the file isn't used; its keys are still looked at
            continue
        context.bound[name] = values
        context.declared[name] = literal_class(value.encode() for value in values)


# What a placeholder holds that is bound to the caller, where `placeholders` says nothing else.
PLAIN_VALUE = "[A-Za-z0-9_.-]{1,128}"


def _read_caller(context: CompilerContext, name: str, model: CallerModel, path: tuple[str, ...]) -> None:
    """A placeholder that is bound to the caller."""
    expression = context.declared.setdefault(name, parse_class(PLAIN_VALUE))
    try:
        pattern = _name_pattern(name, model.pattern)
    except PatternError as exc:
        context.error((*path, "pattern"), f"{model.pattern!r}: {exc}")
        return
    context.callers[name] = context.first_binding + len(context.callers)
    writes_only = name in context.write_only
    across = frozenset(context.numbers(model.across, (*path, "across")))
    names = ", ".join(sorted(model.across))
    context.bindings.append(
        Binding(
            name,
            context.home,
            model.from_,
            writes_only,
            across,
            names,
            model.pattern,
            pattern,
            expression,
            is_secret=name in context.secrets,
        )
    )


_PIECES = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|\(\?:|[()|]|.", re.DOTALL)


def _name_pattern(name: str, text: str) -> KeyPattern:
    """The form of a caller's name. Its one group at the top is the hole `name`. Raises PatternError."""
    depth, at, spans = 0, 0, []
    opened: list[int] = []  # where the groups begin that are open; -1: one that is only for grouping
    for piece in _PIECES.findall(text):
        if piece in ("(", "(?:"):
            opened.append(at if piece == "(" and not opened else -1)
        elif piece == ")" and opened:
            depth = opened.pop()
            if depth >= 0:
                spans.append((depth, at))
        elif piece == "|" and not opened:
            raise PatternError("alternatives stand in a group, as (?:a|b)-(.*)", at)
        at += len(piece)
    if len(spans) != 1:
        raise PatternError(
            "one group in parentheses is the value, as tenant-(.*); others are (?:…)",
            0 if not spans else spans[1][0],
        )
    ((start, end),) = spans
    parts = [("<", text[:start]), (name, text[start + 1 : end]), (">", text[end + 1 :])]
    return KeyPattern(text, tuple(Hole(hole, parse_class(one)) for hole, one in parts if one or hole == name))


def tenancy_of(
    context: CompilerContext, pattern: KeyPattern, reading: Sequence[int], path: Sequence[str | int]
) -> Tenancy | None:
    """What of the rights on a pattern depends on the caller; `reading` are those of readers and consumers as
    such."""
    if not any(hole.name in context.callers for hole in pattern.holes):
        return None
    try:
        across = {one.name: one.across for one in context.bindings if one.home == context.home}
        places = places_in(pattern, context.callers, context.write_only, across)
    except ValueError as exc:
        context.error(path, f"{pattern.text!r}: {exc}", of_key=path[0] in ("legacy", "instead"))
        return None
    return Tenancy(places, tuple(reading))


def bound_texts(
    context: CompilerContext, text: str, path: Sequence[str | int], *, is_pattern: bool = True
) -> list[Bound]:
    """Every pattern (or literal text) that a text stands for: itself, where no bound placeholder is in it."""
    names = [name for name in context.bound if f"<{name}>" in text]
    if not names:
        return [Bound(text, ())]
    choices = list(
        itertools.islice(itertools.product(*(context.bound[name] for name in names)), MAX_VALUES + 1)
    )
    if len(choices) > MAX_VALUES:
        context.error(
            path, f"{text!r} stands for more than {MAX_VALUES} patterns; bind fewer values in one key"
        )
        return []
    return [_filled(text, dict(zip(names, values, strict=True)), is_pattern) for values in choices]


def _filled(text: str, values: dict[str, str], is_pattern: bool) -> Bound:
    for name, value in values.items():
        text = text.replace(f"<{name}>", escaped(value) if is_pattern else value)
    return Bound(text, tuple((name, value.encode()) for name, value in sorted(values.items())))


def escaped(text: str) -> str:
    """Literal text as a pattern has it."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class Holders(NamedTuple):
    """Who may have rights on a pattern."""

    owners: frozenset[int]  # all of its bound values belong to these
    readers: frozenset[int]  # all but those that bind writing alone


def holders(context: CompilerContext, values: tuple[tuple[str, bytes], ...]) -> Holders | None:
    """The services to which these values belong; None where there are no values."""
    if not values:
        return None
    everybody = frozenset(range(len(context.services)))
    owners = {name: context.bound[name][value.decode()] for name, value in values}
    binding = [whose for name, whose in owners.items() if name not in context.write_only]
    return Holders(everybody.intersection(*owners.values()), everybody.intersection(*binding))


def held_by(rights: Sequence[int], reading: Sequence[int], whose: Holders | None) -> tuple[int, ...]:
    """What is left of the rights where some services alone may have them; `reading` is the part of the rights
    that readers and consumers have as such."""
    if whose is None:
        return tuple(rights)
    return tuple(
        held if number in whose.owners else reads if number in whose.readers else 0
        for number, (held, reads) in enumerate(zip(rights, reading, strict=True))
    )


def alike(context: CompilerContext, values: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """Those of the values that all keys of one command share. Who reads the values of all may read them at
    once."""
    return tuple(value for value in values if value[0] not in context.write_only)
