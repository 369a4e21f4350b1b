"""Class expressions: the values of a placeholder, written as `[A-Za-z0-9_.-]{1,128}` or `running|paused`.

Rule: an expression matches a whole value, byte by byte, and is regular. Constructs that are not regular
(back-references, look-around) or not needed (anchors) raise an error with their offset; they are never read
as text.

The language:

- literal text in UTF-8
- `.` for any byte, including the separator and CR LF
- sets such as `[a-z0-9_]` and `[^:]`
- groups `(…)` or `(?:…)`, and alternation `|`
- the counters `? * + {m} {m,} {m,n}`
- the escapes `\\d` (0-9), `\\w` (A-Za-z0-9_), `\\xHH` (one byte), and a backslash before punctuation
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

from .matching import Simulation, linear_regex
from .regular import (
    ANY_BYTE,
    EMPTY,
    Bytes,
    Joined,
    Node,
    alphabet,
    concat,
    either,
    literal,
    longest,
    nonempty,
    readable_word,
    relax,
    repeat,
    shortest,
    size,
)

# The positions that one expression may have with its counters unrolled. This bounds the memory of a match.
MAX_POSITIONS = 4096
MAX_NESTING = 30
TOO_LARGE = f"too large: its counters cover more than {MAX_POSITIONS} bytes"

DIGITS = sum(1 << byte for byte in b"0123456789")
WORD = sum(1 << byte for byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_")


class PatternError(ValueError):
    """An invalid class expression or key pattern.

    `offset` counts characters from the start of the text. `name` is the placeholder at fault, if any.
    """

    def __init__(self, message: str, offset: int, name: str | None = None) -> None:
        super().__init__(message, offset, name)
        self.message = message
        self.offset = offset
        self.name = name

    def __str__(self) -> str:
        return f"{self.message} (at offset {self.offset})"


class ClassExpression:
    """The values that a placeholder may have."""

    def __init__(self, text: str, node: Node, good_example: bytes = b"") -> None:
        self.text = text
        self.node = node
        self.good_example = good_example  # preferred over a generated example

    def __repr__(self) -> str:
        return f"ClassExpression({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassExpression) and other.node == self.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __reduce__(self) -> tuple[type[ClassExpression], tuple[str, Node, bytes]]:
        return ClassExpression, (self.text, self.node, self.good_example)

    @cached_property
    def joined(self) -> ClassExpression:
        """One or more non-empty values of this class, with the separator between them."""
        return ClassExpression(self.text, Joined(nonempty(self.node) or EMPTY))

    @cached_property
    def relaxed(self) -> Node:
        """The language in the automaton, without long counters."""
        return relax(self.node)

    @cached_property
    def is_counted(self) -> bool:
        """Whether the class has a counter that the automaton leaves out, so that lengths must be checked."""
        return self.relaxed != self.node

    @cached_property
    def lengths(self) -> tuple[int, int]:
        """The lengths of the shortest and the longest value, in bytes; UNBOUNDED or more means no limit."""
        return shortest(self.node), longest(self.node)

    @property
    def alphabet(self) -> int:
        """The bytes that occur in values, as a mask: bit b for byte b."""
        return alphabet(self.node)

    def matches(self, value: bytes) -> bool:
        """Whether `value` as a whole is in the class. Linear in its length."""
        if self._regex is not None:
            return self._regex.fullmatch(value) is not None
        return self.simulation.matches(value)

    def predicate(self) -> Callable[[bytes], object]:
        """A function that returns a true value for the class' values. It is the fastest check, and
        picklable."""
        return self.matches if self._regex is None else self._regex.fullmatch

    def example(self, number: int = 1) -> bytes:
        """A readable value. Different numbers give different values if the class has several."""
        if self.good_example:
            return self.good_example
        for candidate in (b"x%d" % number, b"%d" % number, b"a%d" % number):
            if self.matches(candidate):
                return candidate
        return readable_word(nonempty(self.node) or EMPTY)

    @cached_property
    def _regex(self) -> re.Pattern[bytes] | None:
        return linear_regex([self.node], [False])

    @cached_property
    def simulation(self) -> Simulation:
        return Simulation(self.node)


def parse_class(text: str) -> ClassExpression:
    """Parse a class expression.

    Raises `PatternError` with an offset if the expression is invalid, not regular, or too large.
    """
    return ClassExpression(text, _Parser(text).parse())


def literal_class(values: Iterable[bytes]) -> ClassExpression:
    """The class of exactly these values, for a bound placeholder. Raises `PatternError` if there are none."""
    options = list(dict.fromkeys(values))
    if not options:
        raise PatternError("a class needs at least one value", 0)
    text = "|".join(escape(option) for option in options)
    return ClassExpression(text, either([literal(option) for option in options]))


def escape(value: bytes) -> str:
    """A class expression that matches only `value`."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:/@#%&=,;!~'\" <>"
    return "".join(
        chr(byte) if byte in plain else f"\\{chr(byte)}" if 32 < byte < 127 else f"\\x{byte:02x}"
        for byte in value
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.nesting = 0

    def parse(self) -> Node:
        node = self._alternation()
        if self.at < len(self.text):
            raise PatternError("')' without '('", self.at)
        if size(node) > MAX_POSITIONS:
            raise PatternError(TOO_LARGE, 0)
        return node

    def _peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def _alternation(self) -> Node:
        options = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._sequence())
        return either(options)

    def _sequence(self) -> Node:
        begin = self.at
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._counted())
        if not parts:
            raise PatternError("empty expression: use '?' for optional parts", begin)
        return concat(parts)

    def _counted(self) -> Node:
        begin = self.at
        atom = self._atom()
        char = self._peek()
        if char == "{":
            least, most = self._bounds()
        elif char and char in "?*+":
            self.at += 1
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}[char]
        else:
            return atom
        again = self._peek()
        if again and again in "?*+{":
            raise PatternError(
                "only one counter may follow (lazy and possessive ones would mean the same)", self.at
            )
        if size(atom) * max(least, most or 0) > MAX_POSITIONS:
            raise PatternError(TOO_LARGE, begin)
        return repeat(atom, least, most)

    def _bounds(self) -> tuple[int, int | None]:
        begin = self.at
        close = self.text.find("}", begin)
        least, comma, most = self.text[begin + 1 : close].partition(",") if close > 0 else ("", "", "")
        if not _is_count(least) or not (most == "" or _is_count(most)):
            raise PatternError("a counter is {m}, {m,} or {m,n}; a literal brace is written \\{", begin)
        self.at = close + 1
        if not comma:
            return int(least), int(least)
        if most and int(most) < int(least):
            raise PatternError("the counter's upper bound is below its lower", begin)
        return int(least), int(most) if most else None

    def _atom(self) -> Node:
        begin, char = self.at, self.text[self.at]
        self.at += 1
        if char == "(":
            return self._group(begin)
        if char == "[":
            return Bytes(self._set(begin))
        if char == "\\":
            return Bytes(self._escape(begin))
        if char == ".":
            return Bytes(ANY_BYTE)
        if char in "^$":
            raise PatternError(
                f"there are no anchors such as '{char}': an expression always matches the whole value", begin
            )
        if char in "?*+{":
            raise PatternError(f"nothing precedes '{char}'", begin)
        if char in "]}":
            raise PatternError(f"unbalanced '{char}'; a literal one is written \\{char}", begin)
        return literal(char.encode())

    def _group(self, begin: int) -> Node:
        if self._peek() == "?":
            if not self.text.startswith("?:", self.at):
                raise PatternError("not regular: groups are '(…)' and '(?:…)' only", begin)
            self.at += 2
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise PatternError(f"more than {MAX_NESTING} nested groups", begin)
        node = self._alternation()
        self.nesting -= 1
        if self._peek() != ")":
            raise PatternError("'(' is never closed", begin)
        self.at += 1
        return node

    def _escape(self, begin: int) -> int:
        """The bytes of an escape. `begin` is the offset of its backslash."""
        char = self._peek()
        self.at += 1
        if char == "d":
            return DIGITS
        if char == "w":
            return WORD
        if char == "x":
            digits = self.text[self.at : self.at + 2]
            if len(digits) != 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise PatternError("\\x takes two hexadecimal digits", begin)
            self.at += 2
            return 1 << int(digits, 16)
        if char and char.isascii() and char.isprintable() and not char.isalnum():
            return 1 << ord(char)
        if char.isdigit() or (char and char in "kg"):
            raise PatternError("not regular: there are no back-references", begin)
        if char and char in "AbBGzZ":
            raise PatternError(
                f"there are no anchors such as '\\{char}': an expression always matches the whole value",
                begin,
            )
        raise PatternError(
            f"unknown escape '\\{char}'; the escapes are \\d, \\w, \\xHH and \\ before punctuation", begin
        )

    def _set(self, begin: int) -> int:
        negated = self._peek() == "^"
        self.at += negated
        mask = 0
        while self._peek() != "]":
            mask |= self._members(begin)
        self.at += 1
        if negated:
            mask ^= ANY_BYTE
        if not mask:
            raise PatternError("the set is empty", begin)
        return mask

    def _members(self, begin: int) -> int:
        """One member of a set, or a range of them."""
        where = self.at
        first = self._member(begin)
        if self._peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return first
        self.at += 1
        last = self._member(begin)
        if first.bit_count() != 1 or last.bit_count() != 1:
            raise PatternError("a range goes from one byte to another", where)
        if first > last:
            raise PatternError("the range is empty: its first byte comes after its last", where)
        return (last << 1) - first

    def _member(self, begin: int) -> int:
        where, char = self.at, self._peek()
        if not char:
            raise PatternError("'[' is never closed", begin)
        self.at += 1
        if char == "\\":
            return self._escape(where)
        if char == "[":
            raise PatternError("a literal '[' inside a set is written \\[", where)
        if not char.isascii():
            raise PatternError("a set consists of bytes: write bytes beyond ASCII as \\xHH", where)
        return 1 << ord(char)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6
