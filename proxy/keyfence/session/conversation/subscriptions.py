"""A client's subscriptions, and the frames from upstream that belong to them.

Rule: a subscription command gets one confirmation for each name: a reply in RESP2, a push in RESP3. A message
is never a reply. A name counts only once Redis has confirmed it, so that keyfence knows how many
confirmations an UNSUBSCRIBE without names gets (`src/pubsub.c`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from keyfence.commands.arguments import fold

from .reply_slots import Confirm

# The number of one client's subscriptions that are followed, and the bytes that their names may have.
MAX_NAMES = 100_000
MAX_BYTES = 8 * 1024 * 1024

# command → (the word in its confirmations, the set of names that it changes, whether it adds to that set)
COMMANDS: dict[bytes, tuple[bytes, str, bool]] = {
    b"SUBSCRIBE": (b"subscribe", "channels", True),
    b"UNSUBSCRIBE": (b"unsubscribe", "channels", False),
    b"PSUBSCRIBE": (b"psubscribe", "patterns", True),
    b"PUNSUBSCRIBE": (b"punsubscribe", "patterns", False),
    b"SSUBSCRIBE": (b"ssubscribe", "shard channels", True),
    b"SUNSUBSCRIBE": (b"sunsubscribe", "shard channels", False),
}
# Unrequested arrays in RESP2 begin with these: messages, or the end of a shard channel that has moved.
SHARD_CHANNEL_ENDED = b"sunsubscribe"
_MESSAGES = frozenset({b"message", b"pmessage", b"smessage"})
_ENDED = re.compile(rb"[*>]3\r\n[$+](?:12\r\n)?sunsubscribe\r\n\$([0-9]{1,10})\r\n")

_LEADING_WORD = re.compile(
    rb"(?:[*>][0-9]{1,10}\r\n\$[0-9]{1,10}\r\n|>[0-9]{1,10}\r\n\+)([A-Za-z_]{1,16})\r\n"
)
LONGEST_LEAD = 64  # bytes that suffice to show whether a frame's first word is one of these


def leading_word(frame: bytes | bytearray) -> bytes | None:
    """Returns the first element of an array or push if it is a short word, otherwise b""; None if more bytes
    are needed."""
    match = _LEADING_WORD.match(frame)
    if match is not None:
        return match[1]
    return b"" if len(frame) >= LONGEST_LEAD or frame[:1] not in (b"*", b">") else None


class Subscriptions:
    """The confirmed subscriptions of one client."""

    def __init__(self) -> None:
        self._names: dict[str, set[bytes]] = {"channels": set(), "patterns": set(), "shard channels": set()}
        self._bytes = dict.fromkeys(self._names, 0)  # of all names
        self.count = 0  # of all names: kept, because each message asks for it

    def __len__(self) -> int:
        return self.count

    def have_room_for(self, argv: Sequence[bytes]) -> bool:
        """Whether the names that a subscription command adds still fit the limits."""
        if not COMMANDS[fold(argv[0])][2]:
            return True
        size = sum(self._bytes.values()) + sum(map(len, argv[1:]))
        return len(self) + len(argv) - 1 <= MAX_NAMES and size <= MAX_BYTES

    def expect(self, argv: Sequence[bytes]) -> Confirm:
        """Returns the slot for the confirmations that Redis will send for a subscription command. Each is
        taken in as it comes, so that no turn is long, whatever the number of names."""
        word, kind, adds = COMMANDS[fold(argv[0])]
        if len(argv) > 1:
            names = iter(argv[1:])
            take = self._add if adds else self._remove
            return Confirm(word, len(argv) - 1, lambda: take(kind, next(names)))
        count = max(1, len(self._names[kind]))
        left = iter(range(count - 1, -1, -1))  # the confirmations that come after each
        return Confirm(word, count, lambda: None if next(left) else self._remove_all(kind))

    def _add(self, kind: str, name: bytes) -> None:
        known = self._names[kind]
        if name not in known:
            known.add(name)
            self._bytes[kind] += len(name)
            self.count += 1

    def _remove(self, kind: str, name: bytes) -> None:
        known = self._names[kind]
        if name in known:
            known.remove(name)
            self._bytes[kind] -= len(name)
            self.count -= 1

    def _remove_all(self, kind: str) -> None:
        self.count -= len(self._names[kind])
        self._names[kind].clear()
        self._bytes[kind] = 0

    def ended(self, frame: bytes) -> None:
        """Redis has ended the subscription to a shard channel by itself, because its hash slot has moved."""
        begin = _ENDED.match(frame)
        if begin is not None:
            self._remove("shard channels", frame[begin.end() : begin.end() + int(begin[1])])

    def clear(self) -> None:
        """RESET ends all subscriptions."""
        for kind in self._names:
            self._remove_all(kind)


def needs_names(argv: Sequence[bytes]) -> bool:
    """Whether Redis refuses this subscription command without names; an unsubscribing one then ends all."""
    return COMMANDS[fold(argv[0])][2]


def is_message(word: bytes) -> bool:
    """Whether an array that begins with this word is a message to a subscribed RESP2 client, and no reply."""
    return word in _MESSAGES
