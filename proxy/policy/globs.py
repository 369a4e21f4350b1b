"""Redis' glob patterns (SCAN MATCH, KEYS, PSUBSCRIBE), and whether all that one can match is allowed.

Rule: `included` says yes only when every byte string that any server could match with the glob is allowed.
What would take too long to find out is a refusal, never a yes.

The dialect is that of stringmatchlen in Redis' `src/util.c`: `*`, `?`, `[a-z]`, `[^a]`, a backslash before
any byte. Its corners: a range may stand the wrong way round; in `[a-]` the `]` ends the range, not the class;
a class that is never closed ends with the pattern; `[]` matches nothing, `[^]` any byte; a backslash at the
very end stands for itself. It is not the language of `policy.expressions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .automaton import NODE, NOTHING, Automaton
from .languages import spell
from .matching import Simulation
from .patterns import KeyPattern
from .regular import ANY_BYTE, readable_byte

MAX_STATES = 50_000
# A glob of more items is allowed fewer joint states in proportion, since each costs more time: the worst that
# a client can ask for takes some tenths of a second.
FULL_LIMIT_ITEMS = 1_000
_STAR, _QUESTION_MARK, _BRACKET, _CLOSING, _BACKSLASH = b"*?[]\\"
STAR = None  # the item that matches any bytes, none too


class Glob:
    """A glob pattern.

    `items` are byte sets (masks with bit b for byte b) and STAR. Servers compare the ends of a range as C's
    `char`, which has a sign on x86-64 and none on AArch64; `items` are x86-64's, `widest` allow for both.
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
        """The bytes that every match begins with, as far as each can be only one."""
        prefix = bytearray()
        for item in self.widest:
            if item is STAR or item.bit_count() != 1:
                break
            prefix.append(item.bit_length() - 1)
        return bytes(prefix)

    def matches(self, key: bytes) -> bool:
        """Whether KEYS or SCAN on x86-64 would return the key.

        The empty key is matched by the empty glob and by `*` alone, which KEYS and SCAN don't compare at all.
        The time is bounded by the product of both lengths.
        """
        if not key:
            return self.pattern in (b"", b"*")
        items, at, offset = self.items, 0, 0
        star, retry = -1, 0  # the last star, and where what follows it was tried
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
    """The items of a glob; `signed` says how the server compares the ends of a range."""
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
    """The bytes of the class whose `[` is before `at`, and the offset of the `]` that closes it."""
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
    """The bytes from `first` to `last`, whichever is the smaller."""
    if signed:
        first, last = (byte - 256 if byte > 127 else byte for byte in (first, last))
    low, high = sorted((first, last))
    return sum(1 << (byte % 256) for byte in range(low, high + 1))


