"""Keys whose size will be asked of Redis, since a command may have made them too large.

Rule: bounded, one question for each key and time, and no one is accused in doubt: a key is found too large
only by what Redis says of it some time after a write, and twice where it was written to meanwhile. The last
write is accused.

A table belongs to one process and to its event loop's thread. It does no I/O.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.sizes import LATE_SECONDS, Question
from keyfence.policy.verdict import Peer

if TYPE_CHECKING:
    from .authorizer import Authorizer

MAX_KEYS: Final = 10_000
MAX_KEY: Final = 1024  # bytes; a longer key isn't followed, and counts as dropped
MAX_ASKED: Final = 200  # keys given out at once, each with up to six questions


class Write(NamedTuple):
    """A command that may have made a key too large, whose it was, and what tells whether it has."""

    judge: Authorizer  # that let it pass, and will word what is found
    service: int
    client: Peer | str
    command: str
    position: int  # of the key in the command
    target: Target  # what the key is
    question: Question


@dataclasses.dataclass(slots=True)
class PendingSize:
    """One key. Times are of the table's clock, in seconds."""

    database: int
    key: bytes
    # The last one for each way to ask. The server may have refused one that is for another type.
    writes: dict[bytes, Write]
    since: float  # when the write was that is asked about
    last: float  # when the last one was
    due: float
    asked: bool = False
    twice: bool = False  # it was too large once, while it was written to


class PendingSizes:
    """The table of one process."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.dropped = 0  # keys forgotten for want of room
        self._clock = clock
        self._table: OrderedDict[tuple[int, bytes], PendingSize] = OrderedDict()  # by `due`

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[PendingSize]:
        """All that is open, the oldest first."""
        return iter(tuple(self._table.values()))

    def ask(self, database: int, key: bytes, writes: Sequence[Write]) -> None:
        """A command leaves open how large a key is: it counts as one write for each way to ask."""
        name = (database, key)
        now = self._clock()
        known = self._table.get(name)
        if known is not None:
            known.last = now
            for write in writes:
                known.writes[write.question.command] = write
            return
        if len(key) > MAX_KEY:
            self.dropped += 1
            return
        if len(self._table) >= self.limit:
            self._table.popitem(last=False)
            self.dropped += 1
        named = {write.question.command: write for write in writes}
        self._table[name] = PendingSize(database, key, named, now, now, now + LATE_SECONDS)

    def due(self, limit: int = MAX_ASKED) -> list[PendingSize]:
        """Keys to ask Redis about now. Each is awaited until `answer` or `unanswered` is called for it."""
        now = self._clock()
        found: list[PendingSize] = []
        for pending in self._table.values():
            if pending.due > now or len(found) >= limit:
                break
            if not pending.asked:
                pending.asked = True
                found.append(pending)
        return found

    def answer(
        self, pending: PendingSize, asked: Sequence[Question], sizes: Sequence[int | None]
    ) -> tuple[Write, int] | None:
        """The write that made a key too large, and how large it is, as Redis answered what was `asked`; None
        among the sizes stands for a question that isn't for the key's type."""
        name = (pending.database, pending.key)
        if self._table.get(name) is not pending:
            return None
        wrong: tuple[Write, int] | None = None
        for question, size in zip(asked, sizes, strict=True):
            if size is not None and size > question.most:
                wrong = pending.writes[question.command], size
        if pending.last > pending.since and not (wrong and pending.twice):
            # What a later command trims may be too much for a moment. A key that is always written to is
            # found all the same.
            pending.twice, pending.asked = wrong is not None, False
            pending.since = pending.last
            pending.due = self._clock() + LATE_SECONDS
            self._table.move_to_end(name)
            return None
        del self._table[name]
        return wrong

    def unanswered(self, pending: PendingSize) -> None:
        """Redis couldn't be asked: the key is let go."""
        name = (pending.database, pending.key)
        if self._table.get(name) is pending:
            del self._table[name]
