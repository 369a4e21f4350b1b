"""Redis' glob patterns (SCAN MATCH, KEYS, PSUBSCRIBE), and whether all their matches are in a set of keys.

Rule: `included` is true only if every byte string that any server can match with the glob is in the set. If
the check takes too many steps the result is not true. Steps are counted; no clock is used.

A glob is never made deterministic. Each position in the glob is followed together with the automaton's state.
So a check has at most as many joint states as the glob has items times the automaton has states.

The dialect is that of stringmatchlen in Redis' `src/util.c`: `*`, `?`, `[a-z]`, `[^a]`, and a backslash
before any byte. Its special cases:

- the ends of a range may be reversed;
- in `[a-]` the `]` ends the range, not the class;
- an unclosed class ends with the pattern;
- `[]` matches nothing, and `[^]` any byte;
- a backslash at the end of the pattern matches itself.

It differs from the language of `expressions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from keyfence.policy.budget import PATTERN_STEPS, Budget

from .automaton import NODE, NOTHING, Automaton
from .matching import Simulation
from .patterns import KeyPattern
from .regular import ANY_BYTE

_STAR, _QUESTION_MARK, _BRACKET, _CLOSING, _BACKSLASH = b"*?[]\\"
STAR = None  # the item that matches any number of bytes


class Glob:
    """A glob pattern.

    `items` are byte sets (masks with bit b for byte b) and STAR. Servers compare the ends of a range as C's
    `char`, which is signed on x86-64 and unsigned on AArch64. `items` follow x86-64; `widest` cover both.
    """

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        signed, unsigned = _parse(pattern, signed=True), _parse(pattern, signed=False)
        self.items: tuple[int | None, ...] = tuple(signed)
        self.widest: tuple[int | None, ...] = tuple(
            STAR if one is STAR or other is STAR else one | other
            for one, other in zip(signed, unsigned, strict=True)
        )

    def __repr__(self) -> str:
        return f"Glob({self.pattern!r})"

    @property
    def literal_prefix(self) -> bytes:
        """The bytes that all matches begin with, as far as there is only one choice for each."""
        prefix = bytearray()
        for item in self.widest:
            if item is STAR or item.bit_count() != 1:
                break
            prefix.append(item.bit_length() - 1)
        return bytes(prefix)

    def matches(self, key: bytes) -> bool:
        """Whether KEYS or SCAN on x86-64 would return the key.

        Only the empty glob and `*` match the empty key; KEYS and SCAN do not compare keys with `*`. The time
        is bounded by the product of both lengths.
        """
        if not key:
            return self.pattern in (b"", b"*")
        items, at, offset = self.items, 0, 0
        star, retry = -1, 0  # the last star, and the offset at which the items after it were tried
        while offset < len(key):
            item = items[at] if at < len(items) else 0
            if item is STAR:
                star, retry = at, offset
                at += 1
            elif item >> key[offset] & 1:
                at += 1
                offset += 1
            elif star >= 0:
                retry += 1
                at, offset = star + 1, retry
            else:
                return False
        return all(item is STAR for item in items[at:])


def _parse(pattern: bytes, signed: bool) -> list[int | None]:
    """The items of a glob. `signed`: whether the server compares the ends of a range as signed bytes."""
    items: list[int | None] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        if byte == _STAR:
            if not items or items[-1] is not STAR:
                items.append(STAR)
        elif byte == _QUESTION_MARK:
            items.append(ANY_BYTE)
        elif byte == _BRACKET:
            mask, at = _parse_class(pattern, at + 1, signed)
            items.append(mask)
        else:
            if byte == _BACKSLASH and at + 1 < len(pattern):
                at += 1
            items.append(1 << pattern[at])
        at += 1
    return items


def _parse_class(pattern: bytes, at: int, signed: bool) -> tuple[int, int]:
    """The bytes of the class whose `[` precedes `at`, and the offset of its closing `]`."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    mask = 0
    while at < len(pattern) and pattern[at] != _CLOSING:
        if pattern[at] == _BACKSLASH and at + 1 < len(pattern):
            at += 1
            mask |= 1 << pattern[at]
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            mask |= _range(pattern[at], pattern[at + 2], signed)
            at += 2
        else:
            mask |= 1 << pattern[at]
        at += 1
    return mask ^ ANY_BYTE if negated else mask, at


