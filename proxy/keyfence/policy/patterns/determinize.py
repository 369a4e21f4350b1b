"""Builds one deterministic automaton from all key patterns of a policy.

Rule: for each pattern the automaton accepts exactly `KeyPattern.relaxed`. A policy that needs too many states
is refused with the names of its worst patterns; it never exhausts the memory.

The construction makes the position automaton of all patterns (`regular.positions`), in which patterns with
the same literal prefix share positions. The subset construction follows. Most positions read a single byte;
the few that read a set of bytes (placeholders) decide where all other bytes lead. So states share rows that
depend only on their placeholders. A single byte becomes an exception next to the row; only a state with
several exceptions gets its own patched copy of the row. There is no minimisation, because nearly all states
lead to different patterns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .automaton import DEAD, NOTHING, Automaton, Classifier
from .patterns import KeyPattern, Part, relaxed_part
from .regular import ANY_BYTE, Concat, Positions, bytes_of, positions

MAX_STATES = 200_000
# The average number of positions per allowed state. It bounds the memory if states hold many positions.
POSITIONS_PER_STATE = 40
# The owner of positions that several patterns share.
_SHARED = -1


class TooManyStates(ValueError):
    """The patterns need more states than allowed.

    `worst` are the indexes of the patterns that occur in most states, the worst first, at most five. States
    multiply if a placeholder may hold the separator, or the text that follows the placeholder.
    """

    def __init__(self, max_states: int, worst: tuple[int, ...], texts: tuple[str, ...]) -> None:
        super().__init__(max_states, worst, texts)
        self.max_states = max_states
        self.worst = worst
        self.texts = texts

    def __str__(self) -> str:
        return f"more than {self.max_states} states are needed, most of them for: {', '.join(self.texts)}"


def build(patterns: Sequence[KeyPattern], max_states: int = MAX_STATES) -> Automaton:
    """The automaton of `patterns`, which are in order of precedence.

    Raises `TooManyStates` if it would have more than `max_states` states.
    """
    return _Construction(patterns, max_states).run()


def classify(patterns: Sequence[KeyPattern], max_states: int = MAX_STATES) -> Classifier:
    """The automaton of `patterns` together with them, to confirm lengths. Raises `TooManyStates`."""
    return Classifier(build(patterns, max_states), tuple(patterns))


def byte_classes(masks: Iterable[int]) -> bytes:
    """The class of each byte, in the coarsest division of which every mask is a union of classes."""
    blocks = [ANY_BYTE]
    for mask in dict.fromkeys(masks):
        blocks = [part for block in blocks for part in (block & mask, block & ~mask) if part]
    classes = bytearray(256)
    for number, block in enumerate(sorted(blocks, key=lambda block: block & -block)):
        for byte in bytes_of(block):
            classes[byte] = number
    return bytes(classes)


class _Template(NamedTuple):
    """A row that states share."""

    row: int  # its offset in `rows`
    sets: list[frozenset[int]]  # of positions
    group_of: list[int]  # for each byte class: which of the sets it leads to


class _Construction:
    def __init__(self, patterns: Sequence[KeyPattern], max_states: int) -> None:
        self.patterns = patterns
        self.max_states = max_states
        self.masks = [0]  # position 0 is before the first byte of all patterns
        self.follow: list[list[int]] = [[]]
        self.owner = [_SHARED]  # position → pattern
        self.ends: dict[int, list[int]] = {}  # position → the patterns whose keys may end there
        self.beginnings: dict[tuple[int, int], int] = {}  # a position and the next byte → next position
        self.behind: dict[tuple[Part, ...], Positions] = {}
        for index, pattern in enumerate(patterns):
            self._add(index, pattern)
        self.finals = frozenset(self.ends)
        self._divide_bytes()
        self.set_ids: dict[frozenset[int], int] = {}
        self.sets: list[tuple[int, ...]] = []
        self.states: dict[frozenset[int], int] = {frozenset(): DEAD}
        self.pending: list[frozenset[int]] = []
        self.held = 0
        self.nodes = array("i", (-1, DEAD, 0, NOTHING))
        self.rows = array("i", bytes(4 * self.width))
        self.templates: dict[frozenset[int], _Template] = {}
        self.divisions: dict[tuple[int, ...], tuple[list[tuple[int, ...]], list[int]]] = {}

    def run(self) -> Automaton:
        if not self.patterns:  # the start is a second dead state
            return Automaton(self.classes, self.nodes * 2, self.rows, ())
        self._state(frozenset([0]))
        # Depth first, so that states along literal text get adjacent numbers.
        while self.pending:
            members = self.pending.pop()
            self._connect(self.states[members], members)
        return Automaton(self.classes, self.nodes, self.rows, tuple(self.sets))

    def _add(self, index: int, pattern: KeyPattern) -> None:
        prefix = pattern.literal_prefix
        at = self._beginning(prefix)
        behind = self._behind(pattern.parts[1:] if prefix else pattern.parts)
        base = len(self.masks) - 1  # its position 0 is `at`
        self.masks.extend(behind.masks[1:])
        self.owner.extend([index] * (len(behind.masks) - 1))
        self.follow.extend([[base + target for target in targets] for targets in behind.follow[1:]])
        self.follow[at].extend([base + target for target in behind.follow[0]])
        for position in behind.last:
            self.ends.setdefault(base + position if position else at, []).append(index)

    def _beginning(self, prefix: bytes) -> int:
        """The position after a literal prefix. Patterns with the same prefix share it."""
        at = 0
        for byte in prefix:
            known = self.beginnings.get((at, byte))
            if known is None:
                known = self.beginnings[at, byte] = len(self.masks)
                self.masks.append(1 << byte)
                self.owner.append(_SHARED)
                self.follow.append([])
                self.follow[at].append(known)
            at = known
        return at

    def _behind(self, parts: tuple[Part, ...]) -> Positions:
        """The positions of the parts after a literal prefix. Cached, because many patterns end in the same
        parts."""
        known = self.behind.get(parts)
        if known is None:
            known = self.behind[parts] = positions(Concat(tuple(map(relaxed_part, parts))))
        return known

    def _divide_bytes(self) -> None:
        """Compute the byte classes, and divide each position's moves into those of a single class (narrow)
        and others (broad)."""
        self.classes = byte_classes(mask for mask in self.masks if mask)
        self.width = max(self.classes) + 1
        self.representatives = [self.classes.index(number) for number in range(self.width)]
        narrow_class = {}
        for mask in set(self.masks):
            numbers = [number for number, byte in enumerate(self.representatives) if mask >> byte & 1]
            if len(numbers) == 1:
                narrow_class[mask] = numbers[0]
        nothing: frozenset[int] = frozenset()
        self.narrow: list[tuple[tuple[int, int], ...]] = []
        self.broad: list[frozenset[int]] = []
        shared: dict[tuple[int, ...], frozenset[int]] = {(): nothing}
        for targets in self.follow:
            here: list[tuple[int, int]] = []
            wide: list[int] = []
            for target in targets:
                number = narrow_class.get(self.masks[target])
                if number is None:
                    wide.append(target)
                else:
                    here.append((number, target))
            self.narrow.append(tuple(here))
            self.broad.append(shared.setdefault(tuple(wide), frozenset(wide)))

    def _state(self, members: frozenset[int]) -> int:
        """The offset of the state for this set of positions. A new state is queued."""
        known = self.states.get(members)
        if known is not None:
            return known
        if len(self.states) > self.max_states or self.held > self.max_states * POSITIONS_PER_STATE:
            raise self._too_many()
        offset = self.states[members] = len(self.nodes)
        self.held += len(members)
        self.pending.append(members)
        self.nodes.extend((-1, DEAD, 0, self._accept_set(members)))
        return offset

    def _accept_set(self, members: frozenset[int]) -> int:
        final = members & self.finals
        if not final:
            return NOTHING
        accepting = frozenset([index for position in final for index in self.ends[position]])
        known = self.set_ids.get(accepting)
        if known is None:
            known = self.set_ids[accepting] = len(self.sets)
            self.sets.append(tuple(sorted(accepting)))
        return known

    def _connect(self, state: int, members: frozenset[int]) -> None:
        """Set a state's row and exception."""
        broad: frozenset[int] | None = None
        narrow: dict[int, list[int]] = {}
        for position in members:
            wide = self.broad[position]
            if broad is None or broad is wide or not broad:
                broad = wide
            elif wide:
                broad |= wide
            for number, target in self.narrow[position]:
                narrow.setdefault(number, []).append(target)
        row, sets, group_of = self._template(broad or frozenset())
        exceptions = [(at, self._state(sets[group_of[at]].union(targets))) for at, targets in narrow.items()]
        if len(exceptions) == 1:
            self.nodes[state], self.nodes[state + 1] = exceptions[0]
        elif exceptions:
            patched = self.rows[row : row + self.width]
            for number, target in exceptions:
                patched[number] = target
            row = len(self.rows)
            self.rows.extend(patched)
        self.nodes[state + 2] = row

    def _template(self, broad: frozenset[int]) -> _Template:
        """The row of states whose only moves lead to the positions `broad`."""
        known = self.templates.get(broad)
        if known is None:
            positions = tuple(broad)
            groups, group_of = self._division(tuple([self.masks[position] for position in positions]))
            sets = [frozenset([positions[at] for at in group]) for group in groups]
            known = self.templates[broad] = _Template(len(self.rows), sets, group_of)
            states = [self._state(members) for members in sets]
            self.rows.extend([states[group] for group in group_of])
        return known

    def _division(self, masks: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[int]]:
        """The groups of masks that a byte can be in, as indexes, and the group of each byte class. Cached,
        because the positions of a placeholder have one mask."""
        known = self.divisions.get(masks)
        if known is None:
            found = [
                tuple([at for at, mask in enumerate(masks) if mask >> byte & 1])
                for byte in self.representatives
            ]
            numbers = {group: number for number, group in enumerate(dict.fromkeys(found))}
            known = self.divisions[masks] = list(numbers), [numbers[group] for group in found]
        return known

    def _too_many(self) -> TooManyStates:
        """The error with the patterns that occur in most states. Open ends are ignored; they multiply no
        states."""
        taking_part: Counter[int] = Counter()
        open_ends = {
            position
            for position, targets in enumerate(self.follow)
            if position in self.finals and targets == [position] and self.masks[position] == ANY_BYTE
        }
        for members in self.states:
            taking_part.update({self.owner[position] for position in members if position not in open_ends})
        del taking_part[_SHARED]  # each position of a literal prefix is in one state only
        if not taking_part:  # the literal text alone is too long
            taking_part.update({index: len(one.text) for index, one in enumerate(self.patterns)})
        ranked = taking_part.most_common(5)
        worst = tuple(index for index, count in ranked if count * 4 >= ranked[0][1])
        return TooManyStates(self.max_states, worst, tuple(self.patterns[index].text for index in worst))
