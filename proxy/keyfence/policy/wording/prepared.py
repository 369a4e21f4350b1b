# cython: annotation_typing=False
"""Prepared replies: a refusal, cut at the texts that depend on the key.

Rule: filled for a key, a prepared reply is the refusal that the evaluator's words give for that key, byte for
byte (tests/session/test_alike.py). While a reply is prepared, each text that depends on the key leaves a mark
in the words, and the function that makes it is kept with the mark. A word that depends on another key cannot
be prepared.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.show import PLAIN
from keyfence.shapes.short_names import ShortNames

from .masking import shown_as_sent, shown_in

Text = Callable[[bytes], str]  # a text that depends on the key
_FIRST_MARK = 0xE000  # of Unicode's private characters, which `printable` never leaves in a text
_MARK = re.compile(b"\xee\x80([\x80-\xbf])")
_MOST_MARKS = 64
_LONGEST = 128  # bytes; a longer key is cut when it is shown
_IS_PLAIN = bytes(byte in PLAIN for byte in range(256))


class Filler:
    """Makes a text for a key."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def fill(self, key: bytes) -> bytes:
        """The text for a key, as it stands in a reply. Raises ValueError if it is empty: the words around it
        would differ."""
        text = self.text(key)
        if not text:
            raise ValueError("there is no text for this key")
        return text.encode("utf-8", "backslashreplace")


class ShownKey(Filler):
    """Makes a key as people may see it, on the fast path if that can decide."""

    def __init__(self, policy: CompiledPolicy, target: Target | None) -> None:
        super().__init__(lambda key: shown_in(policy, key, target))
        self._as_sent = shown_as_sent(policy, target)  # whether a plain key is shown as it is
        of_a_form = target is not None and bool(target.secrets)
        has_names = policy.secrecy is not None and not self._as_sent and not of_a_form
        self._names: ShortNames | None = policy.secrecy.short if policy.secrecy and has_names else None

    def fill(self, key: bytes) -> bytes:
        if self._as_sent:
            if _is_plain(key):
                return key
        elif self._names is not None:
            shown = self._names.shown(key)
            if shown is not None:
                return shown
        return self.text(key).encode("utf-8", "backslashreplace")


class Prepared:
    """A reply with gaps for the texts that depend on the key."""

    def __init__(self, pieces: tuple[bytes, ...], fillers: tuple[Filler, ...]) -> None:
        """There is one piece more than there are fillers."""
        self._pieces = pieces
        self._fillers = fillers

    def reply(self, key: bytes) -> bytes:
        """The reply for this key. Raises ValueError if there is none."""
        parts = [self._pieces[0]]
        for at in range(len(self._fillers)):
            filler = self._fillers[at]
            parts.append(filler.fill(key))
            parts.append(self._pieces[at + 1])
        return b"".join(parts)


class Draft:
    """Collects the texts that depend on the key, while the words of a violation are made with marks in their
    places."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._fillers: list[Filler] = []
        self._is_sound = True  # no text depends on another key

    def mark(self, key: bytes, filler: Filler) -> str:
        """Returns the mark of a text that depends on `key`."""
        if key != self._key or len(self._fillers) >= _MOST_MARKS:
            self._is_sound = False
            return ""
        self._fillers.append(filler)
        return chr(_FIRST_MARK + len(self._fillers) - 1)

    def prepared(self, reply: bytes) -> Prepared | None:
        """Returns the reply with these marks, ready to be filled; None if it cannot be prepared."""
        if not self._is_sound:
            return None
        pieces = _MARK.split(reply)  # text, mark, text …
        fillers = [
            self._fillers[mark[0] - 0x80] for mark in pieces[1::2] if mark[0] - 0x80 < len(self._fillers)
        ]
        if len(fillers) != len(pieces) // 2:
            return None
        return Prepared(tuple(pieces[::2]), tuple(fillers))


def _is_plain(key: bytes) -> bool:
    """Whether a key is shown as it is: plain text, not too long."""
    size, raw, plain = len(key), key, _IS_PLAIN
    if size > _LONGEST:
        return False
    for at in range(size):  # noqa: SIM110 - a loop in C, where it is compiled
        if not plain[raw[at]]:
            return False
    return True
