# cython: annotation_typing=False
"""Requests of many clients on one connection, and which client gets which reply. Without I/O.

Rule: replies belong to requests in their order. Replies to a client that has gone are read and dropped. If
the order is in doubt, no reply is passed on any more; the owner of the connection closes it.

Barriers prove the order (`keyfence.resp.barrier`). A barrier follows every request whose reply a client's
text might shape, and such replies are held until the barrier is passed. Other replies have a fixed shape and
are delivered at once; a barrier follows each 512 of them, and the rest each second.

A barrier that may be refused proves nothing after a reply that may be shaped: text that looks like a refusal
may stand in its place, and later text may make up for that. So ECHO follows such a reply only if Redis has
answered an ECHO before, and if it is refused there, the order is in doubt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from keyfence.net.closures import upstream_sent
from keyfence.resp.barrier import LONGEST_REPLY, Barrier, Form
from keyfence.resp.limits import MIB
from keyfence.resp.replies import ErrorPart, ReplyError, ReplyFramer

# A barrier follows each group of this many requests whose replies cannot be shaped.
_PROVEN_EACH = 512
# Bytes of replies held for a barrier. With more, the client that has most of them is closed.
MAX_KEPT = 16 * MIB

_PUSH = ord(">")


class Sharer:
    """The client's side, which a share calls back and names itself. A base class, so that compiled modules
    call its methods without looking them up by name."""

    def shared_replies(self, link: Share, data: bytes, completed: int, whole: bool) -> None:
        """`data` completes `completed` replies; `whole`: it ends at the end of a reply. `shared_turn`
        follows."""
        raise NotImplementedError

    def shared_errors(self, link: Share, data: bytes, errors: list[ErrorPart], at: int) -> bytes:
        """The next `data` of `shared_replies` has noted errors. It began at `at` of the bytes in which they
        were found. Returns the bytes that the client gets in its place."""
        raise NotImplementedError

    def shared_sent(self, link: Share) -> None:
        """The requests were written for which the link's `is_timed` was set."""
        raise NotImplementedError

    def shared_turn(self, link: Share) -> None:
        """All replies received in this turn of the loop were passed on."""
        raise NotImplementedError

    def shared_lost(self, link: Share, reason: str) -> None:
        """The connection ended while replies to this client were due."""
        raise NotImplementedError

    def shared_failed(self, link: Share, exc: Exception) -> None:  # noqa: ARG002
        """What was passed has met a fault of keyfence's. It may end this client, and no other."""
        raise exc

    def upstream_refused(self, link: object, reason: str) -> None:
        """The connection failed, and the bytes sent were dropped. The next request tries again."""
        raise NotImplementedError

    def upstream_full(self, link: object, full: bool) -> None:
        """Pause sending if `full`, because Redis reads too slowly; otherwise resume."""
        raise NotImplementedError


class Share:
    """One client's part in an exchange."""

    def __init__(self, sharer: Sharer | None) -> None:
        self.sharer = sharer  # None: the client has gone
        self.awaited = 0  # the number of replies due, with those that have come and are held
        self.is_notified = False  # whether replies were passed on in this turn


class Due:
    """The next replies due: `count` replies to one share, or the reply to a barrier. A linked list.

    It is made without a call of `__init__`, which costs a compiled module more than all the rest of it.
    """

    share: Share | None
    count: int
    shapeable: bool  # the replies are held until the next barrier is passed; of a barrier: it follows such
    barrier: Barrier | None
    behind: Due | None  # the replies due after these


class Kept(NamedTuple):
    """Held replies of a share: the arguments of `Sharer.shared_replies`."""

    share: Share
    data: bytes
    completed: int
    whole: bool


