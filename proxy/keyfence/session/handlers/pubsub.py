"""What a client is subscribed to, and which frames from upstream are about that.

Rule: a subscription command is answered by one confirmation per name, which is a reply in RESP2 and a push in
RESP3; a message is never a reply. Names are counted only when Redis has confirmed them, so that an
UNSUBSCRIBE without names is awaited exactly as often as Redis will answer it (`src/pubsub.c`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from keyfence.commands.arguments import fold
from keyfence.session.reply_slots import Confirm

# Subscriptions of one client that are followed, and the bytes of their names.
MAX_NAMES = 100_000
MAX_BYTES = 8 * 1024 * 1024

# command → (the word in its confirmations, which set of names it is about, whether it adds to it)
COMMANDS: dict[bytes, tuple[bytes, str, bool]] = {
    b"SUBSCRIBE": (b"subscribe", "channels", True),
    b"UNSUBSCRIBE": (b"unsubscribe", "channels", False),
    b"PSUBSCRIBE": (b"psubscribe", "patterns", True),
    b"PUNSUBSCRIBE": (b"punsubscribe", "patterns", False),
    b"SSUBSCRIBE": (b"ssubscribe", "shard channels", True),
    b"SUNSUBSCRIBE": (b"sunsubscribe", "shard channels", False),
}
# What RESP2 sends as an array though nobody asked: messages, and the end of shard channels that have moved.
_UNASKED = frozenset({b"message", b"pmessage", b"smessage", b"sunsubscribe"})

_LEADING_WORD = re.compile(rb"[*>][0-9]{1,10}\r\n\$[0-9]{1,10}\r\n([a-z]{1,16})\r\n")
LONGEST_LEAD = 64  # bytes within which the first word of a frame ends, if it is one of these


def leading_word(frame: bytes | bytearray) -> bytes | None:
    """The first element of an array or push, if it is a short word; None where more bytes may show one."""
    match = _LEADING_WORD.match(frame)
    if match is not None:
        return match[1]
    return b"" if len(frame) >= LONGEST_LEAD or frame[:1] not in (b"*", b">") else None


class Subscriptions:
    """The confirmed subscriptions of one client."""

    def __init__(self) -> None:
        self._names: dict[str, set[bytes]] = {"channels": set(), "patterns": set(), "shard channels": set()}
        self._bytes = 0  # of all names

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def have_room_for(self, argv: Sequence[bytes]) -> bool:
        """Whether what a subscription command adds can be followed too."""
        if not COMMANDS[fold(argv[0])][2]:
            return True
        size = self._bytes + sum(map(len, argv[1:]))
        return len(self) + len(argv) - 1 <= MAX_NAMES and size <= MAX_BYTES

    def expect(self, argv: Sequence[bytes]) -> Confirm:
        """What Redis will answer to a subscription command."""
        word, kind, adds = COMMANDS[fold(argv[0])]
        names = tuple(argv[1:])
        count = len(names) or max(1, len(self._names[kind]))
        return Confirm(word, count, lambda: self._confirmed(kind, adds, names))

    def _confirmed(self, kind: str, adds: bool, names: tuple[bytes, ...]) -> None:
        known = self._names[kind]
        changed = set(names) - known if adds else known.intersection(names) if names else set(known)
        size = sum(map(len, changed))
        if adds:
            known |= changed
            self._bytes += size
        else:
            known -= changed
            self._bytes -= size

    def clear(self) -> None:
        """RESET ends them all."""
        for names in self._names.values():
            names.clear()
        self._bytes = 0


def needs_names(argv: Sequence[bytes]) -> bool:
    """Whether Redis refuses a subscription command without names; one that ends subscriptions ends all."""
    return COMMANDS[fold(argv[0])][2]


def is_unasked(word: bytes) -> bool:
    """Whether an array that begins so is no reply, for a subscribed client of RESP2."""
    return word in _UNASKED
