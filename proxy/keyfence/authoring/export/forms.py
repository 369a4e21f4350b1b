"""Classes of values as checks in other languages: regular expressions, or a tree for a small matcher.

Rule: every check is exact, byte by byte. A language without regular expressions gets the tree, and a matcher
that walks all ways at once; so no value is accepted there that the policy does not accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from keyfence.policy.patterns.regular import (
    SEPARATOR,
    Bytes,
    Concat,
    Either,
    Joined,
    Node,
    Repeat,
    bytes_of,
    concat,
    literal,
)

# Go's regular expressions take counters up to this, and products of nested counters too.
MOST_REPEATS = 1000
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_:@, ")
_PLAIN_IN_SET = _PLAIN | frozenset(b".+*")
_SHORTEST_RANGE = 3  # bytes; shorter ones are written out


def regex(node: Node, *, splits: bool = False) -> str:
    """Returns a regular expression that matches exactly the language, for texts whose characters stand for
    bytes. It has no anchors. `splits` writes counters above MOST_REPEATS as several ones."""
    return _regex(node, splits)


def _regex(node: Node, splits: bool) -> str:
    match node:
        case Bytes(mask):
            return _set(mask)
        case Concat(parts):
            return "".join(
                _grouped(part, splits) if isinstance(part, Either) else _regex(part, splits) for part in parts
            )
        case Either(options):
            return "|".join(_regex(option, splits) for option in options)
        case Joined(inner):
            one = _grouped(inner, splits)
            return f"{one}(?::{one})*"
        case Repeat(inner, least, most):
            one = _grouped(inner, splits)
            if splits and most_repeats(node) > MOST_REPEATS:
                return _split(one, least, most, most_repeats(inner))
            return one + _counter(least, most)


def _grouped(node: Node, splits: bool) -> str:
    text = _regex(node, splits)
    return text if isinstance(node, Bytes) else f"(?:{text})"


def _counter(least: int, most: int | None) -> str:
    known = {(0, 1): "?", (0, None): "*", (1, None): "+", (1, 1): ""}
    if (least, most) in known:
        return known[least, most]
    if most == least:
        return f"{{{least}}}"
    return f"{{{least},{'' if most is None else most}}}"


def most_repeats(node: Node) -> int:
    """Returns the greatest product of nested counters."""
    match node:
        case Bytes():
            return 1
        case Concat(parts) | Either(parts):
            return max((most_repeats(part) for part in parts), default=1)
        case Joined(inner):
            return most_repeats(inner)
        case Repeat(inner, least, most):
            return max(least, most or 0, 1) * most_repeats(inner)


def _split(one: str, least: int, most: int | None, nested: int) -> str:
    """Returns a counter as several ones, none of which is too large."""
    step = max(MOST_REPEATS // nested, 1)
    text = "".join(one + _counter(count, count) for count in _steps(least, step))
    if most is None:
        return f"{text}(?:{one})*"
    return text + "".join(f"{one}{_counter(0, count)}" for count in _steps(most - least, step))


def _steps(count: int, step: int) -> Iterator[int]:
    while count > 0:
        yield min(count, step)
        count -= step


def ranges(mask: int) -> list[tuple[int, int]]:
    """Returns the bytes of a mask as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for byte in bytes_of(mask):
        if found and found[-1][1] == byte - 1:
            found[-1] = found[-1][0], byte
        else:
            found.append((byte, byte))
    return found


def _set(mask: int) -> str:
    if mask.bit_count() == 1:
        return _escaped(mask.bit_length() - 1, _PLAIN)
    text = ""
    for first, last in ranges(mask):
        if last - first + 1 < _SHORTEST_RANGE:
            text += "".join(_escaped(byte, _PLAIN_IN_SET) for byte in range(first, last + 1))
        else:
            text += f"{_escaped(first, _PLAIN_IN_SET)}-{_escaped(last, _PLAIN_IN_SET)}"
    return f"[{text}]"


def _escaped(byte: int, plain: frozenset[int]) -> str:
    # In one form in all languages, and without quotes, slashes and backticks, which end literals there.
    return chr(byte) if byte in plain else f"\\x{byte:02x}"


class Tree(NamedTuple):
    """One node of the tree for a matcher: `text` is a literal, `set` has ranges of bytes, `seq` and `any`
    have parts, `rep` has one."""

    kind: Literal["text", "set", "seq", "any", "rep"]
    text: bytes = b""
    ranges: tuple[tuple[int, int], ...] = ()
    parts: tuple[Tree, ...] = ()
    least: int = 1
    most: int | None = 1

    def written(self, write: Callable[[Tree, list[str]], str]) -> str:
        """Returns the tree as a language writes it; `write` gets the parts already written."""
        return write(self, [part.written(write) for part in self.parts])


def tree(node: Node) -> Tree:
    """Returns the tree that matches exactly the language."""
    match node:
        case Bytes(mask):
            if mask.bit_count() == 1:
                return Tree("text", bytes(bytes_of(mask)))
            return Tree("set", ranges=tuple(ranges(mask)))
        case Concat(parts):
            return _sequence([tree(part) for part in parts])
        case Either(options):
            return Tree("any", parts=tuple(map(tree, options)))
        case Joined(inner):
            more = Repeat(concat([literal(SEPARATOR), inner]), 0, None)
            return tree(Concat((inner, more)))
        case Repeat(Bytes(mask), least, most):
            return Tree("set", ranges=tuple(ranges(mask)), least=least, most=most)
        case Repeat(inner, least, most):
            return Tree("rep", parts=(tree(inner),), least=least, most=most)


def _sequence(parts: list[Tree]) -> Tree:
    """Returns the parts in sequence, with literals that follow each other as one."""
    joined: list[Tree] = []
    for part in (inner for one in parts for inner in (one.parts if one.kind == "seq" else (one,))):
        if joined and part.kind == joined[-1].kind == "text":
            joined[-1] = Tree("text", joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined[0] if len(joined) == 1 else Tree("seq", parts=tuple(joined))
