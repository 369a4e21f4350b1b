# cython: annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""The automaton that classifies keys: tables made from all key patterns of a policy, and the walk through
them.

Rule: a key takes one table step per byte, for any number of patterns and any key. The tables are built once
(`determinize`), pickled to the workers, and never changed.

All indexes are in bounds, because `__init__` checks every table entry and byte class once.
"""

from __future__ import annotations

from array import array
from typing import Protocol

NOTHING = -1  # no pattern accepts
NODE = 4  # numbers per state
DEAD = 0  # the state that no key leaves
START = NODE
# The same values as C integers when compiled.
_NODE = NODE
_START = START
_STRIDE = 32  # bytes from one look whether the state is dead to the next
_SMALL = 1 << 16  # up to this product of states and byte classes, there is a single table


def _is_state(number: int, end: int) -> bool:
    return 0 <= number < end and number % _NODE == 0


class Automaton:
    """A deterministic automaton over bytes.

    `classes[byte]` is a byte's class, and `width` the number of classes. A state is an offset into `nodes`,
    which holds four numbers for each state:

    - the byte class of its exception (-1: none)
    - the state that the exception leads to
    - the offset in `rows` of the row for all other classes
    - its accept-set id (-1: none)

    States along literal text are adjacent and share a row. So a long key touches few cache lines, even with a
    large policy.

    `sets[id]` are the indexes of the accepting patterns, in order of precedence. DEAD is 0, and a key begins
    in `start`.
    """

    def __init__(
        self, classes: bytes, nodes: array[int], rows: array[int], sets: tuple[tuple[int, ...], ...]
    ) -> None:
        width = max(classes) + 1 if len(classes) == 256 else 0
        if not width or not rows or len(rows) % width or len(nodes) < 2 * _NODE or len(nodes) % _NODE:
            raise ValueError("automaton: tables do not fit together")
        exceptions, _, row_of, accepts = (nodes[at::_NODE] for at in range(_NODE))
        self._nodes = nodes
        self._rows = rows
        if not self._leads_to_states():
            raise ValueError("automaton: a transition leads outside the table")
        if min(exceptions) < -1 or max(exceptions) >= width:
            raise ValueError("automaton: a byte class does not exist")
        if min(row_of) < 0 or max(row_of) > len(rows) - width:
            raise ValueError("automaton: a row does not exist")
        if min(accepts) < NOTHING or max(accepts) >= len(sets):
            raise ValueError("automaton: an accept set does not exist")
        self.width = width
        self.classes = classes
        self.nodes = nodes
        self.rows = rows
        self.sets = sets
        self._is_small = self.states * width <= _SMALL
        self._steps: array[int] | None = None  # built for the first key

    def _leads_to_states(self) -> bool:
        """Whether every transition leads to a state. A loop, because a set of all transitions takes four
        times as long, and clients wait for it when a policy is reloaded."""
        states = len(self._nodes)
        for at in range(1, states, _NODE):
            if not _is_state(self._nodes[at], states):
                return False
        for at in range(len(self._rows)):  # noqa: SIM110 — a generator would make an object of each number
            if not _is_state(self._rows[at], states):
                return False
        return True

    def __reduce__(
        self,
    ) -> tuple[type[Automaton], tuple[bytes, array[int], array[int], tuple[tuple[int, ...], ...]]]:
        return Automaton, (self.classes, self.nodes, self.rows, self.sets)

    def _one_table(self) -> array[int]:
        """The next state for each state and byte class of a small automaton. It needs one look-up per byte
        instead of three dependent ones. In this table a state is its number times `width`."""
        steps = array("H")
        for state in range(0, len(self.nodes), _NODE):
            steps.extend(after // _NODE * self.width for after in self.successors(state))
        return steps

    @property
    def start(self) -> int:
        """The state before the first byte."""
        return _START

    @property
    def states(self) -> int:
        """The number of states, including the dead one. Their offsets are 0, 4, 8 …"""
        return len(self.nodes) // _NODE

    def match(self, key: bytes) -> int:
        """The id of the set of patterns that accept the key, without long counters; -1 if none does."""
        return self.match_span(key, 0, len(key))

    def match_span(self, data: bytes, start: int, end: int) -> int:
        """Same as `match`, for the key `data[start:end]`. Raises IndexError for a span outside `data`."""
        if start < 0 or start > end or end > len(data):
            raise IndexError("automaton: span outside the data")
        if not self._is_small:
            state = self._walk(_START, data, start, end)
            return -1 if state == 0 else self._nodes[state + 3]
        if self._steps is None:
            self._steps = self._one_table()
        raw, classes = data, self.classes
        place = self.width  # START's
        while start < end:
            stop = min(start + _STRIDE, end)
            for offset in range(start, stop):
                place = self._steps[place + classes[raw[offset]]]
            if place == 0:  # no step leaves it
                return -1
            start = stop
        return self._nodes[place // self.width * _NODE + 3]

    def state_after(self, key: bytes) -> int:
        """The state after these bytes from the start; DEAD if no key of a pattern begins with them."""
        return self.walk(_START, key)

    def walk(self, state: int, data: bytes) -> int:
        """The state after `data` from `state`. Raises IndexError if `state` is not a state."""
        if state < 0 or state % _NODE or state >= len(self.nodes):
            raise IndexError("automaton: no such state")
        return self._walk(state, data, 0, len(data))

    def _walk(self, state: int, data: bytes, start: int, end: int) -> int:
        """The state after `data[start:end]`, using the compact tables."""
        raw, classes = data, self.classes
        for offset in range(start, end):
            byte_class = classes[raw[offset]]
            if self._nodes[state] == byte_class:
                state = self._nodes[state + 1]
            else:
                state = self._rows[self._nodes[state + 2] + byte_class]
            if state == 0:
                break
        return state

    def accept_of(self, state: int) -> int:
        """The accept-set id of a state; -1 for none. Raises IndexError if `state` is not a state."""
        if state < 0 or state % _NODE or state >= len(self.nodes):
            raise IndexError("automaton: no such state")
        return self._nodes[state + 3]

    def successors(self, state: int) -> array[int]:
        """The next state for each byte class. Raises IndexError if `state` is not a state."""
        if state < 0 or state % _NODE or state >= len(self.nodes):
            raise IndexError("automaton: no such state")
        row = self.nodes[state + 2]
        after = self.rows[row : row + self.width]
        if self.nodes[state] >= 0:
            after[self.nodes[state]] = self.nodes[state + 1]
        return after


class Verifiable(Protocol):
    """The interface of a pattern that the classifier needs (`patterns.KeyPattern` implements it)."""

    @property
    def needs_verification(self) -> bool: ...
    @property
    def sure_lengths(self) -> tuple[int, int]: ...
    @property
    def shortest(self) -> int: ...
    @property
    def longest(self) -> int: ...
    def matches(self, key: bytes) -> bool: ...


# By accept set, where its patterns begin in a list of all; and the bounds of each pattern's lengths.
Tables = tuple["array[int]", "array[int]", "array[int]"]


class Classifier:
    """Finds the pattern that a key belongs to, including lengths.

    The automaton ignores long counters. For nearly every key, its length alone shows whether the counters
    match (`sure_lengths`). Only the other keys are matched again by the pattern itself.
    """

    def __init__(
        self, automaton: Automaton, patterns: tuple[Verifiable, ...], tables: Tables | None = None
    ) -> None:
        """`tables` are those of an equal classifier, from which this one was pickled."""
        self.automaton = automaton
        self.patterns = patterns
        self._members, self._begins, self._bounds = tables or self._tables(automaton, patterns)

    def _tables(self, automaton: Automaton, patterns: tuple[Verifiable, ...]) -> Tables:
        if any(index < 0 or index >= len(patterns) for members in automaton.sets for index in members):
            raise ValueError("classifier: the automaton has a pattern index without a pattern")
        members = array("i")
        begins = array("i", [0])
        for accept_set in automaton.sets:
            members.extend(accept_set)
            begins.append(len(members))
        bounds = array("q")  # per pattern: shortest, sure from, sure to, longest
        for pattern in patterns:
            sure = pattern.sure_lengths if pattern.needs_verification else (0, pattern.longest)
            bounds.extend((pattern.shortest, *sure, pattern.longest))
        return members, begins, bounds

    def __reduce__(self) -> tuple[type[Classifier], tuple[Automaton, tuple[Verifiable, ...], Tables]]:
        tables = array("i", self._members), array("i", self._begins), array("q", self._bounds)
        return Classifier, (self.automaton, self.patterns, tables)

    def first(self, key: bytes) -> int:
        """The index of the first pattern, in order of precedence, that matches the key; -1 if none does."""
        accept = self.automaton.match(key)
        if accept < 0:
            return -1
        for at in range(self._begins[accept], self._begins[accept + 1]):
            index = self._members[at]
            if self.confirms(index, key):
                return index
        return -1

    def first_in(self, data: bytes, start: int, end: int) -> int:
        """Same as `first`, for the key `data[start:end]`. Raises IndexError for a span outside `data`."""
        accept = self.automaton.match_span(data, start, end)
        if accept < 0:
            return -1
        length = end - start
        for at in range(self._begins[accept], self._begins[accept + 1]):
            index = self._members[at]
            bound = 4 * index
            if length < self._bounds[bound] or length > self._bounds[bound + 3]:
                continue
            if self._bounds[bound + 1] <= length <= self._bounds[bound + 2]:
                return index
            if self.patterns[index].matches(data[start:end]):
                return index
        return -1

    def every(self, key: bytes) -> tuple[int, ...]:
        """The indexes of all patterns that match the key, in order of precedence."""
        accept = self.automaton.match(key)
        if accept < 0:
            return ()
        return tuple(index for index in self.automaton.sets[accept] if self.confirms(index, key))

    def confirms(self, index: int, key: bytes) -> bool:
        """Whether a key that the automaton accepts for this pattern also has the right lengths.

        Raises IndexError for an unknown index.
        """
        if index < 0 or index >= len(self.patterns):
            raise IndexError("classifier: no such pattern")
        length = len(key)
        at = 4 * index
        if length < self._bounds[at] or length > self._bounds[at + 3]:
            return False
        if self._bounds[at + 1] <= length <= self._bounds[at + 2]:
            return True
        return self.patterns[index].matches(key)
