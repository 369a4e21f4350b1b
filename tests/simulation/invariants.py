"""What must hold in every schedule: what nodes ran, what clients were told, and what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.simulation.dataset import Key
from tests.simulation.journal import Journal


class Witness:
    """Compares what the nodes ran with what clients were told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ran: dict[bytes, str] = {}  # unique value → the node that ran its write
        self._lost: set[bytes] = set()
        self._confirmed: dict[bytes, str] = {}  # unique value → the client that was told so
        self._increments: dict[Key, int] = {}  # that nodes ran, by counter
        self._asked: dict[Key, int] = {}  # that clients have sent
        # The counters of each replica promoted in a crash, and of which keys.
        self._fallen_to: list[tuple[Callable[[Key], bool], dict[Key, int]]] = []
        self.reads_replicas = False  # whether connections may lead to a replica, which is behind, for a while
        self.may_lose = False  # whether a primary crashed or was cut off

    # -- what nodes do

    def executed(self, node: str, database: int, argv: Sequence[bytes]) -> None:
        """A node that takes itself for a primary has run a write."""
        if argv[0] == b"INCR":
            key = database, argv[1]
            ran = self._increments[key] = self._increments.get(key, 0) + 1
            if ran > self._asked.get(key, 0):
                self._journal.breaks(f"INCR {_text(argv[1])} ran {ran} times, and was sent fewer times")
        if argv[0] in (b"SET", b"RPUSH", b"MSET"):
            for value in set(argv[2::2] if argv[0] == b"MSET" else argv[2:]):
                if value in self._ran:
                    before = self._ran[value]
                    self._journal.breaks(f"{_text(value)} was written on {before}, and again on {node}")
                self._ran[value] = node

    def lost(self, written: set[bytes], kept: set[bytes]) -> None:
        """A node gives up the values that it has written for those of its primary."""
        self._lost |= written - kept

    def fell_to(self, values: Mapping[Key, Any], concerns: Callable[[Key], bool]) -> None:
        """A replica with these values is promoted after a crash. It serves the keys that this `concerns`."""
        self.may_lose = True
        counters = {key: int(values[key]) for key in self._asked if key in values}
        self._fallen_to.append((concerns, counters))

    # -- what clients do

    def asks_increment(self, key: Key) -> None:
        self._asked[key] = self._asked.get(key, 0) + 1

    def confirmed(self, client: str, value: bytes) -> None:
        """A client was told that its write has run."""
        self._confirmed[value] = client
        if value not in self._ran:
            self._journal.breaks(f"{client} was told that {_text(value)} is written, and no node ran it")

    @property
    def has_confirmed(self) -> bool:
        return bool(self._confirmed)

    def may_fall(self, key: Key, value: int, *, is_read: bool) -> bool:
        """Whether a counter may have fallen to this value, which was read, or comes from a write."""
        if is_read and self.reads_replicas:
            return True
        return any(concerns(key) and value >= counters.get(key, 0) for concerns, counters in self._fallen_to)

    # -- the end

    def check(self, kept: set[bytes]) -> None:
        """These values were written by the last primaries. They are all that was confirmed and not lost."""
        for value, client in self._confirmed.items():
            if value in kept:
                continue
            if value not in self._lost or not self.may_lose:
                self._journal.breaks(f"{client} was told that {_text(value)} is written, and it is gone")


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace")
