"""Key patterns: literal text with placeholders, such as `cube:v1:<scope>:lock:<resource...>:<id>`.

Rule: `KeyPattern.capture` defines which keys a pattern matches, including lengths. The automaton is only a
faster way to the same result.

Literal text matches itself, including braces (Redis' hash tags use them). The escapes are `\\<`, `\\>`,
`\\\\` and `\\xHH`. `<name>` is a value of the class that `name` was declared with. `<name...>` is one or more
such values, none of them empty, with `:` between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from .expressions import ClassExpression, PatternError, literal_class, parse_class
from .matching import Simulation, linear_regex
from .regular import (
    ANY_BYTE,
    SEPARATOR,
    SEPARATOR_MASK,
    Bytes,
    Concat,
    Node,
    Repeat,
    literal,
    nonempty,
    positions,
    reverse,
    sure_lengths,
)

__all__ = [
    "ClassExpression",
    "Hole",
    "KeyPattern",
    "Literal",
    "Mismatch",
    "Part",
    "PatternError",
    "exact_pattern",
    "literal_class",
    "parse_class",
    "parse_pattern",
    "prefix_pattern",
    "written",
]

ANYTHING = ClassExpression(".*", Repeat(Bytes(ANY_BYTE), 0, None))
# The name of the hole that ends a prefix pattern. A placeholder's name cannot begin with it.
REST = "*"

_PLACEHOLDER = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*)(\.\.\.)?>")
# The ranks of a segment, the most specific first.
_LITERAL, _PARTLY_LITERAL, _PLACEHOLDER_ONLY, _VARIADIC, _REST = range(5)


@dataclass(frozen=True, slots=True)
class Literal:
    """Literal bytes of a pattern."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Hole:
    """A placeholder in a pattern. A `variadic` one holds one or more non-empty segments with `:` between."""

    name: str
    expression: ClassExpression
    variadic: bool = False

    @property
    def language(self) -> ClassExpression:
        """The class of the texts that match this placeholder."""
        return self.expression.joined if self.variadic else self.expression

    @property
    def may_hold_separator(self) -> bool:
        return self.variadic or bool(self.language.alphabet & SEPARATOR_MASK)


Part = Literal | Hole


def relaxed_part(part: Part) -> Node:
    """A part's language in the automaton, without long counters."""
    return literal(part.text) if isinstance(part, Literal) else part.language.relaxed


