"""Joins shapes that are one kind of keys: those of product codes, of categories, of names.

Rule: the same words are taken for names as in a draft (`authoring.learn.kinds`), so what a user sees here is
what `keyfence draft` makes entries of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from keyfence.authoring.learn.kinds import Part, kinds_of
from keyfence.authoring.learn.seen import MARK, Facts
from keyfence.authoring.replay import row_named
from keyfence.commands.effects import effect_of
from keyfence.commands.model import WRITE
from keyfence.shapes.shapes import ANY, parsed


@dataclasses.dataclass(slots=True)
class Seen:
    """What is known of the keys of each shape."""

    facts: dict[str, Facts] = dataclasses.field(default_factory=dict)  # by shape

    def add_keys(self, shape: str, types: Mapping[str, int]) -> None:
        """Keys of a shape are there."""
        there = self.facts.setdefault(shape, Facts()).types.there
        for one, keys in types.items():
            there[(one,)] += keys

    def add_command(self, shape: str, service: str, command: str, times: int) -> bool:
        """A service has sent a command on keys of a shape. Returns whether it writes."""
        row = row_named(command)
        if row is None or not row.specs:
            return False
        effect = effect_of(row, 0)
        facts, writes = self.facts.setdefault(shape, Facts()), bool(effect.needs & WRITE)
        facts.see(service, command, effect.needs, times, "")
        facts.types.see(service, effect.types, writes=writes, times=times)
        return writes

    def kinds(self) -> dict[str, str]:
        """The kind of each shape."""
        shapes = {_marked(shape): shape for shape in self.facts}
        found = kinds_of({text: self.facts[shape] for text, shape in shapes.items()})
        return {
            shapes[text]: shapes[text] if len(one.keys) == 1 else _text(one.parts)
            for one in found
            for text in one.keys
        }


def _marked(shape: str) -> str:
    """A shape as evidence has it."""
    return "".join(one if isinstance(one, str) else f"{MARK}{one.kind}{MARK}" for one in parsed(shape))


def _text(parts: list[Part]) -> str:
    return "".join(one if isinstance(one, str) else _of_values(one.values) for one in parts)


def _of_values(values: set[str]) -> str:
    """The placeholder for these values, which may hold placeholders themselves."""
    value = next(iter(values))
    is_one = len(values) == 1 and value.count(MARK) == 2 and value[0] == value[-1] == MARK
    return f"<{value.strip(MARK)}>" if is_one else ANY