class Graph:
    """The transitions of an automaton, backwards; built once for all its territories."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.predecessors: list[list[int]] = [[] for _ in range(automaton.states)]
        for number in range(automaton.states):
            for after in set(automaton.successors(number * NODE)):
                self.predecessors[after // NODE].append(number)


class Territory:
    """The part of all byte strings that a predicate over accept-set ids (-1: no pattern accepts) allows.

    `safe[state // NODE]` is 1 where no key that passes through the state can end outside.
    """

    def __init__(self, graph: Graph, allowed: Callable[[int], bool]) -> None:
        automaton = graph.automaton
        self.automaton = automaton
        self.allowed = {accept: allowed(accept) for accept in range(NOTHING, len(automaton.sets))}
        safe = bytearray(b"\x01" * automaton.states)
        unsafe = [
            number
            for number in range(automaton.states)
            if not self.allowed[automaton.accept_of(number * NODE)]
        ]
        for number in unsafe:
            safe[number] = 0
        while unsafe:
            for before in graph.predecessors[unsafe.pop()]:
                if safe[before]:
                    safe[before] = 0
                    unsafe.append(before)
        self.safe = bytes(safe)

    def holds(self, key: bytes) -> bool:
        """Whether this one key is inside."""
        return self.allowed[self.automaton.match(key)]


class Inclusion(NamedTuple):
    """Whether all that a glob can match is inside a territory.

    `inside` is None where finding out would have taken more than the states allowed: treat it as no.
    `witness` is a key outside that the glob matches, where `inside` is False.
    """

    inside: bool | None
    witness: bytes | None
    states: int  # joint states visited


def places_after(glob: Glob, beginning: KeyPattern) -> int:
    """Where the glob can be after it has matched a whole name of the pattern, for `included`; 0 for nowhere.

    The names must be of a pattern without an open end, as `__keyspace@<digits>__:`. Each place is followed on
    its own: all of them together could be in more states than there is time for (`*1????????`).
    """
    simulation = Simulation(beginning.node)
    steps: dict[int, list[tuple[int, int]]] = {}
    items = glob.widest
    start = 0, simulation.START
    seen = {start}
    queue = [start]
    found = 0
    for at, here in queue:  # grows while it is walked
        if here & simulation.last:
            found |= 1 << at
        if at == len(items):
            continue
        if here not in steps:
            reached = ((byte, simulation.step(here, byte)) for byte in range(256))
            steps[here] = [(byte, there) for byte, there in reached if there]
        item = items[at]
        after = [
            (at + (item is not STAR), there)
            for byte, there in steps[here]
            if item is STAR or item >> byte & 1
        ]
        if item is STAR:
            after.append((at + 1, here))
        new = set(after) - seen
        seen |= new
        queue += new
    return _Walk(glob, bytes(256)).settle(found)


def included(glob: Glob, territory: Territory, max_states: int = MAX_STATES, *, places: int = 0) -> Inclusion:
    """Whether every byte string that the glob can match is inside the territory.

    With `places` (of `places_after`) it is what the glob can match from there on.

    Past `max_states` joint states, fewer for a very long glob, there is no answer. Walks glob and automaton
    together, breadth first, and stops wherever the automaton can't leave the territory any more; so a glob
    that ends in `*` below a scope's prefix costs little more than its own length.
    """
    automaton, safe = territory.automaton, territory.safe
    walk = _Walk(glob, automaton.classes)
    max_states = max_states * FULL_LIMIT_ITEMS // max(FULL_LIMIT_ITEMS, len(walk.items))
    start = places or walk.start, automaton.start
    origin: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {start: None}
    queue = [start] if not safe[automaton.start // NODE] else []
    empty_escapes = False
    for pair in queue:  # grows while it is walked
        state, here = pair
        if state & walk.accepting and not territory.allowed[automaton.accept_of(here)]:
            if pair != start:
                return Inclusion(False, spell(origin, pair), len(origin))
            empty_escapes = True  # true, but any other witness tells more
        row = automaton.successors(here)
        for byte, number, next_state in walk.moves(state):
            after = next_state, row[number]
            if after in origin or safe[after[1] // NODE]:
                continue
            if len(origin) >= max_states:
                return Inclusion(None, None, len(origin))
            origin[after] = pair, byte
            queue.append(after)
    return Inclusion(not empty_escapes, b"" if empty_escapes else None, len(origin))


class _Walk:
    """All places of a glob at once: an int with bit i set where item i comes next."""

    def __init__(self, glob: Glob, classes: bytes) -> None:
        """`classes` are the automaton's: byte → class."""
        self.items = glob.widest
        self.accepting = 1 << len(self.items)
        self.stars = sum(1 << at for at, item in enumerate(self.items) if item is STAR)
        self.start = self.settle(1)
        kinds: dict[tuple[int, ...], int] = {}
        sets = list(dict.fromkeys(item for item in self.items if item is not STAR))
        for byte in range(256):
            kind = classes[byte], *[item >> byte & 1 for item in sets]
            kinds[kind] = kinds.get(kind, 0) | 1 << byte
        self.bytes = sorted(map(readable_byte, kinds.values()), key=lambda byte: not 32 < byte < 127)
        self.classes = classes
        self.readers = {
            byte: sum(1 << at for at, item in enumerate(self.items) if item is not STAR and item >> byte & 1)
            for byte in self.bytes
        }
        self.known: dict[int, list[tuple[int, int, int]]] = {}

    def moves(self, state: int) -> list[tuple[int, int, int]]:
        """For each kind of byte that leads on: a byte of it, its class in the automaton, the next state."""
        known = self.known.get(state)
        if known is None:
            known = []
            for byte in self.bytes:
                after = self.settle((state & self.readers[byte]) << 1 | state & self.stars)
                if after:
                    known.append((byte, self.classes[byte], after))
            self.known[state] = known
        return known

    def settle(self, state: int) -> int:
        """Adds the places behind stars, and drops those before the last star: it admits all that they do."""
        passed = state & self.stars
        while passed:
            state |= passed << 1
            passed = (passed << 1) & self.stars
        last = (state & self.stars).bit_length()
        return state >> (last - 1) << (last - 1) if last else state
