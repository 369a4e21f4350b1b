"""The subscriptions of one client of a Sentinel listener.

Rule: every channel is taken, and stays silent: keyfence's own address, the only one that clients know, does
not change. What a client may hold is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.resp.encode import error
from keyfence.resp.values import value

CHANNELS, PATTERNS = 0, 1
_ADDED = ("subscribe", "psubscribe")
_REMOVED = ("unsubscribe", "punsubscribe")
MOST_HELD = 64 * 1024  # bytes of all names of one client
_EACH = 64  # bytes that a name costs beside its own


class Subscriptions:
    """The channels and patterns that a client listens to."""

    def __init__(self) -> None:
        self.of: tuple[dict[bytes, None], dict[bytes, None]] = ({}, {})  # channels, patterns
        self._bytes = 0  # that all of them take

    def __len__(self) -> int:
        return sum(map(len, self.of))

    def add(self, kind: int, names: Sequence[bytes], resp: int) -> bytes:
        """Returns a confirmation for each name."""
        held = self.of[kind]
        more = sum(_EACH + len(name) for name in set(names) - held.keys())
        if self._bytes + more > MOST_HELD:
            return error(f"ERR keyfence: too many subscriptions; all names may take {MOST_HELD} bytes")
        self._bytes += more
        confirmed = []
        for name in names:
            held[name] = None
            confirmed.append(self._confirmed(_ADDED[kind], name, resp))
        return b"".join(confirmed)

    def remove(self, kind: int, names: Sequence[bytes], resp: int) -> bytes:
        """Returns a confirmation for each name, or for each one that is held if none is given."""
        held = self.of[kind]
        confirmed = []
        for name in names or list(held):
            if name in held:
                del held[name]
                self._bytes -= _EACH + len(name)
            confirmed.append(self._confirmed(_REMOVED[kind], name, resp))
        return b"".join(confirmed) or self._confirmed(_REMOVED[kind], None, resp)

    def _confirmed(self, what: str, name: bytes | None, resp: int) -> bytes:
        shown = value(None, resp) if name is None else b"$%d\r\n%b\r\n" % (len(name), name)
        sign = b">" if resp > 2 else b"*"
        return b"%b3\r\n%b%b:%d\r\n" % (sign, value(what, resp), shown, len(self))
