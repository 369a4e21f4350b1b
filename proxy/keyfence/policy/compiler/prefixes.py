"""Prefixes of scopes: `ac:<stage>:a:` is a family of prefixes, one for each value of `<stage>`.

Rule: a placeholder in a prefix holds no colon, and a colon follows it. So every key shows where the prefix
ends, and of two prefixes of the same keys, one is the longer for all these keys.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Generic, TypeVar

from keyfence.policy.patterns.patterns import (
    ANYTHING,
    REST,
    ClassExpression,
    Hole,
    KeyPattern,
    Literal,
    Part,
    PatternError,
    parse_pattern,
    prefix_pattern,
    written,
)
from keyfence.policy.patterns.regular import SEPARATOR
from keyfence.policy.patterns.set_operations import TooLarge, covered, overlap

_REST = Hole(REST, ANYTHING)

Segment = tuple[Part, ...]
Words = tuple[bytes, ...]
Item = TypeVar("Item")


def parse_prefix(
    text: str, classes: Mapping[str, ClassExpression], secrets: Container[str] = ()
) -> KeyPattern:
    """Returns the pattern of all keys with this prefix. Raises `PatternError` if the text is not a prefix."""
    if not text:
        return prefix_pattern(b"")
    parts = parse_pattern(text, classes).parts
    for part in parts:
        if isinstance(part, Hole):
            _check(part, text, secrets)
    if any(isinstance(part, Hole) for part in segments(parts)[-1]):
        last = next(part for part in reversed(parts) if isinstance(part, Hole))
        message = (
            f"no colon follows <{last.name}>, so no key shows where the prefix ends; write a colon after it"
        )
        raise PatternError(message, text.rindex("<"))
    return begins(parts)


def _check(hole: Hole, text: str, secrets: Container[str]) -> None:
    """Raises `PatternError` for a placeholder that a prefix cannot have."""
    at = text.index(f"<{hole.name}")
    if hole.name in secrets:
        message = f"<{hole.name}> is secret, and messages show a scope's prefix; take it out of the prefix"
        raise PatternError(message, at)
    if hole.may_hold_separator:
        message = f"<{hole.name}> may hold a colon, so no key shows where the prefix ends"
        raise PatternError(f"{message}; exclude the colon, or list the values under bind", at)


def begins(parts: Iterable[Part]) -> KeyPattern:
    """Returns the pattern of every key that begins with these parts."""
    fixed = tuple(parts)
    return KeyPattern(f"{written(fixed)}*", (*fixed, _REST))


def fixed_parts(prefix: KeyPattern) -> tuple[Part, ...]:
    """Returns the parts of a prefix without the rest of the key."""
    return prefix.parts[:-1]


def length(prefix: KeyPattern) -> tuple[int, int]:
    """Returns a prefix's length: the number of its colons, then of the bytes after the last one. Of two
    prefixes of one key, the longer one is greater."""
    *closed, tail = segments(fixed_parts(prefix))
    return len(closed), sum(len(part.text) for part in tail if isinstance(part, Literal))


def order(prefix: KeyPattern) -> tuple[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Returns a sort key: the longest prefix first; of equally long ones, the more specific one."""
    colons, behind = length(prefix)
    return (-colons, -behind), prefix.specificity


def lies_in(pattern: KeyPattern, prefix: KeyPattern) -> bool:
    """Whether every key of a pattern has the prefix. False also if its segments do not show it."""
    if not pattern.literal_prefix.startswith(prefix.literal_prefix):
        return False
    if prefix.is_prefix:
        return True
    *closed, tail = segments(fixed_parts(prefix))
    given = segments(pattern.parts)
    if len(given) <= len(closed):
        return False
    for mine, theirs in zip(given, closed, strict=False):
        if _is_open(mine):
            return False
        if mine != theirs and not _is_within(mine, theirs):
            return False
    return not tail or _text_of(given[len(closed)]).startswith(_text_of(tail))


