"""What of a name that is of no form is known not to be a secret.

Rule: what isn't known not to be a secret is masked. Known is the policy's own literal text, and what no class
of a secret placeholder can hold. A wildcard of a glob shows nothing, but what it stands beside may be a part
of a secret.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple

from .patterns import ClassExpression, Hole, KeyPattern
from .regular import UNBOUNDED

MASKED = b"<masked>"
# What a piece of a name may be: surely no secret; one, for all that is known; and one by its place.
Kind = Literal["open", "unknown", "secret"]
OPEN: Kind = "open"
UNKNOWN: Kind = "unknown"
SECRET: Kind = "secret"
_LOOKED_AT = 1024  # bytes of a name
_PIECE = re.compile(rb"[^:{}]+")
_FEW = 64  # pieces that are looked for in a name at once
_SEPARATORS = re.compile(rb"([:{}]+)")
_SIGNS = b"*?[]^\\"  # of globs, and what stands between them
_WILDCARDS = b"*?"


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """What a secret placeholder can hold, as far as it tells a secret from other text."""

    runs: re.Pattern[bytes]  # of its bytes, in both cases, and of signs of globs
    shortest: int  # bytes


class Quick(NamedTuple):
    """The same in two expressions, where no secret holds a separator or comes first, and few pieces lead to
    one."""

    suspicious: re.Pattern[bytes]  # a piece that may hold a secret, or a part of one
    leading: re.Pattern[bytes] | None  # a piece behind which a secret stands, with what ends it


@dataclasses.dataclass(frozen=True, slots=True)
class Secrecy:
    """What a policy says of its secrets, and which text isn't one."""

    secrets: tuple[Secret, ...]
    words: frozenset[bytes]  # the policy's literal text, piece by piece
    beginnings: frozenset[bytes]  # of pieces in which a placeholder follows
    # The pieces behind which a secret stands, in lower case; b"": it may be the first.
    leading: frozenset[bytes]
    quick: Quick | None

    def may_hold(self, byte: bytes) -> bool:
        """Whether a secret may hold this byte."""
        return any(secret.runs.match(byte) is not None for secret in self.secrets)

    def shown(self, name: bytes) -> bytes:
        """A name with all masked that may be a secret, or a part of one; the beginning of a long one."""
        quick = self.quick
        if quick is None or len(name) >= _LOOKED_AT:
            parts = self.pieces(name[:_LOOKED_AT])
            return b"".join(piece if kind == OPEN else self._masked(piece) for piece, kind in parts)
        found = quick.leading.search(name) if quick.leading is not None else None
        at = found.end() if found is not None else len(name)
        if at == len(name):
            return quick.suspicious.sub(self._masked_unless_known, name)
        rest = _PIECE.sub(lambda piece: self._masked(piece[0]), name[at:])
        return quick.suspicious.sub(self._masked_unless_known, name[:at]) + rest

    def _masked_unless_known(self, piece: re.Match[bytes]) -> bytes:
        text = piece[0]
        return text if text.strip(_WILDCARDS) in self.words else self._masked(text)

    def pieces(self, name: bytes) -> Iterator[tuple[bytes, Kind]]:
        """The pieces of a name and the separators between them, and what each may be."""
        dangerous = self._dangerous(name)
        at = 0
        place: Kind = SECRET if b"" in self.leading else OPEN
        for index, piece in enumerate(_SEPARATORS.split(name)):
            text = piece.strip(_WILDCARDS)
            if index % 2 or not text:
                yield piece, OPEN
            elif place == SECRET and (at or text not in self.words):
                yield piece, SECRET
            elif text in self.words or 1 not in dangerous[at : at + len(piece)]:
                yield piece, OPEN
            else:
                yield piece, UNKNOWN
            if not index % 2 and text and (place == OPEN or not at):
                place = SECRET if text.lower() in self.leading else OPEN
            at += len(piece)

    def _masked(self, piece: bytes) -> bytes:
        """A piece without what may be a secret in it."""
        sizes = range(len(piece), 0, -1) if self.beginnings else ()
        beginning = next((piece[:size] for size in sizes if piece[:size] in self.beginnings), b"")
        core = piece[len(beginning) :]
        if not core.strip(_WILDCARDS):
            return piece
        before = b"" if beginning else core[: len(core) - len(core.lstrip(_WILDCARDS))]
        behind = core[len(core.rstrip(_WILDCARDS)) :]
        return beginning + before + MASKED + behind

    def _dangerous(self, name: bytes) -> bytearray:
        """A byte for each of the name's: 1 where a secret, or a part of one, may stand."""
        found = bytearray(len(name))
        for secret in self.secrets:
            for run in secret.runs.finditer(name):
                is_long = run.end() - run.start() >= secret.shortest or run.end() == _LOOKED_AT
                if is_long or any(sign in run[0] for sign in _SIGNS):
                    found[run.start() : run.end()] = b"\1" * (run.end() - run.start())
        return found


