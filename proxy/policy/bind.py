"""Bound placeholders: `<ns>` stands for values that belong to services, as `cosky-{default}`.

Rule: a pattern with a bound placeholder is one pattern for each value, and a service holds rights only on
the patterns of its own values. One that binds writing alone leaves readers and consumers their rights on
the patterns of all values.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from .draft import SCOPE_HOLE, Draft
from .model import WriteModel
from .patterns import literal_class

MAX_VALUES = 1000  # patterns that one text may stand for

_SPECIAL = re.compile(r"[<>\\]")


class Bound(NamedTuple):
    """One of the patterns that a text stands for."""

    text: str  # with the values filled in
    values: tuple[tuple[str, bytes], ...]  # (placeholder, value), by name


def read_bindings(draft: Draft) -> None:
    """The bound placeholders and whose their values are, into the draft."""
    for name, model in draft.model.bind.items():
        path: tuple[str, ...] = ("bind", name)
        if name in draft.classes or name == SCOPE_HOLE:
            draft.error(path, f"the placeholder {name} is declared already; choose another name", of_key=True)
            continue
        if isinstance(model, WriteModel):
            path = (*path, "write")
            draft.write_only.add(name)
        by_service = model.write if isinstance(model, WriteModel) else model
        values: dict[str, set[int]] = {}
        for service, owned in by_service.items():
            number = draft.number(service, (*path, service), of_key=True)
            for index, value in enumerate(owned):
                if not value:
                    draft.error(
                        (*path, service, index), "an empty value would bind every key; write its text"
                    )
                values.setdefault(value, set()).update(() if number is None else (number,))
        if not any(values):
            draft.error(path, f"no service has a value of <{name}>", of_key=True)
            continue
        draft.bound[name] = values
        draft.classes[name] = literal_class(value.encode() for value in values)


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
        text = text.replace(f"<{name}>", _SPECIAL.sub(r"\\\g<0>", value) if is_pattern else value)
    return Bound(text, tuple((name, value.encode()) for name, value in sorted(values.items())))


class Holders(NamedTuple):
    """Who may have rights on a pattern."""

    owners: frozenset[int]  # all of its bound values belong to these
    readers: frozenset[int]  # all but those that bind writing alone


def holders(draft: Draft, values: tuple[tuple[str, bytes], ...]) -> Holders | None:
    """The services to which these values belong; None where there are no values."""
    if not values:
        return None
    everybody = frozenset(range(len(draft.services)))
    owners = {name: draft.bound[name][value.decode()] for name, value in values}
    binding = [whose for name, whose in owners.items() if name not in draft.write_only]
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


def alike(draft: Draft, values: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """Those of the values that all keys of one command share. Who reads the values of all may read them at
    once."""
    return tuple(value for value in values if value[0] not in draft.write_only)


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