class PrefixIndex(Generic[Item]):
    """Finds the prefixes around a pattern among many, without a look at each."""

    def __init__(self, prefixes: Iterable[tuple[KeyPattern, Item]] = ()) -> None:
        # By which closed segments are literal, then by the text of these.
        self._groups: dict[tuple[bool, ...], dict[Words, list[tuple[KeyPattern, Item]]]] = {}
        for prefix, item in prefixes:
            words = [_word(segment) for segment in segments(fixed_parts(prefix))[:-1]]
            group = self._groups.setdefault(tuple(word is not None for word in words), {})
            literal = tuple(word for word in words if word is not None)
            group.setdefault(literal, []).append((prefix, item))

    def around(self, pattern: KeyPattern) -> Iterator[Item]:
        """Yields the items of the prefixes that all keys of a pattern have."""
        for _, found in self._found(pattern):
            yield from (item for prefix, item in found if lies_in(pattern, prefix))

    def near(self, pattern: KeyPattern) -> Iterator[tuple[KeyPattern, Item]]:
        """Yields the prefixes that some key of a pattern may have, and perhaps others."""
        if not self._groups:
            return
        given = segments(pattern.parts)
        is_closed = not any(map(_is_open, given))
        colons = len(given) - 1
        found = dict(self._found(pattern))
        for is_literal, group in self._groups.items():
            if is_literal in found:
                yield from found[is_literal]
            elif not (is_closed and len(is_literal) > colons):
                for some in group.values():
                    yield from some

    def _found(self, pattern: KeyPattern) -> Iterator[tuple[tuple[bool, ...], list[tuple[KeyPattern, Item]]]]:
        """Yields, for each group whose literal text the pattern shows, the prefixes with that text."""
        if not self._groups:
            return
        given = segments(pattern.parts)
        closed = next((at for at, segment in enumerate(given) if _is_open(segment)), len(given) - 1)
        words = [_word(segment) for segment in given[:closed]]
        for is_literal, group in self._groups.items():
            known = [word for word, literal in zip(words, is_literal, strict=False) if literal]
            if len(is_literal) <= closed and None not in known:
                yield is_literal, group.get(tuple(word for word in known if word is not None), [])


def _is_open(segment: Segment) -> bool:
    """Whether a segment may hold colons, and so be several segments of a key."""
    return any(isinstance(part, Hole) and part.may_hold_separator for part in segment)


def _word(segment: Segment) -> bytes | None:
    """Returns the text of a segment; None if it has placeholders."""
    if any(isinstance(part, Hole) for part in segment):
        return None
    return b"".join(part.text for part in segment if isinstance(part, Literal))


def meeting(one: KeyPattern, other: KeyPattern) -> bytes | None:
    """Returns a key of both patterns; None if there certainly is none."""
    mine, theirs = one.literal_prefix, other.literal_prefix
    if not (mine.startswith(theirs) or theirs.startswith(mine)):
        return None
    try:
        return overlap(one, other)
    except TooLarge:
        return one.example()


def behind(pattern: KeyPattern, prefix: KeyPattern) -> tuple[Part, ...]:
    """Returns the common beginning of all keys of a pattern in a prefix: the prefix as the pattern has it,
    and the literal text after it."""
    colons = length(prefix)[0]
    taken: list[Part] = []
    for part in pattern.parts:
        if isinstance(part, Literal):
            colons -= part.text.count(SEPARATOR)
        elif colons > 0:
            pass
        else:
            break
        taken.append(part)
    return tuple(taken)


def segments(parts: Iterable[Part]) -> list[Segment]:
    """Splits parts at the colons of the literal text."""
    found: list[list[Part]] = [[]]
    for part in parts:
        if isinstance(part, Hole):
            found[-1].append(part)
            continue
        head, *more = part.text.split(SEPARATOR)
        if head:
            found[-1].append(Literal(head))
        found += [[Literal(one)] if one else [] for one in more]
    return list(map(tuple, found))


def beginnings(text: str, prefixes: Container[str]) -> Iterator[str]:
    """Yields those of the prefixes that a text begins with, the longest first."""
    return (text[:size] for size in range(len(text), -1, -1) if text[:size] in prefixes)


def _text_of(segment: Segment) -> bytes:
    """Returns the literal text at the beginning of a segment."""
    first = segment[0] if segment else None
    return first.text if isinstance(first, Literal) else b""


@lru_cache(maxsize=4096)
def _is_within(one: Segment, other: Segment) -> bool:
    """Whether the other segment matches every text that the first one matches."""
    return covered(KeyPattern("", one), [KeyPattern("", other)])