class Exchange:
    """The requests and replies of one connection."""

    def __init__(self, on_fault: Callable[[str], None], on_dropped: Callable[[str], None]) -> None:
        """`on_fault` is called for unexpected data, with `push` or `out_of_step`. `on_dropped` is called with
        the word of a noted error for a client that has gone: READONLY still says that the connection leads to
        a replica."""
        self.output: list[bytes] = []  # what has to be written next
        self.due: Due | None = None  # the first replies due
        self.is_open = False  # whether requests may be written
        self.held = 0  # bytes that wait until then
        self._on_fault = on_fault
        self._on_dropped = on_dropped
        self._framer = ReplyFramer()
        self._due_last: Due | None = None
        # Until it is open: the share of each piece of `output` (None: a barrier), and those that withdrew.
        self._owners: list[Share | None] = []
        self._withdrawn: dict[Share, None] = {}  # takes less memory than a set
        self._unproven = 0  # requests since the last barrier
        self._answers_echo: bool | None = None  # whether Redis does; None: not known yet
        self._barrier_reply = b""  # the part received so far
        self._keeps = False  # whether replies are held until a barrier is passed
        self._kept: list[Kept] = []
        self._kept_bytes = 0
        self._notified: list[Share] = []  # shares that were passed replies in this turn

    # -- requests

    def send(self, share: Share, chunks: list[bytes], counts: list[int], shapeable: bool) -> None:
        """Add chunks with `counts` requests each to `output`. `shapeable`: the client's text might shape a
        reply."""
        for count in counts:
            self._expect(share, count, shapeable, None)
            share.awaited += count
            self._unproven += count
        self.output.extend(chunks)
        if not self.is_open:
            self._owners.extend([share] * len(chunks))
            self.held += sum(map(len, chunks))
        if shapeable or self._unproven >= _PROVEN_EACH:
            self._add_barrier(shapeable)

    def _expect(self, share: Share | None, count: int, shapeable: bool, barrier: Barrier | None) -> None:
        due = Due.__new__(Due)
        due.share, due.count, due.shapeable, due.barrier = share, count, shapeable, barrier
        self._append(due)

    def _append(self, due: Due) -> None:
        due.behind = None
        if self._due_last is None:
            self.due = due
        else:
            self._due_last.behind = due
        self._due_last = due

    def _add_barrier(self, shapeable: bool) -> None:
        """`shapeable`: the reply before the barrier may be shaped."""
        may_be_echo = not shapeable if self._answers_echo is None else self._answers_echo
        barrier = Barrier.draw(Form.ECHO if may_be_echo else Form.HELLO)
        self._expect(None, 1, shapeable, barrier)
        self.output.append(barrier.request)
        if not self.is_open:
            self._owners.append(None)
        self._unproven = 0

    def prove(self) -> None:
        """Add a barrier after the requests since the last one. Call this about once a second."""
        if self._unproven and self.is_open:
            self._add_barrier(False)

    def withdraw(self, share: Share) -> None:
        """The client has gone while the connection is not open: its requests are not to be written."""
        self._withdrawn[share] = None

    def open(self) -> None:
        """From now on requests may be written."""
        self.is_open = True
        owned = zip(self.output, self._owners, strict=True)
        self.output = [piece for piece, share in owned if share not in self._withdrawn]
        due, self.due, self._due_last = self.due, None, None
        while due is not None:
            behind = due.behind
            if due.share not in self._withdrawn:
                self._append(due)
            due = behind
        self._withdrawn.clear()
        self._owners.clear()
        self.held = 0

    def fail(self) -> list[Share]:
        """Forget all requests and replies, because the connection is lost. Returns the shares that wait for
        replies, for their clients have to be told."""
        waiting: dict[Share, None] = {}  # in order, without duplicates
        for one in self._kept:
            waiting[one.share] = None
        self._kept.clear()
        while self.due is not None:
            if self.due.share is not None:
                waiting[self.due.share] = None
            self.due = self.due.behind
        self._due_last = None
        self.output.clear()
        self._owners.clear()
        self.is_open = False
        return list(waiting)

    # -- replies

    def receive(self, data: bytes) -> str:
        """Pass each client its replies. `end_turn` has to follow.

        Returns why the order of replies is in doubt; "": it is not. If it is, the connection has failed.
        """
        try:
            return self._hand_out(data)
        except ReplyError as exc:
            return upstream_sent(f"an invalid reply: {exc}")

    def end_turn(self) -> None:
        """Tell each client that was passed replies that these were all."""
        notified, self._notified = self._notified, []
        for share in notified:
            share.is_notified = False
            sharer = share.sharer
            if sharer is not None:
                try:
                    sharer.shared_turn(share)
                except Exception as exc:
                    sharer.shared_failed(share, exc)

    def _hand_out(self, data: bytes) -> str:
        """Do the work of `receive`. Raises ReplyError.

        A push is dropped. No client of a shared connection has requested one, but CLIENT TRACKING … REDIRECT
        on another connection can name this one.
        """
        framer = self._framer
        raw = data
        at, size = 0, len(data)
        while at < size:
            entry = self.due
            start = at
            at = framer.advance(data, at, 1 if entry is None else entry.count, True)
            end = at
            if framer.kind == _PUSH:
                end = framer.frame_at
                if framer.at_boundary:
                    self._on_fault("push")
                if end == start:
                    continue
            if entry is None:
                return upstream_sent("a reply that no request asked for")
            completed = framer.completed
            if completed == entry.count:
                self.due = entry.behind
                if entry.behind is None:
                    self._due_last = None
            else:
                entry.count = entry.count - completed
            piece = data if start == 0 and end == size else raw[start:end]
            share = entry.share
            if framer.errors is not None:
                piece = self._with_errors(share, piece, start)
            if share is None:
                doubt = self._take_barrier(entry, piece, completed)
                if doubt:
                    return doubt
                continue
            whole = framer.at_boundary or framer.kind == _PUSH
            if entry.shapeable or self._keeps:
                self._keep(Kept(share, piece, completed, whole))
            else:
                self._deliver(share, piece, completed, whole)
        return ""

    def _with_errors(self, share: Share | None, piece: bytes, at: int) -> bytes:
        """A part of the replies to a client has noted errors. Returns what the client gets in its place."""
        errors = self._framer.take_errors()
        if share is not None and share.sharer is not None:
            sharer = share.sharer
            try:
                return sharer.shared_errors(share, piece, errors, at)
            except Exception as exc:
                sharer.shared_failed(share, exc)
                return piece
        for error in errors:
            if not error.is_rest:
                self._on_dropped(error.word)
        return piece

    def _deliver(self, share: Share, piece: bytes, completed: int, whole: bool) -> None:
        """Pass a part of its replies to a client that is still there."""
        share.awaited -= completed
        sharer = share.sharer
        if sharer is None:
            return
        try:
            sharer.shared_replies(share, piece, completed, whole)
        except Exception as exc:
            sharer.shared_failed(share, exc)
        if not share.is_notified:
            share.is_notified = True
            self._notified.append(share)

    # -- barriers

    def _take_barrier(self, entry: Due, piece: bytes, completed: int) -> str:
        """Read a part of a barrier's reply. When it is complete, deliver the held replies, or return why the
        order is in doubt."""
        assert entry.barrier is not None
        reply = self._barrier_reply = self._barrier_reply + piece
        if not completed and len(reply) <= LONGEST_REPLY:
            return ""
        self._barrier_reply = b""
        if completed and entry.barrier.is_passed(reply):
            if entry.barrier.form is Form.ECHO and self._answers_echo is None:
                self._answers_echo = True
            self._deliver_kept()
        elif completed and entry.barrier.is_undecided(reply) and not entry.shapeable:
            self._keeps = True
            self._answers_echo = False
            self._add_barrier(False)
        else:
            self._on_fault("out_of_step")
            return upstream_sent("replies that are out of step with the requests")
        return ""

    def _keep(self, kept: Kept) -> None:
        self._keeps = True
        if kept.share.sharer is None:
            return
        self._kept.append(kept)
        self._kept_bytes += len(kept.data)
        if self._kept_bytes > MAX_KEPT:
            self._drop_largest()

    def _drop_largest(self) -> None:
        """Close the client that has most of the held replies, which need not be the one that sent last."""
        sizes: Counter[Share] = Counter()
        for one in self._kept:
            sizes[one.share] += len(one.data)
        [(largest, size)] = sizes.most_common(1)
        self._kept = [one for one in self._kept if one.share is not largest]
        self._kept_bytes -= size
        if largest.sharer is not None:
            largest.sharer.shared_lost(largest, upstream_sent("a reply too large for a shared connection"))

    def _deliver_kept(self) -> None:
        kept, self._kept = self._kept, []
        self._keeps, self._kept_bytes = False, 0
        for share, data, completed, whole in kept:
            self._deliver(share, data, completed, whole)