def _lengths(part: Part) -> tuple[int, int]:
    """The lengths of the shortest and the longest text that match a part."""
    return (len(part.text), len(part.text)) if isinstance(part, Literal) else part.language.lengths


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first reason why a key does not match a pattern.

    `kind` is `byte` (the byte at `offset` is not allowed there), `end` (the key ends too early) or `length`
    (a placeholder's value is too long or too short). `placeholder` is the name of the placeholder at fault,
    or None for literal text.
    """

    kind: str
    offset: int
    placeholder: str | None


# The computed properties that are pickled with a pattern, so that a worker does not compute them again.
_PICKLED = ("needs_verification", "sure_lengths", "shortest", "longest")


class KeyPattern:
    """A set of keys. Built by `parse_pattern`, `prefix_pattern` or `exact_pattern`."""

    def __init__(self, text: str, parts: tuple[Part, ...]) -> None:
        self.text = text
        self.parts = parts

    def __repr__(self) -> str:
        return f"KeyPattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyPattern) and other.parts == self.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __reduce__(self) -> tuple[type[KeyPattern], tuple[str, tuple[Part, ...]], tuple[object, ...]]:
        known = tuple(getattr(self, name) for name in _PICKLED)
        return KeyPattern, (self.text, self.parts), known

    def __setstate__(self, known: tuple[object, ...]) -> None:
        # One by one: pickle's own way makes a dict for each of thousands of patterns.
        for name, value in zip(_PICKLED, known, strict=True):
            setattr(self, name, value)

    @cached_property
    def node(self) -> Node:
        """The pattern's language, including lengths."""
        return Concat(tuple(self._part_nodes))

    @cached_property
    def relaxed(self) -> Node:
        """The pattern's language in the automaton: a superset without long counters."""
        return Concat(tuple(map(relaxed_part, self.parts)))

    @cached_property
    def needs_verification(self) -> bool:
        """Whether a match in the automaton must be confirmed, by `sure_lengths` or `matches`."""
        return any(hole.language.is_counted for hole in self.holes)

    @cached_property
    def sure_lengths(self) -> tuple[int, int]:
        """The key lengths (from, to), in bytes, at which the automaton's match is exact."""
        return sure_lengths(self.node)

    @cached_property
    def shortest(self) -> int:
        """The length of the shortest key, in bytes."""
        return sum(_lengths(part)[0] for part in self.parts)

    @cached_property
    def longest(self) -> int:
        """The length of the longest key, in bytes; `regular.UNBOUNDED` or more if there is no limit."""
        return sum(_lengths(part)[1] for part in self.parts)

    @property
    def literal_prefix(self) -> bytes:
        """The bytes that all keys begin with, up to the first placeholder."""
        first = self.parts[0] if self.parts else None
        return first.text if isinstance(first, Literal) else b""

    @property
    def is_literal(self) -> bool:
        """Whether the pattern matches exactly one key."""
        return not self.holes

    @property
    def is_prefix(self) -> bool:
        """Whether the pattern matches every byte string that begins with its literal prefix."""
        return len(self.holes) == 1 and self.holes[0].name == REST and self.parts[-1] == self.holes[0]

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        return tuple(part for part in self.parts if isinstance(part, Hole))

    def example(self, held: Mapping[str, bytes] = MappingProxyType({})) -> bytes:
        """A readable key that matches, with the given placeholder values; for a prefix pattern, a key under
        the prefix."""
        key = b""
        number = 0
        for part in self.parts:
            if isinstance(part, Literal):
                key += part.text
                continue
            number += 1
            if part.name in held:
                key += held[part.name]
                continue
            key += part.expression.example(number)
            if part.variadic:
                number += 1
                key += SEPARATOR + part.expression.example(number)
        return key

    def matches(self, key: bytes) -> bool:
        """Whether the key belongs to the pattern, including lengths. Linear in the key's length."""
        if not self.shortest <= len(key) <= self.longest:
            return False
        if self._regex is not None:
            return self._regex.fullmatch(key) is not None
        return 0 in self._reach(key)[0]

    def capture(self, key: bytes) -> dict[str, bytes] | None:
        """The value of each placeholder in `key`, or None if the key does not match. Linear in the key's
        length.

        If the key can be divided in several ways, an earlier placeholder takes as much as it can:
        `<resource...>:<id>` leaves only the last segment to `id`.
        """
        if not self.shortest <= len(key) <= self.longest:
            return None
        if self._regex is not None:
            match = self._regex.fullmatch(key)
            if match is None:
                return None
            return dict(zip((hole.name for hole in self.holes), match.groups(), strict=True))
        return self._capture(key)

    def mismatch(self, key: bytes) -> Mismatch | None:
        """Why a key does not match, or None if it matches."""
        if self.matches(key):
            return None
        simulation = self._outline
        state = simulation.START
        for offset, byte in enumerate(key):
            after = simulation.step(state, byte)
            if not after:
                return Mismatch("byte", offset, self._placeholder_after(state))
            state = after
        if not state & simulation.last:
            return Mismatch("end", len(key), self._placeholder_after(state))
        return self._wrong_length(key)

    @cached_property
    def specificity(self) -> tuple[tuple[int, int], ...]:
        """A sort key: of two patterns that match the same key, the one with the smaller value is more
        specific.

        It compares segment by segment (split at the colons of the literal text). The order is: literal;
        partly literal (more literal bytes first); a placeholder; a variadic placeholder, or one that may hold
        the separator; the open end of a prefix. Overlapping patterns with equal values are a tie.
        """
        ranks: list[tuple[int, int]] = []
        rank, literals = _LITERAL, 0
        for part in self.parts:
            if isinstance(part, Hole):
                rank = max(rank, _rank(part))
                continue
            head, *tail = part.text.split(SEPARATOR)
            literals += len(head)
            for segment in tail:
                ranks.append(_segment(rank, literals))
                rank, literals = _LITERAL, len(segment)
        ranks.append(_segment(rank, literals))
        return tuple(ranks)

    @cached_property
    def _part_nodes(self) -> list[Node]:
        return [
            literal(part.text) if isinstance(part, Literal) else part.language.node for part in self.parts
        ]

    @cached_property
    def _regex(self) -> re.Pattern[bytes] | None:
        return linear_regex(self._part_nodes, [isinstance(part, Hole) for part in self.parts])

    @cached_property
    def _forwards(self) -> list[Simulation]:
        return [Simulation(node) for node in self._part_nodes]

    @cached_property
    def _backwards(self) -> list[Simulation]:
        return [Simulation(reverse(node)) for node in self._part_nodes]

    @cached_property
    def _outline(self) -> Simulation:
        return Simulation(self.relaxed)

    @cached_property
    def _names(self) -> list[str | None]:
        """The placeholder's name for each position of the outline. Positions are numbered part by part."""
        names: list[str | None] = [None]
        for part in self.parts:
            if isinstance(part, Literal):
                names += [None] * len(part.text)
            else:
                names += [part.name] * (len(positions(part.language.relaxed).masks) - 1)
        return names

    def _reach(self, key: bytes) -> list[set[int]]:
        """For each part, and for the end, the offsets from which the rest of the pattern matches the rest of
        the key."""
        backwards = key[::-1]
        reach = [{len(key)}]
        for simulation in reversed(self._backwards):
            ends = simulation.ends(backwards, [len(key) - offset for offset in reach[-1]])
            reach.append({len(key) - offset for offset in ends})
        return reach[::-1]

    def _capture(self, key: bytes) -> dict[str, bytes] | None:
        reach = self._reach(key)
        if 0 not in reach[0]:
            return None
        captured: dict[str, bytes] = {}
        offset = 0
        for at, part in enumerate(self.parts):
            end = max(self._forwards[at].ends(key, [offset]) & reach[at + 1])
            if isinstance(part, Hole):
                captured[part.name] = key[offset:end]
            offset = end
        return captured

    def _placeholder_after(self, state: int) -> str | None:
        """The placeholder that a state of the outline is in or reaches next."""
        following = self._outline.following(state)
        names = [name for position, name in enumerate(self._names) if following >> position & 1]
        return next((name for name in names if name is not None), None)

    def _wrong_length(self, key: bytes) -> Mismatch:
        parts = tuple(
            Hole(hole.name, ClassExpression("", hole.expression.relaxed), hole.variadic)
            if isinstance(hole, Hole)
            else hole
            for hole in self.parts
        )
        captured = KeyPattern(self.text, parts).capture(key) or {}
        offset = 0
        for part in self.parts:
            if isinstance(part, Literal):
                offset += len(part.text)
                continue
            value = captured[part.name]
            if not part.language.matches(value):
                return Mismatch("length", offset, part.name)
            offset += len(value)
        return Mismatch("length", len(key), None)


def parse_pattern(text: str, classes: Mapping[str, ClassExpression]) -> KeyPattern:
    """Parse a key pattern. `classes` are the declared placeholders.

    Raises `PatternError` with an offset for invalid text. Its `name` is set if a placeholder is not declared,
    appears twice, or is variadic but can hold only empty segments.
    """
    parts: list[Part] = []
    plain = bytearray()
    at = 0
    while at < len(text):
        char = text[at]
        if char == "<":
            if plain:
                parts.append(Literal(bytes(plain)))
                plain.clear()
            hole, after = _hole(text, at, classes)
            if any(isinstance(part, Hole) and part.name == hole.name for part in parts):
                raise PatternError(f"placeholder <{hole.name}> appears twice: rename one", at, hole.name)
            at = after
            parts.append(hole)
        elif char == ">":
            raise PatternError("'>' does not close a placeholder; a literal one is written \\>", at)
        elif char == "\\":
            byte, at = _escaped(text, at)
            plain.append(byte)
        else:
            plain += char.encode()
            at += 1
    if plain:
        parts.append(Literal(bytes(plain)))
    if not parts:
        raise PatternError("the pattern is empty", 0)
    return KeyPattern(text, tuple(parts))


def prefix_pattern(prefix: bytes) -> KeyPattern:
    """All byte strings that begin with `prefix`, including `prefix`: the keys of a scope or a claim."""
    rest = Hole(REST, ANYTHING)
    return KeyPattern(_display(prefix) + "*", (Literal(prefix), rest) if prefix else (rest,))


def written(parts: Iterable[Part]) -> str:
    """The text of these parts in a pattern."""
    return "".join(
        _display(part.text) if isinstance(part, Literal) else f"<{part.name}{'...' if part.variadic else ''}>"
        for part in parts
    )


def exact_pattern(key: bytes) -> KeyPattern:
    """The pattern that matches only this key."""
    return KeyPattern(_display(key), (Literal(key),))


def _hole(text: str, at: int, classes: Mapping[str, ClassExpression]) -> tuple[Hole, int]:
    """The placeholder whose `<` is at `at`, and the offset after it."""
    found = _PLACEHOLDER.match(text, at + 1)
    if found is None:
        raise PatternError(
            "'<' does not open a placeholder: write <name> or <name...>; a literal one is written \\<", at
        )
    name = found[1]
    expression = classes.get(name)
    if expression is None:
        raise PatternError(f"placeholder <{name}> is not declared", at, name)
    if found[2] and nonempty(expression.node) is None:
        raise PatternError(f"placeholder <{name}...> can hold only empty segments", at, name)
    return Hole(name, expression, found[2] is not None), found.end()


def _escaped(text: str, at: int) -> tuple[int, int]:
    """The byte of the escape at `at`, and the offset after it."""
    following = text[at + 1 : at + 2]
    if following and following in "<>\\":
        return ord(following), at + 2
    digits = text[at + 2 : at + 4]
    if following == "x" and re.fullmatch("[0-9a-fA-F]{2}", digits):
        return int(digits, 16), at + 4
    raise PatternError("unknown escape; the escapes are \\<, \\>, \\\\ and \\xHH", at)


def _display(literal_text: bytes) -> str:
    """Literal bytes as they are written in a pattern."""
    shown = literal_text.decode(errors="surrogateescape")
    return "".join(
        f"\\{char}"
        if char in "<>\\"
        else char
        if char.isprintable()
        else "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))
        for char in shown
    )


def _rank(hole: Hole) -> int:
    if hole.name.startswith(REST):
        return _REST
    if hole.may_hold_separator:
        return _VARIADIC
    return _PLACEHOLDER_ONLY


def _segment(rank: int, literals: int) -> tuple[int, int]:
    if rank == _LITERAL:
        return _LITERAL, 0
    if rank == _PLACEHOLDER_ONLY and literals:
        return _PARTLY_LITERAL, -literals
    return rank, -literals
