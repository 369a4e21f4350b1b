# cython: annotation_typing=False
"""The ordered queue of reply slots: the replies that one client waits for.

Rule: a client gets its replies in the order of its requests. A reply slot says where a reply comes from. It
stands for k replies from upstream, passed on or dropped; for bytes made here; for one upstream reply that is
inspected or replaced; or for the confirmations of a subscription.
"""

from __future__ import annotations

from collections.abc import Callable

# Memory that a reply slot takes besides its waiting bytes: the object, and what its callback keeps alive.
SLOT_BYTES = 256


class ReplySlot:
    """A place in the queue. It keeps about `held` bytes in memory."""

    __slots__ = ("behind", "held")

    behind: ReplySlot | None
    held: int


class Forward(ReplySlot):
    """The next `count` replies from upstream go to the client unchanged. One slot stands for the whole
    run."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.held = SLOT_BYTES
        self.count = count


class Drop(ReplySlot):
    """The next `count` replies from upstream are dropped: the client has switched its replies off."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.held = SLOT_BYTES
        self.count = count


class Local(ReplySlot):
    """These bytes are the reply; upstream sends none."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.held = SLOT_BYTES + len(data)
        self.data = data


class Replace(ReplySlot):
    """One upstream reply is dropped, and `data` is sent in its place (nothing if it is empty).

    `seen`, if given, is called with the dropped reply. `answers`: it then answers the client.
    """

    __slots__ = ("answers", "data", "seen")

    def __init__(
        self, data: bytes, seen: Callable[[bytes], None] | None = None, answers: bool = False
    ) -> None:
        self.held = SLOT_BYTES + len(data)
        self.data = data
        self.seen = seen
        self.answers = answers


class Inspect(ReplySlot):
    """One upstream reply goes to the client unchanged (nowhere if `silent`), and `seen` is called with it.
    `keeps`: how many bytes `seen` keeps alive."""

    __slots__ = ("seen", "silent")

    def __init__(self, seen: Callable[[bytes], None], silent: bool = False, keeps: int = 0) -> None:
        self.held = SLOT_BYTES + keeps
        self.seen = seen
        self.silent = silent


class Confirm(ReplySlot):
    """`count` confirmations that begin with `word` go to the client unchanged, or one error does.

    `confirmed` is called after each confirmation.
    """

    __slots__ = ("confirmed", "count", "word")

    def __init__(self, word: bytes, count: int, confirmed: Callable[[], None]) -> None:
        self.held = SLOT_BYTES
        self.word = word
        self.count = count
        self.confirmed = confirmed


class ReplySlots:
    """The queue.

    `head` is the first reply slot, None if nothing is due. `held_bytes` is the memory that all slots keep.
    `awaited` is the number of due upstream replies.
    """

    def __init__(self) -> None:
        self.head: ReplySlot | None = None
        self._last: ReplySlot | None = None
        self.held_bytes = 0
        self.awaited = 0

    def __bool__(self) -> bool:
        return self.head is not None

    def _append(self, slot: ReplySlot) -> None:
        self.held_bytes += slot.held
        slot.behind = None
        if self._last is None:
            self.head = slot
        else:
            self._last.behind = slot
        self._last = slot

    def _drop_head(self) -> None:
        assert self.head is not None
        self.held_bytes -= self.head.held
        self.head = self.head.behind
        if self.head is None:
            self._last = None

    def forward(self, count: int) -> None:
        """Await `count` more replies. A run at the end of the queue grows by them."""
        self.awaited += count
        last = self._last
        if isinstance(last, Forward):
            run = last
            run.count += count
        else:
            self._append(Forward(count))

    def add(self, slot: Drop | Local | Replace | Inspect | Confirm) -> None:
        self.awaited += _replies(slot)
        self._append(slot)

    def answer_run(self, count: int) -> bool:
        """Take in `count` replies for the run at the head. Returns whether the run is complete and was
        removed.

        Raises AssertionError if there is no such run at the head.
        """
        head = self.head
        if not isinstance(head, Forward):
            raise AssertionError(f"{count} replies came for {type(head).__name__}")
        run = head
        if count > run.count:
            raise AssertionError(f"{count} replies came for {run.count}")
        run.count -= count
        self.awaited -= count
        if run.count:
            return False
        self._drop_head()
        return True

    def answered(self, slot: Forward | Drop | Confirm, count: int) -> bool:
        """Take in `count` replies for the slot at the head. Returns whether it is complete and was
        removed."""
        slot.count -= count
        self.awaited -= count
        if slot.count:
            return False
        self._drop_head()
        return True

    def pop(self) -> ReplySlot:
        slot = self.head
        if slot is None:
            raise IndexError("nothing is due")
        self._drop_head()
        self.awaited -= _replies(slot)
        return slot

    def ready(self) -> list[bytes]:
        """Remove and return the local replies whose turn has come."""
        ready: list[bytes] = []
        while isinstance(slot := self.head, Local):
            self.pop()
            ready.append(slot.data)
        return ready


def _replies(slot: ReplySlot) -> int:
    """The number of upstream replies that a reply slot awaits."""
    if isinstance(slot, Forward | Drop | Confirm):
        return slot.count
    return 0 if isinstance(slot, Local) else 1
