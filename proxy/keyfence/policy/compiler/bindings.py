"""Bound placeholders: `<ns>` stands for values that belong to services, such as `cosky-{default}`.

Rule: a pattern with a bound placeholder becomes one pattern for each value, and a service holds rights only
on the patterns of its own values. If a placeholder binds writing only, readers and consumers keep their
rights on the patterns of all values. A placeholder that is bound to the caller is not expanded (`tenants`).
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
    """Reads the bound placeholders and the owners of their values into the context."""
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
                        (*path, service, index), "an empty value would bind every key; write the value"
                    )
                    continue
                values.setdefault(value, set()).update(() if number is None else (number,))
        if not any(values):
            relies_on = [("services",), path]
            context.error(path, f"no service has a value of <{name}>", of_key=True, relies_on=relies_on)
            context.declared[name] = ANYTHING  # the file is not used, but its keys are still checked
            continue
        context.bound[name] = values
        context.declared[name] = literal_class(value.encode() for value in values)


# The class of a placeholder bound to the caller, if `placeholders` does not set it.
PLAIN_VALUE = "[A-Za-z0-9_.-]{1,128}"


def _read_caller(context: CompilerContext, name: str, model: CallerModel, path: tuple[str, ...]) -> None:
    """Reads a placeholder that is bound to the caller."""
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
    """Returns the form of a caller's name. Its one top-level group is the hole `name`. Raises
    PatternError."""
    depth, at, spans = 0, 0, []
    opened: list[int] = []  # where the open groups begin; -1: a group that is not the value
    for piece in _PIECES.findall(text):
        if piece in ("(", "(?:"):
            opened.append(at if piece == "(" and not opened else -1)
        elif piece == ")" and opened:
            depth = opened.pop()
            if depth >= 0:
                spans.append((depth, at))
        elif piece == "|" and not opened:
            raise PatternError("put alternatives in a group, as (?:a|b)-(.*)", at)
        at += len(piece)
    if len(spans) != 1:
        raise PatternError(
            "put the value in the only plain group, as tenant-(.*); write other groups as (?:…)",
            0 if not spans else spans[1][0],
        )
    ((start, end),) = spans
    parts = [("<", text[:start]), (name, text[start + 1 : end]), (">", text[end + 1 :])]
    return KeyPattern(text, tuple(Hole(hole, parse_class(one)) for hole, one in parts if one or hole == name))


def tenancy_of(
    context: CompilerContext, pattern: KeyPattern, reading: Sequence[int], path: Sequence[str | int]
) -> Tenancy | None:
    """Returns which rights on a pattern depend on the caller. `reading` are the rights that come from
    `readers` and `consumers`."""
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
    """Returns every pattern (or literal text) that a text stands for; without bound placeholders, itself."""
    for name in context.bound:
        if is_pattern and f"<{name}...>" in text:
            message = f"keys do not show whose value <{name}...> stands for; write <{name}>"
            context.error(path, f"{text!r}: {message}", of_key=path[0] in ("legacy", "instead"))
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
    """Returns literal text escaped for a pattern."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class Holders(NamedTuple):
    """The services that may have rights on a pattern."""

    owners: frozenset[int]  # that own all of its bound values
    readers: frozenset[int]  # that own all of them except those that bind writing only


def holders(context: CompilerContext, values: tuple[tuple[str, bytes], ...]) -> Holders | None:
    """Returns the services that own these values; None if there are no values."""
    if not values:
        return None
    everybody = frozenset(range(len(context.services)))
    owners = {name: context.bound[name][value.decode()] for name, value in values}
    binding = [whose for name, whose in owners.items() if name not in context.write_only]
    return Holders(everybody.intersection(*owners.values()), everybody.intersection(*binding))


def held_by(rights: Sequence[int], reading: Sequence[int], whose: Holders | None) -> tuple[int, ...]:
    """Returns what is left of the rights if only some services may have them. `reading` is the part of the
    rights that comes from `readers` and `consumers`."""
    if whose is None:
        return tuple(rights)
    return tuple(
        held if number in whose.owners else reads if number in whose.readers else 0
        for number, (held, reads) in enumerate(zip(rights, reading, strict=True))
    )


def alike(context: CompilerContext, values: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """Returns the values that all keys of one command must share. Those that bind writing only are left out:
    a service that may read all values may read them in one command."""
    return tuple(value for value in values if value[0] not in context.write_only)
