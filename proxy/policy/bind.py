"""Bound placeholders: `<ns>` stands for values that belong to services, as `cosky-{default}`.

Rule: a pattern with a bound placeholder is one pattern for each value, and a service holds rights only on
the patterns of its own values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from .draft import SCOPE_HOLE, Draft
from .patterns import ANYTHING, literal_class

MAX_VALUES = 1000  # patterns that one text may stand for

_SPECIAL = re.compile(r"[<>\\]")


class Bound(NamedTuple):
    """One of the patterns that a text stands for."""

    text: str  # with the values filled in
    values: tuple[tuple[str, bytes], ...]  # (placeholder, value), by name


def read_bindings(draft: Draft) -> None:
    """The bound placeholders and whose their values are, into the draft."""
    for name, by_service in draft.model.bind.items():
        path = ("bind", name)
        if name in draft.declared or name == SCOPE_HOLE:
            draft.error(path, f"the placeholder {name} is declared already; choose another name", of_key=True)
            continue
        values: dict[str, set[int]] = {}
        for service, owned in by_service.items():
            number = draft.number(service, (*path, service), of_key=True)
            for index, value in enumerate(owned):
                if not value:
                    draft.error(
                        (*path, service, index), "an empty value would bind every key; write its text"
                    )
                    continue
                values.setdefault(value, set()).update(() if number is None else (number,))
        if not any(values):
            relies_on = [("services",), path]
            draft.error(path, f"no service has a value of <{name}>", of_key=True, relies_on=relies_on)
            draft.declared[name] = ANYTHING  # the file isn't used; its keys are still looked at
            continue
        draft.bound[name] = values
        draft.declared[name] = literal_class(value.encode() for value in values)


def bound_texts(
    draft: Draft, text: str, path: Sequence[str | int], *, is_pattern: bool = True
) -> list[Bound]:
    """Every pattern (or literal text) that a text stands for: itself, where no bound placeholder is in it."""
    names = [name for name in draft.bound if f"<{name}>" in text]
    if not names:
        return [Bound(text, ())]
    choices = list(
        itertools.islice(itertools.product(*(draft.bound[name] for name in names)), MAX_VALUES + 1)
    )
    if len(choices) > MAX_VALUES:
        draft.error(
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


def holders(draft: Draft, values: tuple[tuple[str, bytes], ...]) -> frozenset[int] | None:
    """The services to which all of these values belong; None where there are no values."""
    if not values:
        return None
    owners = [draft.bound[name][value.decode()] for name, value in values]
    return frozenset(owners[0].intersection(*owners[1:]))


def held_by(rights: Sequence[int], whose: frozenset[int] | None) -> tuple[int, ...]:
    """The rights that are left of these where only some services may have any."""
    if whose is None:
        return tuple(rights)
    return tuple(held if number in whose else 0 for number, held in enumerate(rights))


def differing(
    first: dict[str, bytes], bound: tuple[tuple[str, bytes], ...]
) -> tuple[str, bytes, bytes] | None:
    """Where a key differs in a bound placeholder from the keys before it: (name, value, earlier value).

    `first` has the value that each placeholder had first, and takes in those of this key.
    """
    for name, value in bound:
        if first.setdefault(name, value) != value:
            return name, value, first[name]
    return None
