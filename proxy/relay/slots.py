"""The ordered queue of answers that one client waits for.

Rule: a client's answers leave in the order of its requests. A slot says where its answer comes from: k
replies from upstream as they are, bytes made here, one upstream reply that is seen or replaced on its way, or
the confirmations of a subscription.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Forward:
    """The next `count` replies from upstream go to the client unchanged. Runs are counted, not listed."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


class Local:
    """These bytes are the answer; upstream knows nothing of it."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Replace:
    """One upstream reply is dropped and `data` sent in its place (nothing, if it is empty).

    `seen`, if given, is called with what is dropped.
    """

    __slots__ = ("data", "seen")

    def __init__(self, data: bytes, seen: Callable[[bytes], None] | None = None) -> None:
        self.data = data
        self.seen = seen


class Inspect:
    """One upstream reply goes to the client unchanged, after `seen` was called with it."""

    __slots__ = ("seen",)

    def __init__(self, seen: Callable[[bytes], None]) -> None:
        self.seen = seen


class Confirm:
    """`count` confirmations that begin with `word` go to the client unchanged; or one error does.

    `confirmed` is called after the last of them.
    """

    __slots__ = ("confirmed", "count", "word")

    def __init__(self, word: bytes, count: int, confirmed: Callable[[], None]) -> None:
        self.word = word
        self.count = count
        self.confirmed = confirmed


Slot = Forward | Local | Replace | Inspect | Confirm


class Slots:
    """The queue. `local_bytes` is what waits in `Local` and `Replace` slots, for the limit on it."""

    def __init__(self) -> None:
        self._queue: deque[Slot] = deque()
        self.local_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def head(self) -> Slot | None:
        return self._queue[0] if self._queue else None

    @property
    def outstanding(self) -> int:
        """How many upstream replies are awaited."""
        return sum(
            slot.count if isinstance(slot, Forward) else 0 if isinstance(slot, Local) else 1
            for slot in self._queue
        )

    def forward(self, count: int) -> None:
        """Await `count` more replies; they join a run that is at the end already."""
        if self._queue and isinstance(last := self._queue[-1], Forward):
            last.count += count
        else:
            self._queue.append(Forward(count))

    def add(self, slot: Local | Replace | Inspect | Confirm) -> None:
        if isinstance(slot, Local | Replace):
            self.local_bytes += len(slot.data)
        self._queue.append(slot)

    def pop(self) -> Slot:
        slot = self._queue.popleft()
        if isinstance(slot, Local | Replace):
            self.local_bytes -= len(slot.data)
        return slot

    def ready(self) -> list[bytes]:
        """Take the local answers whose turn has come."""
        ready: list[bytes] = []
        while self._queue and isinstance(slot := self._queue[0], Local):
            self.pop()
            ready.append(slot.data)
        return ready