def secrecy_of(
    secrets: Iterable[tuple[ClassExpression, int]], patterns: Iterable[tuple[KeyPattern, frozenset[str]]]
) -> Secrecy | None:
    """What is known of a policy's secrets, from their classes with the least bytes that keep one, and from
    all patterns with the names of their secret placeholders; None where it has no secrets."""
    kinds = dict.fromkeys(
        (one.alphabet, max(min(one.lengths[0], UNBOUNDED), least)) for one, least in secrets
    )
    classes = tuple(_secret(*one) for one in kinds)
    if not classes:
        return None
    known = _Known()
    for pattern, of_secrets in patterns:
        known.take(pattern, of_secrets)
    return Secrecy(
        classes,
        frozenset(known.words),
        frozenset(known.beginnings),
        frozenset(known.leading),
        _quick(classes, known.leading),
    )


def _quick(secrets: Collection[Secret], leading: Collection[bytes]) -> Quick | None:
    if b"" in leading or len(leading) > _FEW or any(secret.runs.search(b":{}") for secret in secrets):
        return None
    runs = (secret.runs.pattern[:-1] + b"{%d}" % min(secret.shortest, _LOOKED_AT) for secret in secrets)
    ways = b"|".join(dict.fromkeys([rb"[*?\[\]^\\]", *runs]))
    words = b"|".join(map(re.escape, sorted(leading)))
    return Quick(
        re.compile(b"(?:(?<=[:{}])|^)[^:{}]*(?:" + ways + b")[^:{}]*"),
        re.compile(b"(?:(?<=[:{}])|^)[*?]*(?i:" + words + b")[*?]*(?:[:{}]|$)") if leading else None,
    )


class _Known:
    """The literal text of patterns, piece by piece."""

    def __init__(self) -> None:
        self.words: set[bytes] = set()
        self.beginnings: set[bytes] = set()
        self.leading: set[bytes] = set()

    def take(self, pattern: KeyPattern, secrets: frozenset[str]) -> None:
        piece = last = b""
        is_whole = True  # nothing but literal text is in the piece so far
        for part in pattern.parts:
            if isinstance(part, Hole):
                if is_whole and piece:
                    self.beginnings.add(piece)
                if part.name in secrets:
                    self.leading.add(last.lower())
                is_whole = False
                continue
            first, *more = _SEPARATORS.split(part.text)[::2]
            piece += first
            for following in more:
                if is_whole and piece:
                    self.words.add(piece)
                    last = piece
                piece, is_whole = following, True
        if is_whole and piece:
            self.words.add(piece)


def _secret(alphabet: int, shortest: int) -> Secret:
    known = {byte for byte in range(256) if alphabet >> byte & 1}
    known |= {byte for one in known for byte in (*bytes([one]).lower(), *bytes([one]).upper())}
    signs = "".join(f"\\x{byte:02x}" for byte in sorted(known | set(_SIGNS)))
    return Secret(re.compile(f"[{signs}]+".encode()), shortest)
