"""Masks the parts of a name that may be secret, in names that match no pattern of the policy.

Rule: a part of a name is masked unless it cannot be a secret. The policy's own literal text is no secret, nor
is text that no class of a secret placeholder can hold. A glob's wildcard shows nothing, but the text next to
it may be a part of a secret.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple

from .short_names import MOST_KINDS, SHORT, ShortNames

MASKED = b"<masked>"
# Whether a piece of a name is certainly no secret; may be one; or is one because of its position.
Kind = Literal["open", "unknown", "secret"]
OPEN: Kind = "open"
UNKNOWN: Kind = "unknown"
SECRET: Kind = "secret"
_MAX_READ = 1024  # bytes of a name that are read
_PIECE = re.compile(rb"[^:{}]+")
_MAX_LEADING = 64  # pieces that one expression searches for
SEPARATORS = re.compile(rb"([:{}]+)")
_SIGNS = b"*?[]^\\"  # the special bytes of globs
_WILDCARDS = b"*?"


@dataclasses.dataclass(frozen=True, slots=True)
class Secret:
    """The values of a secret placeholder, as far as they differ from other text."""

    runs: re.Pattern[bytes]  # runs of its bytes, in both cases, and of special bytes of globs
    shortest: int  # bytes


class Known(NamedTuple):
    """The pieces of the literal text of a policy's patterns, as `Secrecy` has them."""

    words: set[bytes]
    beginnings: set[bytes]
    leading: set[bytes]
    begun: set[bytes]  # literal beginnings of names with secrets


class Quick(NamedTuple):
    """Two expressions for the fast path. It requires that no secret holds a separator or comes first, and
    that few pieces lead to one."""

    suspicious: re.Pattern[bytes]  # a piece that may hold a secret, or a part of one
    leading: re.Pattern[bytes] | None  # a piece that a secret follows, with the separator after it


@dataclasses.dataclass(frozen=True, slots=True)
class Secrecy:
    """A policy's secrets, and the text that is known not to be secret."""

    secrets: tuple[Secret, ...]
    words: frozenset[bytes]  # the pieces of the policy's literal text
    beginnings: frozenset[bytes]  # literal beginnings of pieces that contain a placeholder
    # The pieces that a secret follows, in lower case; b"": a secret may come first.
    leading: frozenset[bytes]
    quick: Quick | None
    # The fast path; None if a secret may hold a separator or come first, or if there are too many kinds.
    short: ShortNames | None = dataclasses.field(compare=False)
    sizes: tuple[int, ...]  # the lengths of the beginnings, the longest first

    def may_hold(self, byte: bytes) -> bool:
        """Whether a secret may contain this byte."""
        return any(secret.runs.match(byte) is not None for secret in self.secrets)

    def shown(self, name: bytes) -> bytes:
        """The name with every possible secret or part of one masked. Of a long name, only the beginning."""
        quick = self.quick
        if quick is None or len(name) >= _MAX_READ:
            parts = self.pieces(name[:_MAX_READ])
            return b"".join(piece if kind == OPEN else self._masked(piece) for piece, kind in parts)
        found = quick.leading.search(name) if quick.leading is not None else None
        at = found.end() if found is not None else len(name)
        if at == len(name):
            return quick.suspicious.sub(self._masked_unless_known, name)
        rest = _PIECE.sub(lambda piece: self._masked(piece[0]), name[at:])
        return quick.suspicious.sub(self._masked_unless_known, name[:at]) + rest

    def shown_short(self, name: bytes) -> str | None:
        """The masked form of a short name, on the fast path. None if the fast path cannot decide."""
        short = self.short
        if short is None or len(name) > SHORT:
            return None
        shown = short.shown(name)
        if shown is None and self._learns(short, name[: name.rfind(b":") + 1]):
            shown = short.shown(name)
        return shown.decode() if shown is not None else None

    def _learns(self, short: ShortNames, head: bytes) -> bool:
        """Whether the fast path knows a beginning of names only from now on."""
        if head in short.heads:
            return False
        leads = any(piece.strip(_WILDCARDS).lower() in self.leading for piece in SEPARATORS.split(head)[::2])
        if leads or self.shown(head) != head:
            return False
        short.know(head)
        return True

    def _masked_unless_known(self, piece: re.Match[bytes]) -> bytes:
        text = piece[0]
        return text if text.strip(_WILDCARDS) in self.words else self._masked(text)

    def pieces(self, name: bytes) -> Iterator[tuple[bytes, Kind]]:
        """The pieces of a name and the separators between them, each with its kind."""
        dangerous = self._dangerous(name)
        at = 0
        expected: Kind = SECRET if b"" in self.leading else OPEN
        for index, piece in enumerate(SEPARATORS.split(name)):
            text = piece.strip(_WILDCARDS)
            if index % 2 or not text:
                yield piece, OPEN
            elif expected == SECRET and (at or text not in self.words):
                yield piece, SECRET
            elif text in self.words or 1 not in dangerous[at : at + len(piece)]:
                yield piece, OPEN
            else:
                yield piece, UNKNOWN
            if not index % 2 and text and (expected == OPEN or not at):
                expected = SECRET if text.lower() in self.leading else OPEN
            at += len(piece)

    def _masked(self, piece: bytes) -> bytes:
        """A piece with the possible secret in it masked."""
        beginning = b""
        for size in self.sizes:
            if piece[:size] in self.beginnings:
                beginning = piece[:size]
                break
        core = piece[len(beginning) :]
        text = core.strip(_WILDCARDS)
        if not text:
            return piece
        before, _, behind = core.partition(text)
        return beginning + (b"" if beginning else before) + MASKED + behind

    def _dangerous(self, name: bytes) -> bytearray:
        """One byte for each byte of the name: 1 if it may belong to a secret."""
        found = bytearray(len(name))
        for secret in self.secrets:
            for run in secret.runs.finditer(name):
                is_long = run.end() - run.start() >= secret.shortest or run.end() == _MAX_READ
                if is_long or any(sign in run[0] for sign in _SIGNS):
                    found[run.start() : run.end()] = b"\1" * (run.end() - run.start())
        return found


