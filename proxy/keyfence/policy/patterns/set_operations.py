"""Set operations on key patterns: overlap, cover and difference.

Rule: every result is exact, including lengths, or errs on the side that its docstring states. Every search
has a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from .automaton import Automaton
from .matching import Simulation
from .patterns import KeyPattern
from .regular import Node, readable_byte

MAX_STATES = 20_000

State = TypeVar("State")


class TooLarge(ValueError):
    """The search needs more joint states than allowed."""


def overlap(left: KeyPattern, right: KeyPattern, max_states: int = MAX_STATES) -> bytes | None:
    """A key that both patterns match, or None if they are disjoint.

    If the search needs more than `max_states` joint states, lengths are ignored. Then the returned key may be
    too long or too short for one of the patterns. None always means disjoint.
    """
    for candidate in (left.example(), right.example()):
        if left.matches(candidate) and right.matches(candidate):
            return candidate
    relaxed = _common([left.relaxed, right.relaxed], max_states)
    if relaxed is None or (left.matches(relaxed) and right.matches(relaxed)):
        return relaxed
    try:
        return _common([left.node, right.node], max_states)
    except TooLarge:
        return relaxed


def covered(pattern: KeyPattern, others: Sequence[KeyPattern], max_states: int = MAX_STATES) -> bool:
    """Whether every key of the pattern belongs to one of `others`, so that it never matches after them.

    Also False if the search needs more than `max_states` joint states.
    """
    try:
        return uncovered(pattern, others, max_states) is None
    except TooLarge:
        return False


def uncovered(
    pattern: KeyPattern, others: Sequence[KeyPattern], max_states: int = MAX_STATES
) -> bytes | None:
    """A key of the pattern that none of `others` matches, or None. Raises `TooLarge`."""
    candidate = pattern.example()
    if not any(other.matches(candidate) for other in others):
        return candidate
    prefix = pattern.literal_prefix
    if any(other.is_prefix and prefix.startswith(other.literal_prefix) for other in others):
        return None
    return shortest_key(
        [pattern], [other for other in others if _may_meet(prefix, other.literal_prefix)], max_states
    )


def shortest_key(
    inside: Sequence[KeyPattern], outside: Sequence[KeyPattern], max_states: int = MAX_STATES
) -> bytes | None:
    """A shortest key that every pattern of `inside` and no pattern of `outside` matches, or None.

    Raises `TooLarge`.
    """
    simulations = [Simulation(pattern.node) for pattern in (*inside, *outside)]
    if not simulations:
        return b""
    first, rest = simulations[: len(inside)], simulations[len(inside) :]

    def is_goal(states: tuple[int, ...]) -> bool:
        return all(state & one.last for state, one in zip(states, first, strict=False)) and not any(
            state & one.last for state, one in zip(states[len(first) :], rest, strict=True)
        )

    return _search(simulations, is_goal, lambda states: all(states[: len(first)]), max_states)


def overlapping_pairs(automaton: Automaton) -> Iterator[tuple[int, int]]:
    """The pairs of pattern indexes (the more specific first) that both accept some key.

    Long counters are ignored, as in the automaton. `overlap` checks a pair exactly.
    """
    seen: set[tuple[int, int]] = set()
    for members in automaton.sets:
        for pair in combinations(members, 2):
            if pair not in seen:
                seen.add(pair)
                yield pair


def joint_samples(
    left: Automaton, right: Automaton, max_states: int = 500_000
) -> dict[tuple[int, int], bytes]:
    """For each pair of accept-set ids that some key reaches, one of the shortest such keys.

    A pair has the id of `left` and the id of `right`; -1 means no accept set. Long counters are ignored.
    Raises `TooLarge` beyond `max_states` joint states.
    """
    # The most readable byte comes last: if several bytes lead to one pair, the last assignment remains.
    bytes_in_turn = _representatives(list(zip(left.classes, right.classes, strict=True)))[::-1]
    left_classes = [left.classes[byte] for byte in bytes_in_turn]
    right_classes = [right.classes[byte] for byte in bytes_in_turn]
    found: dict[tuple[int, int], bytes] = {}
    start = (left.start, right.start)
    origin: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {start: None}
    queue = [start]
    for pair in queue:  # grows while it is walked
        accepts = left.accept_of(pair[0]), right.accept_of(pair[1])
        if accepts not in found:
            found[accepts] = spell(origin, pair)
        left_row = map(left.successors(pair[0]).__getitem__, left_classes)
        right_row = map(right.successors(pair[1]).__getitem__, right_classes)
        for after, byte in dict(
            zip(zip(left_row, right_row, strict=True), bytes_in_turn, strict=True)
        ).items():
            if after not in origin:
                if len(origin) >= max_states:
                    raise TooLarge(f"more than {max_states} joint states")
                origin[after] = pair, byte
                queue.append(after)
    return found


def _may_meet(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def _common(nodes: list[Node], max_states: int) -> bytes | None:
    """A shortest word that belongs to all languages. Raises `TooLarge`."""
    simulations = [Simulation(node) for node in nodes]

    def accepted(states: tuple[int, ...]) -> bool:
        return all(state & one.last for state, one in zip(states, simulations, strict=True))

    return _search(simulations, accepted, all, max_states)


def _search(
    simulations: list[Simulation],
    is_goal: Callable[[tuple[int, ...]], bool],
    is_alive: Callable[[tuple[int, ...]], bool],
    max_states: int,
) -> bytes | None:
    """A shortest key after which `is_goal` holds for the states of all simulations, or None.

    `is_alive` tells whether a joint state may still lead to a goal. Raises `TooLarge`; the limit is lower for
    more languages, because each step then costs more.
    """
    limit = 2 * max_states // len(simulations)
    bytes_in_turn = _representatives([tuple(one.readers(byte) for one in simulations) for byte in range(256)])
    start = tuple(one.START for one in simulations)
    origin: dict[tuple[int, ...], tuple[tuple[int, ...], int] | None] = {start: None}
    queue = [start]
    for states in queue:  # grows while it is walked
        if is_goal(states):
            return spell(origin, states)
        for byte in bytes_in_turn:
            after = tuple([one.step(state, byte) for one, state in zip(simulations, states, strict=True)])
            if after not in origin and is_alive(after):
                if len(origin) >= limit:
                    raise TooLarge(f"more than {limit} joint states")
                origin[after] = states, byte
                queue.append(after)
    return None


def _representatives(kinds: Sequence[object]) -> list[int]:
    """One byte for each kind of byte (`kinds[byte]`), readable bytes first."""
    masks: dict[object, int] = {}
    for byte, kind in enumerate(kinds):
        masks[kind] = masks.get(kind, 0) | 1 << byte
    return sorted(map(readable_byte, masks.values()), key=lambda byte: -_readability(byte))


def _readability(byte: int) -> int:
    return 2 if chr(byte).isalnum() and byte < 128 else 1 if 32 < byte < 127 else 0


def spell(origin: dict[State, tuple[State, int] | None], state: State) -> bytes:
    """The key that leads to `state`."""
    key = bytearray()
    step = origin[state]
    while step is not None:
        state, byte = step
        key.append(byte)
        step = origin[state]
    return bytes(reversed(key))
