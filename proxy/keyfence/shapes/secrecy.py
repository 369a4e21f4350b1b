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

from keyfence.policy.patterns.patterns import ClassExpression, Hole, KeyPattern
from keyfence.policy.patterns.regular import UNBOUNDED
from keyfence.policy.show import PLAIN, printable

MASKED = b"<masked>"
_MASKED = MASKED.decode()
# What a piece of a name may be: surely no secret; one, for all that is known; and one by its place.
Kind = Literal["open", "unknown", "secret"]
OPEN: Kind = "open"
UNKNOWN: Kind = "unknown"
SECRET: Kind = "secret"
_LOOKED_AT = 1024  # bytes of a name
MAX_HEADS = 1_024  # beginnings of names that are remembered; beyond, all are forgotten and found anew
# Bytes of a name that may take the short way: masking adds fewer than eight, so that none is cut when shown.
SHORT = 120
_PIECE = re.compile(rb"[^:{}]+")
_FEW = 64  # pieces that are looked for in a name at once
_SEPARATORS = re.compile(rb"([:{}]+)")
_SIGNS = b"*?[]^\\"  # of globs, and what stands between them
_WILDCARDS = b"*?"
_ODD = frozenset(_SIGNS + b":{}")  # what ends a piece, or isn't its text


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
    # A short name that doesn't begin as one with a secret, in three parts: up to its last colon; and behind
    # that what may be a secret as a whole, or else what holds too few of a secret's bytes in a row and shows
    # as it is. None where a secret may hold a separator or come first.
    brief: re.Pattern[bytes] | None
    sizes: tuple[int, ...]  # of the beginnings, the longest first
    # How the beginnings of names are shown, up to a colon, that show as they are and lead to no secret: they
    # recur from name to name. What is masked is never held here.
    remembered: dict[bytes, str] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

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

    def briefly(self, name: bytes) -> str | None:
        """A short name as people may see it, where all but its last piece is known to show, and that is one
        secret, for all that is known, or surely none; None says nothing."""
        found = self.brief.fullmatch(name) if self.brief is not None and len(name) <= SHORT else None
        if found is None:
            return None
        head, secret, rest = found.groups()
        shown = self.remembered.get(head)
        if shown is None:
            shown = self._head(head)
            if shown is None:
                return None
        if secret is None:
            return shown + str(rest, "ascii")
        return shown + (printable(secret) if secret in self.words else _MASKED)

    def _head(self, head: bytes) -> str | None:
        """How a beginning is shown, which is remembered; None where it isn't known to show."""
        leads = any(piece.strip(_WILDCARDS).lower() in self.leading for piece in _SEPARATORS.split(head)[::2])
        if leads or self.shown(head) != head:
            return None
        if len(self.remembered) >= MAX_HEADS:
            self.remembered.clear()
        shown = self.remembered[head] = printable(head)
        return shown

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
        _brief(classes, known),
        tuple(sorted({len(beginning) for beginning in known.beginnings}, reverse=True)),
    )


def _quick(secrets: Collection[Secret], leading: Collection[bytes]) -> Quick | None:
    if len(leading) > _FEW or not _keep_to_pieces(secrets, leading):
        return None
    runs = (secret.runs.pattern[:-1] + b"{%d}" % min(secret.shortest, _LOOKED_AT) for secret in secrets)
    ways = b"|".join(dict.fromkeys([rb"[*?\[\]^\\]", *runs]))
    words = b"|".join(map(re.escape, sorted(leading)))
    return Quick(
        re.compile(b"(?:(?<=[:{}])|^)[^:{}]*(?:" + ways + b")[^:{}]*"),
        re.compile(b"(?:(?<=[:{}])|^)[*?]*(?i:" + words + rb")[*?]*(?:[:{}]|\Z)") if leading else None,
    )


def _keep_to_pieces(secrets: Iterable[Secret], leading: Collection[bytes]) -> bool:
    """Whether no secret holds a separator or comes first."""
    return b"" not in leading and not any(secret.runs.search(b":{}") for secret in secrets)


def _brief(secrets: Collection[Secret], known: _Known) -> re.Pattern[bytes] | None:
    if not _keep_to_pieces(secrets, known.leading):
        return None
    held = [(_held(secret) - _ODD, min(secret.shortest, SHORT + 1)) for secret in secrets]
    runs = b"|".join(_set(held_by) + b"{%d,}" % shortest for held_by, shortest in held)
    rest = _with_short_runs(
        PLAIN - _ODD,
        frozenset[int]().union(*(held_by for held_by, _ in held)),
        min(shortest for _, shortest in held) - 1,
    )
    # Redis' own channels have a way of their own, and so have forms with secrets and what holds a word beside
    # a secret.
    begun, glued = _none_of({b"__key", *known.begun}), _none_of(known.beginnings)
    return re.compile(begun + b"((?:.*:)?)(?:" + glued + b"(" + runs + b")|(" + rest + b"))")


def _with_short_runs(of: frozenset[int], held: frozenset[int], most: int) -> bytes:
    """An expression for text of bytes `of`, among them no run of more than `most` that are `held`."""
    run, others = _set(of & held), _set(of - held)
    if not most:
        return others + b"*"
    return others + b"*(?:" + run + b"{1,%d}" % most + others + b"+)*" + run + b"{0,%d}" % most


def _none_of(beginnings: Iterable[bytes]) -> bytes:
    """An expression for what begins with none of these."""
    found = b"|".join(map(re.escape, sorted(beginnings)))
    return b"(?!" + found + b")" if found else b""


def leading_to_secret(pattern: KeyPattern, secrets: Collection[str]) -> bytes:
    """The beginning of a pattern's keys behind which all may be a secret; b"" where there is none.

    Where a word stands between the first placeholder and the secret (`pc:<env>:session:<token>`), it is the
    word that leads to the secret: the beginning is that of keys without secrets, too.
    """
    for part in pattern.parts:
        if isinstance(part, Hole):
            if part.name in secrets:
                return pattern.literal_prefix
        elif part is not pattern.parts[0] and any(_SEPARATORS.split(part.text)[2:-1:2]):
            return b""
    return b""


class _Known:
    """The literal text of patterns, piece by piece."""

    def __init__(self) -> None:
        self.words: set[bytes] = set()
        self.beginnings: set[bytes] = set()
        self.leading: set[bytes] = set()
        self.begun: set[bytes] = set()  # beginnings of names with secrets

    def take(self, pattern: KeyPattern, secrets: frozenset[str]) -> None:
        if beginning := leading_to_secret(pattern, secrets):
            self.begun.add(beginning)
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
    return Secret(re.compile(_set(known | set(_SIGNS)) + b"+"), shortest)


def _set(known: Iterable[int]) -> bytes:
    """An expression for any of these bytes."""
    text = b"".join(b"\\x%02x" % byte for byte in sorted(known))
    return b"[" + text + b"]" if text else b"(?:(?!))"


def _held(secret: Secret) -> frozenset[int]:
    """The bytes that a secret may hold, and signs of globs."""
    return frozenset(byte for byte in range(256) if secret.runs.match(bytes([byte])))