def secrecy_of(kinds: Iterable[tuple[int, int]], known: Known) -> Secrecy | None:
    """The secrecy of a policy, or None if it has no secrets.

    `kinds` are the kinds of secret values: their bytes as a mask, and the minimum length of a secret.
    """
    classes = tuple(_secret(*one) for one in kinds)
    if not classes:
        return None
    return Secrecy(
        classes,
        frozenset(known.words),
        frozenset(known.beginnings),
        frozenset(known.leading),
        _quick(classes, known.leading),
        _short_names(classes, known),
        tuple(sorted({len(beginning) for beginning in known.beginnings}, reverse=True)),
    )


def _quick(secrets: Collection[Secret], leading: Collection[bytes]) -> Quick | None:
    if len(leading) > _MAX_LEADING or not _keep_to_pieces(secrets, leading):
        return None
    runs = (secret.runs.pattern[:-1] + b"{%d}" % min(secret.shortest, _MAX_READ) for secret in secrets)
    signs = b"|".join(dict.fromkeys([rb"[*?\[\]^\\]", *runs]))
    words = b"|".join(map(re.escape, sorted(leading)))
    return Quick(
        re.compile(b"(?:(?<=[:{}])|^)[^:{}]*(?:" + signs + b")[^:{}]*"),
        re.compile(b"(?:(?<=[:{}])|^)[*?]*(?i:" + words + rb")[*?]*(?:[:{}]|\Z)") if leading else None,
    )


def _keep_to_pieces(secrets: Iterable[Secret], leading: Collection[bytes]) -> bool:
    """Whether no secret holds a separator or comes first."""
    return b"" not in leading and not any(secret.runs.search(b":{}") for secret in secrets)


def _short_names(secrets: Collection[Secret], known: Known) -> ShortNames | None:
    if len(secrets) > MOST_KINDS or not _keep_to_pieces(secrets, known.leading):
        return None
    kinds = [(_held(secret), secret.shortest) for secret in secrets]
    return ShortNames(kinds, tuple(known.begun), tuple(known.beginnings), frozenset(known.words))


def _secret(alphabet: int, shortest: int) -> Secret:
    known = {byte for byte in range(256) if alphabet >> byte & 1}
    known |= {byte for one in known for byte in (*bytes([one]).lower(), *bytes([one]).upper())}
    return Secret(re.compile(_set(known | set(_SIGNS)) + b"+"), shortest)


def _set(known: Iterable[int]) -> bytes:
    """An expression for one of these bytes."""
    text = b"".join(b"\\x%02x" % byte for byte in sorted(known))
    return b"[" + text + b"]" if text else b"(?:(?!))"


def _held(secret: Secret) -> frozenset[int]:
    """The bytes that a secret may contain, and the special bytes of globs."""
    return frozenset(byte for byte in range(256) if secret.runs.match(bytes([byte])))
