"""The resources that a command names besides keys: channels, key patterns, databases and scripts.

Commands that touch the whole key space without naming anything (FLUSHALL, DBSIZE, MONITOR, SLOWLOG GET …)
name nothing; the policy decides about them by name and category.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .arguments import integer
from .model import Channel, Pattern, Problem, Script

Argv = Sequence[bytes]


class Resources(NamedTuple):
    """The fields of `Touches` with the same names."""

    channels: Sequence[Channel] = ()
    pattern: Pattern | None = None
    script: Script | None = None
    databases: tuple[tuple[int, int], ...] = ()
    problem: Problem | None = None


NO_RESOURCES = Resources()
ALL_NAMES = Resources(pattern=Pattern(0, b"*"))


def every_name(_argv: Argv) -> Resources:
    """RANDOMKEY, CLUSTER GETKEYSINSLOT: the reply can name any key."""
    return ALL_NAMES


def databases(*positions: int) -> Callable[[Argv], Resources]:
    """SELECT db, MOVE key db, SWAPDB db db. The server answers an error if an argument is not an integer."""

    def find(argv: Argv) -> Resources:
        numbers = [(i, integer(argv[i])) for i in positions if i < len(argv)]
        return Resources(databases=tuple((i, number) for i, number in numbers if number is not None))

    return find
