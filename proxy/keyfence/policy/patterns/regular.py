"""Regular expressions over bytes as immutable trees, the basis of placeholders and key patterns.

Rule: all languages here are regular. Their lengths, words and positions follow from the tree; this module
never reads a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

ANY_BYTE = (1 << 256) - 1
SEPARATOR = b":"
SEPARATOR_MASK = 1 << SEPARATOR[0]

# Longer than any key (Redis' limit is 512 MB). Sums and products of lengths with it stay above it.
UNBOUNDED = 1 << 40

# `{m,n}` is unrolled into the automaton if its copies have at most this many positions. `KeyPattern.capture`
# checks longer counters. 8 keeps dates, times and short codes exact; unrolling an id's {1,128} would multiply
# a policy's states by ten.
UNROLL_POSITIONS = 8


@dataclass(frozen=True, slots=True)
class Bytes:
    """One byte of a set. Bit b of `mask` is set if byte b belongs to the set."""

    mask: int


@dataclass(frozen=True, slots=True)
class Concat:
    """The parts in sequence. Without parts, the empty string."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`inner`, at least `least` and at most `most` times (None: no limit). `inner` never matches the empty
    string (`repeat` ensures that), so each repetition takes at least one byte."""

    inner: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Joined:
    """`inner`, once or more, with the separator between. `inner` never matches the empty string."""

    inner: Node


Node = Bytes | Concat | Either | Repeat | Joined

EMPTY = Concat(())
# Keys are mostly literal text, so they share the nodes of single bytes.
_SINGLE: tuple[Node, ...] = tuple(Bytes(1 << byte) for byte in range(256))


def literal(text: bytes) -> Node:
    """The language that contains only `text`."""
    return concat([_SINGLE[byte] for byte in text])


def concat(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))


def either(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Either(tuple(options))


def repeat(inner: Node, least: int, most: int | None) -> Node:
    """`inner{least,most}`, with an inner node that does not match the empty string."""
    if nullable(inner):
        least = 0
    filled = nonempty(inner)
    if filled is None or most == 0:
        return EMPTY
    return filled if least == most == 1 else Repeat(filled, least, most)


def nullable(node: Node) -> bool:
    """Whether the empty string belongs to the language."""
    match node:
        case Bytes() | Joined():
            return False
        case Concat(parts):
            return all(nullable(part) for part in parts)
        case Either(options):
            return any(nullable(option) for option in options)
        case Repeat():
            return node.least == 0


def nonempty(node: Node) -> Node | None:
    """The language without the empty string, or None if nothing remains."""
    if not nullable(node):
        return node
    match node:
        case Either(options):
            filled = [option for option in map(nonempty, options) if option is not None]
            return either(filled) if filled else None
        case Repeat(inner, _, most):
            return repeat(inner, 1, most)
        case Concat(parts):
            # All parts are nullable: take the first non-empty one, followed by the unchanged rest.
            filled = []
            for at, part in enumerate(parts):
                head = nonempty(part)
                if head is not None:
                    filled.append(concat([head, *parts[at + 1 :]]))
            return either(filled) if filled else None
    return node


def shortest(node: Node) -> int:
    """The length of the shortest word, in bytes."""
    match node:
        case Bytes():
            return 1
        case Concat(parts):
            return sum(map(shortest, parts))
        case Either(options):
            return min(map(shortest, options))
        case Repeat(inner, least, _):
            return least * shortest(inner)
        case Joined(inner):
            return shortest(inner)


def longest(node: Node) -> int:
    """The length of the longest word, in bytes; UNBOUNDED or more if there is no limit."""
    match node:
        case Bytes():
            return 1
        case Concat(parts):
            return sum(map(longest, parts))
        case Either(options):
            return max(map(longest, options))
        case Repeat(inner, _, most):
            return UNBOUNDED if most is None else most * longest(inner)
        case Joined():
            return UNBOUNDED


def alphabet(node: Node) -> int:
    """The bytes that occur in any word, as a mask."""
    match node:
        case Bytes(mask):
            return mask
        case Concat(parts) | Either(parts):
            mask = 0
            for part in parts:
                mask |= alphabet(part)
            return mask
        case Repeat(inner, _, _):
            return alphabet(inner)
        case Joined(inner):
            return alphabet(inner) | SEPARATOR_MASK


def size(node: Node) -> int:
    """How many positions the language has with its counters unrolled."""
    match node:
        case Bytes():
            return 1
        case Concat(parts) | Either(parts):
            return sum(map(size, parts))
        case Repeat(inner, least, most):
            return size(inner) * max(least if most is None else most, 1)
        case Joined(inner):
            return size(inner) + 1


def reverse(node: Node) -> Node:
    """The language of the reversed words."""
    match node:
        case Bytes():
            return node
        case Concat(parts):
            return Concat(tuple(reverse(part) for part in reversed(parts)))
        case Either(options):
            return Either(tuple(reverse(option) for option in options))
        case Repeat(inner, least, most):
            return Repeat(reverse(inner), least, most)
        case Joined(inner):
            return Joined(reverse(inner))


def relax(node: Node) -> Node:
    """The language without long counters: a superset with fewer positions. Equal to `node` if it has none."""
    match node:
        case Bytes():
            return node
        case Concat(parts):
            return Concat(tuple(map(relax, parts)))
        case Either(options):
            return Either(tuple(map(relax, options)))
        case Joined(inner):
            return Joined(relax(inner))
        case Repeat(inner, least, most):
            inner = relax(inner)
            copies = UNROLL_POSITIONS // size(inner)
            if max(least, most or 0) <= max(copies, 1):
                return Repeat(inner, least, most)
            return Repeat(inner, least if least <= copies else 1, None)


def sure_lengths(node: Node) -> tuple[int, int]:
    """The lengths (from, to) at which every word of `relax(node)` is also a word of `node`.

    A dropped counter covers at most the bytes that remain if everything else is as short as possible, and at
    least those that remain if everything else is as long as possible. So with one counted placeholder the
    key's length decides; with several it decides all but extreme keys.
    """
    low, high = 0, UNBOUNDED
    stack: list[tuple[Node, int, int]] = [(node, 0, 0)]  # a node; minimum and maximum length of the rest
    while stack:
        inside, around_least, around_most = stack.pop()
        match inside:
            case Bytes():
                pass
            case Concat(parts):
                slack = [(shortest(part), longest(part)) for part in map(relax, parts)]
                total_least = around_least + sum(least for least, _ in slack)
                total_most = around_most + sum(most for _, most in slack)
                for part, (least, most) in zip(parts, slack, strict=True):
                    stack.append((part, total_least - least, total_most - most))
            case Either(options):
                stack.extend((option, around_least, around_most) for option in options)
            case Joined(inner):
                stack.append((inner, around_least, UNBOUNDED))
            case Repeat(inner, least, most):
                kept = relax(inside)
                assert isinstance(kept, Repeat)
                if most is not None and kept.most is None:
                    high = min(high, around_least + most * shortest(kept.inner))
                if kept.least < least:
                    low = max(low, around_most + least * longest(kept.inner))
                stack.append((inner, around_least, UNBOUNDED))
    return min(low, UNBOUNDED), high


def bytes_of(mask: int) -> Iterator[int]:
    """The bytes of a mask, in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


