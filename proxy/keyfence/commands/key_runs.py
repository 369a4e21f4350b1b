"""Where a command has keys, as runs of positions, for commands whose options decide it (`facts.KeyFinder`).

A server runs nothing after a syntax error, but another version may know the option. So after the first
unknown option, every position that could hold a key counts as a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .arguments import integer, option
from .model import READ, WRITE, Problem, Unseen

Argv = Sequence[bytes]


class Run(NamedTuple):
    """Positions of keys, the rights needed there, and the role: the index of the row's key spec."""

    positions: range
    needs: int
    role: int = 0


class Keys(NamedTuple):
    """The keys of one command, and a problem if there may be more."""

    runs: list[Run]
    problem: Problem | None = None


MAX_UNSEEN = 16  # globs listed for one command; with more, the command may touch any key


def bounded(unseen: Iterable[Unseen]) -> tuple[Unseen, ...]:
    """`unseen` without duplicates, or a single `*` if there are more than MAX_UNSEEN."""
    found = dict.fromkeys(unseen)
    return tuple(found) if len(found) <= MAX_UNSEEN else (next(iter(found))._replace(glob=b"*"),)


def one(position: int) -> range:
    """A single position."""
    return range(position, position + 1)


def source(argv: Argv) -> list[Run]:
    """The key at position 1, which is only read."""
    return [Run(one(1), READ)] if len(argv) > 1 else []


def destinations(positions: list[int], role: int) -> list[Run]:
    """Keys that options name, and that are only written."""
    return runs_of(map(one, sorted(set(positions))), WRITE, role)


def runs_of(pieces: Iterable[range], needs: int, role: int = 0) -> list[Run]:
    """Ascending pieces as runs. Overlapping pieces become one run."""
    runs: list[Run] = []
    first = end = 0
    for piece in pieces:
        if piece.start > end:
            if end:
                runs.append(Run(range(first, end), needs, role))
            first = piece.start
        end = max(end, piece.stop)
    if end:
        runs.append(Run(range(first, end), needs, role))
    return runs


def after(argv: Argv, names: frozenset[bytes], start: int) -> Iterator[int]:
    """The position after each argument that is one of `names`. Reads all remaining arguments, so call it
    once. Raises TooManyOptions."""
    return (i + 1 for i in range(start, len(argv) - 1) if option(argv, i) in names)


def numkeys(argv: Argv, count_at: int, first: int, step: int = 1) -> range:
    """The positions of counted keys, `step` arguments apart: EVAL, ZUNION, MSETEX …

    All known servers answer an error if the count is not a positive integer, or exceeds the number of
    arguments. Other servers might read it differently, so then all arguments from `first` on count as keys.
    """
    count = integer(argv[count_at]) if count_at < len(argv) else None
    if count is None or not 0 < count * step <= len(argv) - first:
        return range(first, len(argv))
    return range(first, first + count * step, step)
