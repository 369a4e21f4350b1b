# cython: annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False
"""Masks short names in one pass over the last piece: the fast path of `secrecy`.

Rule: it decides only where `Secrecy.shown` gives the same text (tests/adversary/test_secrets.py). That is so
if the name's beginning, up to its last colon, is known to be shown, and the rest is either certainly no
secret or may be one as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.policy.show import PLAIN, printable

MAX_HEADS = 1_024  # known beginnings of names; a full table is cleared
# The longest name, in bytes. Masking adds fewer than eight bytes, so no such name is cut when shown.
SHORT = 120
MOST_KINDS = 6  # of secrets
_MASKED = b"<masked>"
_NOT_TEXT = frozenset(b"*?[]^\\:{}")  # bytes that end a piece, or are special in globs

# What a byte may be, as bits: text that is shown as it is; a part of any secret; a part of a secret of each
# kind.
_TEXT = 1
_HELD = 2
_KIND = 4
_COLON = 58
_SHORT = SHORT  # as a C integer, where this runs compiled


class ShortNames:
    """The short names of one policy."""

    def __init__(
        self,
        secrets: Sequence[tuple[frozenset[int], int]],
        begun: tuple[bytes, ...],
        beginnings: tuple[bytes, ...],
        words: frozenset[bytes],
    ) -> None:
        """`secrets` are the bytes that each kind may hold, and its minimum length; there are at most
        MOST_KINDS. A name that begins with one of `begun` is not decided here, and neither is a last piece
        that may be a secret and begins with one of `beginnings`. `words` are not secret."""
        self.made_of = (secrets, begun, beginnings, words)
        self.heads: dict[bytes, bytes] = {}  # known beginnings, and their shown forms
        self._begun = (b"__key", *begun)  # Redis' own channels
        self._beginnings = beginnings
        self._words = words
        self._lengths = bytes(min(shortest, SHORT + 1) for _, shortest in secrets)
        self._shortest = min(self._lengths, default=SHORT + 1)
        self._kinds_of = bytes(
            (_TEXT if byte in PLAIN and byte not in _NOT_TEXT else 0)
            | (_HELD if any(byte in held for held, _ in secrets) and byte not in _NOT_TEXT else 0)
            | sum(
                _KIND << number
                for number, (held, _) in enumerate(secrets)
                if byte in held and byte not in _NOT_TEXT
            )
            for byte in range(256)
        )
        firsts = {one[0] for one in self._begun if one}
        self._may_begin = bytes(byte in firsts for byte in range(256))

    def __reduce__(self) -> tuple[type[ShortNames], tuple[object, ...]]:
        return ShortNames, self.made_of

    def know(self, head: bytes) -> None:
        """Remember that this beginning, which leads to no secret, is shown unmasked."""
        if len(self.heads) >= MAX_HEADS:
            self.heads.clear()
        self.heads[head] = printable(head).encode()

    def shown(self, name: bytes) -> bytes | None:
        """The name as people may see it; None if that is not decided here."""
        size = len(name)
        if size == 0 or size > _SHORT:
            return None
        raw, kinds_of, may_begin = name, self._kinds_of, self._may_begin
        if may_begin[raw[0]] and name.startswith(self._begun):
            return None
        at = size
        all_of = 255
        run = longest = 0
        while at > 0 and raw[at - 1] != _COLON:
            at -= 1
            kinds = kinds_of[raw[at]]
            all_of &= kinds
            if kinds & _HELD:
                run += 1
                longest = max(longest, run)
            else:
                run = 0
        head = self.heads.get(raw[:at])
        if head is None:
            return None
        if longest < self._shortest:
            return head + raw[at:size] if all_of & _TEXT else None
        secret = self._secret(raw[at:size], all_of)
        return head + secret if secret is not None else None

    def _secret(self, text: bytes, all_of: int) -> bytes | None:
        """The shown form of a last piece with a long run of a secret's bytes; None if that is not decided
        here."""
        size, lengths = len(text), self._lengths
        for number in range(len(self._lengths)):
            if all_of & _KIND << number and size >= lengths[number]:
                break
        else:
            return None
        if text.startswith(self._beginnings):
            return None
        return printable(text).encode() if text in self._words else _MASKED