_READABLE = b"x1a" + bytes(range(97, 123)) + bytes(range(48, 58)) + bytes(range(65, 91)) + b"-_."
_BY_READABILITY = tuple(dict.fromkeys(_READABLE + bytes(range(33, 127)) + bytes(range(256))))


def readable_byte(mask: int) -> int:
    """The most readable byte of a set, for examples."""
    return next(byte for byte in _BY_READABILITY if mask >> byte & 1)


def readable_word(node: Node) -> bytes:
    """One of the shortest words, made of readable bytes."""
    match node:
        case Bytes(mask):
            return bytes([readable_byte(mask)])
        case Concat(parts):
            return b"".join(map(readable_word, parts))
        case Either(options):
            return readable_word(min(options, key=shortest))
        case Repeat(inner, least, _):
            return readable_word(inner) * least
        case Joined(inner):
            return readable_word(inner)


@dataclass(frozen=True, slots=True)
class Positions:
    """The position automaton (Glushkov's) of a language, without empty moves.

    Position 0 is before the first byte. Position i > 0 has just read a byte of `masks[i]`, and `follow[i]`
    are the positions that may come next. Positions are numbered in the order of the tree.
    """

    masks: tuple[int, ...]
    follow: tuple[tuple[int, ...], ...]
    last: frozenset[int]  # where a word may end; contains 0 if the empty string belongs to the language


_Built = tuple[bool, list[int], list[int]]  # whether nullable, first positions, last positions


def positions(node: Node) -> Positions:
    """The position automaton of `node`, with its counters unrolled."""
    masks = [0]
    follow: list[list[int]] = [[]]

    def link(sources: list[int], targets: list[int]) -> None:
        for source in sources:
            follow[source].extend(targets)

    def build(node: Node) -> _Built:
        match node:
            case Bytes(mask):
                masks.append(mask)
                follow.append([])
                return False, [len(masks) - 1], [len(masks) - 1]
            case Concat(parts):
                return sequence(build(part) for part in parts)
            case Either(options):
                built = [build(option) for option in options]
                firsts = [position for _, first, _ in built for position in first]
                lasts = [position for _, _, last in built for position in last]
                return any(empty for empty, _, _ in built), firsts, lasts
            case Joined(inner):
                _, first, last = build(inner)
                masks.append(SEPARATOR_MASK)
                follow.append(list(first))
                link(last, [len(masks) - 1])
                return False, first, last
            case Repeat(inner, least, most):
                copies = max(least if most is None else most, 1)
                rounds = [build(inner) for _ in range(copies)]
                for (_, _, last), (_, first, _) in pairwise(rounds):
                    link(last, first)
                if most is None:
                    link(rounds[-1][2], rounds[-1][1])
                lasts = [position for _, _, last in rounds[max(least, 1) - 1 :] for position in last]
                return least == 0, rounds[0][1], lasts

    def sequence(built: Iterator[_Built]) -> _Built:
        empty = True
        first: list[int] = []
        last: list[int] = []
        for next_empty, next_first, next_last in built:
            link(last, next_first)
            if empty:
                first = first + next_first
            last = last + next_last if next_empty else list(next_last)
            empty = empty and next_empty
        return empty, first, last

    empty, first, last = build(node)
    follow[0] = first
    return Positions(
        tuple(masks),
        tuple(tuple(dict.fromkeys(targets)) for targets in follow),
        frozenset(last) | (frozenset([0]) if empty else frozenset()),
    )
