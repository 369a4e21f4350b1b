"""The keys of a service as Redis' ACL patterns, and the kinds of keys that these patterns reach.

Rule: a pattern reaches every key that its target matches, and usually more: a `*` stands for any bytes.
`reached` finds what more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyfence.commands.model import DELETE, READ, WRITE
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Target
from keyfence.policy.patterns.expressions import ClassExpression
from keyfence.policy.patterns.patterns import ANYTHING, Hole, KeyPattern, Literal, Part
from keyfence.policy.patterns.regular import ANY_BYTE, Bytes
from keyfence.policy.patterns.set_operations import overlap
from keyfence.policy.show import PLAIN

DATA_TYPES = ("string", "hash", "list", "set", "zset", "stream")  # that Redis has without modules
_SPECIAL = frozenset("*?[\\^")
_PLAIN = frozenset(map(chr, PLAIN)) - {" "}
_ONE_BYTE = ClassExpression(".", Bytes(ANY_BYTE))


class Keys(NamedTuple):
    """One ACL pattern: the keys of a target, or of a grant, and what the service may do with them."""

    glob: str
    pattern: KeyPattern  # all keys that the ACL pattern matches
    held: int  # READ | WRITE | DELETE | GROUP
    types: tuple[str, ...]  # empty: any
    target: Target | None  # None: a grant's glob
    # The number of the file of whose keys a grant admits all that the pattern matches; -1: of none.
    granted_home: int = -1

    def word(self, held: int) -> str:
        """Returns the pattern as a word of ACL SETUSER, with these rights."""
        sign = {READ: "%R~", WRITE: "%W~", READ | WRITE: "~"}[held & (READ | WRITE)]
        return sign + self.glob


def keys_of(policy: CompiledPolicy, service: int) -> tuple[list[Keys], list[Target]]:
    """Returns the ACL patterns of a service, and the targets that have none because a pattern for them would
    match every key."""
    found: list[Keys] = []
    without: list[Target] = []
    for target in policy.targets:
        held = target.rights[service] & ~target.denied[service]
        is_one = target.kind in ("entry", "legacy") or (target.kind == "scope" and target.is_open)
        if not is_one or not held:
            continue
        if target.kind != "scope" and not is_narrow(target):
            without.append(target)
            continue
        types = target.entry.types if target.entry is not None else ()
        found.append(Keys(*glob_of(target.pattern), held, tuple(types), target))
    return found, without


def is_narrow(target: Target) -> bool:
    """Whether an ACL pattern for the target would match less than every key."""
    return bool(target.pattern.literal_prefix)


def glob_of(pattern: KeyPattern) -> tuple[str, KeyPattern]:
    """Returns the ACL pattern for the keys of a pattern, and all keys that it matches. An ACL pattern is one
    word, so a byte that could end the word becomes `?`."""
    text = ""
    parts: list[Part] = []
    for number, part in enumerate(pattern.parts):
        if isinstance(part, Hole):
            text += "*"
            parts.append(Hole(f"{number}", ANYTHING))
            continue
        for at, char in enumerate(_characters(part.text)):
            piece = f"\\{char}" if char in _SPECIAL else _piece(char)
            text += piece
            if piece[-1] == char[-1]:
                parts.append(Literal(_bytes(char)))
            else:
                parts += [Hole(f"{number}.{at}.{nth}", _ONE_BYTE) for nth in range(len(piece))]
    word = _not_closing(text)
    return word, KeyPattern(word, _joined(parts))


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Literal) and found and isinstance(found[-1], Literal):
            found[-1] = Literal(found[-1].text + part.text)
        else:
            found.append(part)
    return tuple(found)


def granted(policy: CompiledPolicy, grant: Grant) -> list[Keys]:
    """Returns the ACL patterns of a grant's keys."""
    held = READ | WRITE | DELETE
    found = [_granted(grant, glob, held) for glob in grant.texts]
    for target in policy.targets if grant.legacy else ():
        if target.kind == "legacy" and target.home == grant.home and is_narrow(target):
            found.append(Keys(*glob_of(target.pattern), held, (), target))
    return found


def _granted(grant: Grant, glob: bytes, held: int) -> Keys:
    known = itertools.takewhile(lambda char: char not in "*?[\\" and _piece(char) == char, _characters(glob))
    beginning = _bytes("".join(known))
    rest = (Hole("rest", ANYTHING),) if beginning != glob else ()
    parts = (*((Literal(beginning),) if beginning else ()), *rest)
    word = word_of(glob)
    is_exact = all(_piece(char) == char for char in _characters(glob))
    return Keys(word, KeyPattern(word, parts), held, (), None, grant.home if is_exact else -1)


def word_of(glob: bytes) -> str:
    """Returns a glob as one word; a byte that could end the word becomes `?`."""
    return _not_closing("".join(map(_piece, _characters(glob))))


def _piece(char: str) -> str:
    """Returns a character as a word may have it: `?` for each byte of one that could end the word, or that
    no text can show."""
    is_shown = char in _PLAIN if char.isascii() else char.isprintable()
    return char if is_shown else "?" * len(_bytes(char))


def _characters(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _not_closing(glob: str) -> str:
    """Returns a glob that matches the same, and does not end with `)`: there Redis ends a selector, whatever
    comes before it (`src/acl.c`, ACLMergeSelectorArguments)."""
    if not glob.endswith(")"):
        return glob
    at = last = 0  # where the last item begins
    while at < len(glob):
        last = at
        at = _end_of_class(glob, at) if glob[at] == "[" else at + 1 + (glob[at] == "\\")
    return f"{glob}]" if glob[last] == "[" else f"{glob[:last]}[)]"


def _end_of_class(glob: str, at: int) -> int:
    """Returns where a class of characters ends that begins at a place in a glob (`patterns.globs`)."""
    at += 2 if glob[at + 1 : at + 2] == "^" else 1
    while at < len(glob) and glob[at] != "]":
        if glob[at] == "\\":
            at += 2
        else:
            at += 3 if glob[at + 1 : at + 2] == "-" and at + 2 < len(glob) else 1
    return at + 1


def reached(policy: CompiledPolicy, keys: Keys) -> Iterator[Target]:
    """Yields the targets of which some keys match an ACL pattern, except its own."""
    beginning = keys.pattern.literal_prefix
    for target in policy.targets:
        if target is not keys.target and _meet(keys.pattern, target.pattern):
            yield target
        if target.pattern.is_prefix and beginning.startswith(target.pattern.literal_prefix):
            return  # the later targets get none of these keys


def _meet(left: KeyPattern, right: KeyPattern) -> bool:
    one, other = left.literal_prefix, right.literal_prefix
    if not (one.startswith(other) or other.startswith(one)):
        return False
    if left.is_literal or right.is_literal:
        return right.matches(one) if left.is_literal else left.matches(other)
    return overlap(left, right) is not None