def _range(first: int, last: int, signed: bool) -> int:
    """The bytes between `first` and `last`, which may be in either order."""
    if signed:
        first, last = (byte - 256 if byte > 127 else byte for byte in (first, last))
    low, high = sorted((first, last))
    if low < 0 <= high:
        return _span(low + 256, 255) | _span(0, high)
    return _span(low % 256, high % 256)


def _span(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


class Graph:
    """The transitions of an automaton, forwards and backwards. All key sets of the automaton share it."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.predecessors: list[list[int]] = [[] for _ in range(automaton.states)]
        # By state number: the next states, without duplicates, as offsets.
        self.after: list[tuple[int, ...]] = []
        for number in range(automaton.states):
            after = tuple(set(automaton.successors(number * NODE)))
            self.after.append(after)
            for state in after:
                self.predecessors[state // NODE].append(number)
        masks = [0] * automaton.width
        for byte, kind in enumerate(automaton.classes):
            masks[kind] |= 1 << byte
        self._masks = tuple(masks)

    def kinds_in(self, item: int) -> tuple[int, ...]:
        """The byte classes that a byte set intersects."""
        if item.bit_count() == 1:
            return (self.automaton.classes[item.bit_length() - 1],)
        return tuple(kind for kind, mask in enumerate(self._masks) if mask & item)

    def leading_to(self, states: Iterable[int]) -> bytes:
        """For each state number, whether one of `states` can be reached from it, in any number of steps."""
        marked = bytearray(self.automaton.states)
        waiting = list(states)
        for number in waiting:
            marked[number] = 1
        while waiting:
            for before in self.predecessors[waiting.pop()]:
                if not marked[before]:
                    marked[before] = 1
                    waiting.append(before)
        return bytes(marked)


class KeySet:
    """The set of keys whose accept-set id a predicate allows; -1 is the id of keys that no pattern accepts.

    By state number: `unsafe` is 1 if a key that passes through the state can end outside the set, `hopeful`
    is 1 if one can end inside.
    """

    def __init__(self, graph: Graph, allowed: Callable[[int], bool]) -> None:
        automaton = graph.automaton
        self.graph = graph
        self.automaton = automaton
        self.allowed = {accept: allowed(accept) for accept in range(NOTHING, len(automaton.sets))}
        ends = [self.allowed[automaton.accept_of(number * NODE)] for number in range(automaton.states)]
        self.unsafe = graph.leading_to(number for number, inside in enumerate(ends) if not inside)
        self.hopeful = graph.leading_to(number for number, inside in enumerate(ends) if inside)

    def holds(self, key: bytes) -> bool:
        """Whether `key` is in the set."""
        return self.allowed[self.automaton.match(key)]


def positions_after(glob: Glob, beginning: KeyPattern, budget: Budget | None = None) -> int | None:
    """The positions in the glob after it has matched a whole key of `beginning`, as bits, for `included`.

    `beginning` must not have an open end; an example is `__keyspace@<digits>__:`. The result is 0 if the glob
    matches no such key, and None if the budget does not suffice.
    """
    budget = budget or Budget()
    moves, start, last = _moves_of(beginning)
    items = glob.widest
    reached = _Reached(items)
    reached.add(0, start)
    found = 0
    for at, here in reached.in_turn():
        if here & last:
            found |= 1 << at
        if at == len(items):
            continue
        item = items[at]
        if not budget.take(1 + len(moves[here])):
            return None
        if item is STAR:
            for there, _ in moves[here]:
                reached.add(at, there)
            reached.add(at + 1, here)
        else:
            for there, mask in moves[here]:
                if mask & item:
                    reached.add(at + 1, there)
    return found


@lru_cache(maxsize=64)
def _moves_of(beginning: KeyPattern) -> tuple[dict[int, list[tuple[int, int]]], int, int]:
    """The pattern as a state machine: for each state its next states with the bytes that lead there; the
    first state; and the bits of the states in which a key can end."""
    simulation = Simulation(beginning.node)
    start = simulation.START
    moves: dict[int, list[tuple[int, int]]] = {}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        if here in moves:
            continue
        masks: dict[int, int] = {}
        for byte in range(256):
            there = simulation.step(here, byte)
            if there:
                masks[there] = masks.get(there, 0) | 1 << byte
        moves[here] = list(masks.items())
        waiting += masks
    return moves, start, simulation.last


class _Reached:
    """The joint states that were reached: a position in the glob, and a state of an automaton or a pattern.

    From a star on, the glob matches everything that it matches from an earlier position. So an earlier
    position is dropped if the same state is also reached at a star.
    """

    def __init__(self, items: tuple[int | None, ...]) -> None:
        self._items = items
        self._last_star: dict[int, int] = {}
        self._seen: set[tuple[int, int]] = set()
        self._waiting: list[tuple[int, int]] = []

    def add(self, at: int, state: int) -> None:
        pair = at, state
        if at < self._last_star.get(state, 0) or pair in self._seen:
            return
        if at < len(self._items) and self._items[at] is STAR:
            self._last_star[state] = at
        self._seen.add(pair)
        self._waiting.append(pair)

    def in_turn(self) -> Iterator[tuple[int, int]]:
        """Each joint state once, the last one added first. More may be added meanwhile."""
        while self._waiting:
            pair = self._waiting.pop()
            if pair[0] >= self._last_star.get(pair[1], 0):
                yield pair


def included(glob: Glob, key_set: KeySet, budget: Budget | None = None, *, positions: int = 1) -> bool | None:
    """Whether every byte string that the glob can match is in the key set. None: the budget did not suffice;
    treat it as False.

    With `positions` (from `positions_after`), whether everything that the glob can match from there on is in
    the set. A branch of the search ends in a state from which keys cannot end outside the set. The whole
    search ends in a state from which keys cannot end inside; it also ends in a state from which keys can end
    outside if the rest of the glob is a star.
    """
    budget = budget or Budget(PATTERN_STEPS)
    items = glob.widest
    if 0 in items:
        return True  # an empty class: the glob matches nothing
    size = len(items)
    automaton, after = key_set.automaton, key_set.graph.after
    unsafe, hopeful = key_set.unsafe, key_set.hopeful
    kinds: dict[int, tuple[int, ...]] = {}
    reached = _Reached(items)
    for at in range(size + 1):
        if positions >> at & 1:
            reached.add(at, automaton.start)
    for at, here in reached.in_turn():
        if not unsafe[here // NODE]:
            continue
        if at == size:
            if not key_set.allowed[automaton.accept_of(here)]:
                return False
            continue
        item = items[at]
        if not hopeful[here // NODE] or (item is STAR and at + 1 == size):
            return False
        next_states = after[here // NODE]
        if item is not STAR and item != ANY_BYTE:
            if item not in kinds:
                if not budget.take(1 if item.bit_count() == 1 else automaton.width):
                    return None
                kinds[item] = key_set.graph.kinds_in(item)
            if len(next_states) > 1:
                row = automaton.successors(here)
                next_states = tuple({row[kind] for kind in kinds[item]})
        if not budget.take(1 + len(next_states)):
            return None
        for there in next_states:
            reached.add(at + (item is not STAR), there)
        if item is STAR:
            reached.add(at + 1, here)
    return True
