"""Matches byte strings against a regular language, including lengths.

Rule: the time is linear in the key's length for any key. A match is either a simulation of all positions at
once, or a regular expression with possessive counters only. Neither backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from .regular import SEPARATOR_MASK, Bytes, Concat, Joined, Node, Repeat, bytes_of, positions

# Steps cached per simulation. When the cache is full it is cleared.
CACHED_STEPS = 4096


class Simulation:
    """Runs the position automaton of a language. A state is an integer whose bit i is set if position i is
    active; bit 0 is the start."""

    START = 1

    def __init__(self, node: Node) -> None:
        automaton = positions(node)
        self._follow = [sum(1 << target for target in targets) for targets in automaton.follow]
        self.last = sum(1 << position for position in automaton.last)
        self._readers = [0] * 256  # byte → the positions that read it
        readers_of_mask: dict[int, int] = {}
        for position, mask in enumerate(automaton.masks):
            readers_of_mask[mask] = readers_of_mask.get(mask, 0) | 1 << position
        for mask, readers in readers_of_mask.items():
            for byte in bytes_of(mask):
                self._readers[byte] |= readers
        self._steps: dict[tuple[int, int], int] = {}

    def readers(self, byte: int) -> int:
        """The positions that read `byte`. Bytes with the same readers are equivalent in this language."""
        return self._readers[byte]

    def following(self, state: int) -> int:
        """The positions that may come next, for any byte."""
        targets = 0
        while state:
            lowest = state & -state
            targets |= self._follow[lowest.bit_length() - 1]
            state ^= lowest
        return targets

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte; 0 if the key can no longer match."""
        known = self._steps.get((state, byte))
        if known is None:
            known = self.following(state) & self._readers[byte]
            if len(self._steps) >= CACHED_STEPS:
                self._steps.clear()
            self._steps[state, byte] = known
        return known

    def matches(self, key: bytes) -> bool:
        state = self.START
        for byte in key:
            state = self.step(state, byte)
            if not state:
                return False
        return bool(state & self.last)

    def ends(self, key: bytes, starts: Iterable[int]) -> set[int]:
        """The offsets at which a word of the language can end if it begins at one of `starts`."""
        waiting = sorted(starts, reverse=True)
        found: set[int] = set()
        state = 0
        offset = waiting[-1] if waiting else len(key) + 1
        while offset <= len(key):
            if waiting and waiting[-1] == offset:
                waiting.pop()
                state |= self.START
            if state & self.last:
                found.add(offset)
            if offset < len(key):
                state = self.step(state, key[offset])
            if not state and not waiting:
                break
            offset += 1
        return found


class _Item:
    """A byte set with a counter, or a run of items that repeats with separators between them (`joined`).

    A joined item leaves the last `left` separators of the key to the items after it.
    """

    def __init__(self, mask: int, least: int, most: int | None, joined: list[_Item] | None = None) -> None:
        self.mask = mask
        self.least = least
        self.most = most
        self.joined = joined
        self.left = 0


def linear_regex(nodes: list[Node], captured: list[bool]) -> re.Pattern[bytes] | None:
    """A regular expression for the concatenation of `nodes`, with a group for each `captured` one. None if
    its linear time cannot be guaranteed.

    Every counter is possessive: it takes as many bytes as it can and never gives any back. The result is the
    same if the byte after a run cannot belong to the run, which is checked item by item.
    """
    runs: list[list[_Item]] = []
    for node in nodes:
        run = _items(node)
        if run is None:
            return None
        runs.append(run)
    flat = [item for run in runs for item in run]
    for at, item in enumerate(flat):
        if item.joined:
            item.left = _separators_behind(item.joined, flat[at + 1 :])
    if not all(_settled(flat[at], flat[at + 1] if at + 1 < len(flat) else None) for at in range(len(flat))):
        return None
    source = b""
    for run, is_captured in zip(runs, captured, strict=True):
        text = b"".join(map(_regex, run))
        source += b"(" + text + b")" if is_captured else text
    return re.compile(source, re.DOTALL)


def _items(node: Node) -> list[_Item] | None:
    match node:
        case Bytes(mask):
            return [_Item(mask, 1, 1)]
        case Repeat(Bytes(mask), least, most):
            return [_Item(mask, least, most)]
        case Concat(parts):
            run: list[_Item] = []
            for part in parts:
                items = _items(part)
                if items is None:
                    return None
                run += items
            return run
        case Joined(inner):
            items = _items(inner)
            if not items or not _inner_settled(items):
                return None
            return [_Item(items[0].mask, min(items[0].least, 1), None, items)]
    return None


def _inner_settled(items: list[_Item]) -> bool:
    return all(_settled(item, after) for item, after in pairwise(items))


def _separators_behind(inner: list[_Item], behind: list[_Item]) -> int:
    """How many separators belong to the items after a joined run. 0 if a key could be divided in several
    ways.

    There is only one way if these items begin with a separator and have a fixed number of separators, and the
    run's segments have none.
    """
    if not behind or behind[0].mask != SEPARATOR_MASK or any(item.mask & SEPARATOR_MASK for item in inner):
        return 0
    count = 0
    for item in behind:
        if not item.mask & SEPARATOR_MASK and not item.joined:
            continue
        if item.joined or item.mask != SEPARATOR_MASK or item.least != item.most:
            return 0
        count += item.least
    return count


def _settled(item: _Item, after: _Item | None) -> bool:
    """Whether an item that takes as many bytes as it can never takes a byte that `after` needs."""
    taken = 0
    if item.joined:
        taken |= 0 if item.left else SEPARATOR_MASK
        tail = item.joined[-1]
        if tail.least != tail.most:
            taken |= tail.mask
            if tail.mask & SEPARATOR_MASK:
                return False
    elif item.least != item.most:
        taken |= item.mask
    if not taken or after is None:
        return True
    return after.least > 0 and not taken & after.mask


def _regex(item: _Item) -> bytes:
    if item.joined:
        inner = b"".join(map(_regex, item.joined))
        # The look-ahead reads each byte at most `left` times.
        ahead = b"(?=" + b":[^:]*+" * item.left + b")" if item.left else b""
        # An atomic group, because Python 3.11.2 (Debian 12) matches the equivalent possessive repeat wrongly.
        return b"(?:" + inner + b")(?>(?::(?:" + inner + b")" + ahead + b")*)"
    members = b"[" + b"".join(b"\\x%02x" % byte for byte in bytes_of(item.mask)) + b"]"
    if item.least == item.most == 1:
        return members
    return members + b"{%d,%s}+" % (item.least, b"" if item.most is None else b"%d" % item.most)
