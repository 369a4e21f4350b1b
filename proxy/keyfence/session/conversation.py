# cython: annotation_typing=False
"""What one client has sent on and awaits: what is due, what is held back for it, and on which connection.

Rule: nothing is judged here. Every request that is sent is awaited, the client's connection changes only
when nothing is, and what can't be followed any more is passed unread or ended; nothing is guessed.

`Session` reads and judges, and builds on this. What comes from upstream is sorted in `answers`; which
connection a request takes is told by `route`.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.resp import encode
from keyfence.resp.barrier import Barrier, Form, Sightings
from keyfence.resp.limits import RequestLimits
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError
from keyfence.resp.requests import RequestReader
from keyfence.session.handlers.transactions import OpenTransaction

from .base import SessionBase
from .reply_queue import ON, ReplyQueue, unreachable
from .routing import Route


class Room:
    """How much one client may have waiting or under way, in bytes if nothing else is said."""

    def __init__(self) -> None:
        # What slots keep that wait for replies: answers made here, callbacks. Past this the client's requests
        # are left unread until replies come in.
        self.slots = 1024 * 1024
        # What is taken in from the client while nothing may be judged. Past this it is left unread.
        self.backlog = 64 * 1024
        # How many requests, and about how many bytes of them, may be under way on a shared connection.
        self.shared_requests = 4096
        self.shared = 1024 * 1024
        # Larger requests, and clients that get larger replies, take a connection of their own.
        self.shared_request = 64 * 1024
        self.shared_reply = 256 * 1024


ROOM = Room()

# Sent upstream in place of a command that is refused inside MULTI. Its wrong arity makes Redis mark the
# transaction, so that EXEC answers EXECABORT in Redis' own words and runs nothing (server.c, rejectCommand).
ABORT_MARKER = encode.command(b"ECHO")
MULTI = encode.command(b"MULTI")


class Conversation(SessionBase):
    """The state of one client's requests and their answers."""

    def __init__(self, service: str, profile: Profile, route: Route, limits: RequestLimits) -> None:
        self.answers = ReplyQueue()
        super().__init__(service, profile, self.answers, route)
        self.transaction: OpenTransaction | None = None
        self.opaque = False  # all is passed unread
        self.is_behind = False  # the own connection has carried nothing since the client last shared
        self.held = False  # a reply must come in before the next request may be judged
        self.room = ROOM
        self.reader = RequestReader(limits)
        self._raw: bytes | None = None  # what goes upstream unread once every slot is answered
        self._deferred: Callable[[], None] | None = None  # what waits until every slot is answered
        self._closing_then = ""  # why to close once every slot is answered
        self.streaming = False  # a part of the request under way was sent already
        self._shared_bytes = 0  # sent on the shared connection since the last time nothing was due
        self._reply_bytes = 0  # of a reply that comes in on the shared connection
        # Something was sent on the own connection whose reply the client's text might shape: what comes next
        # may not be the reply that it looks like …
        self.is_doubtful = False
        self.was_doubtful = False  # … or was once, before a barrier was passed
        self._at_barrier = False  # the request in hand isn't sent yet, and waits for one
        self._barrier: Sightings | None = None  # of the one that is awaited

    def _read_requests(self) -> None:
        """Go on with what was held back."""
        raise NotImplementedError

    # -- state

    @property
    def outstanding(self) -> int:
        return self.answers.slots.awaited

    def wants_input(self) -> bool:
        """A session that waits takes in some bytes more: only who reads notices that the client has gone."""
        if self.answers.closing:
            return False
        return self._may_judge() or self._closing_then != "" or self.backlog() < self.room.backlog

    @property
    def holds_back(self) -> bool:
        return not self._may_judge() and not self._closing_then and not self.closing

    @property
    def awaits_more(self) -> bool:
        return (
            bool(self.answers.slots)
            or self.opaque
            or self._raw is not None
            or self.wants_turn
            or self.held  # perhaps by a question to other processes, for which no slot stands
        )

    @property
    def is_streaming(self) -> bool:
        """Whether a request is under way that is too large to be held."""
        return self.streaming or self.reader.is_large

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    @property
    def waits(self) -> bool:
        return self.awaits_more or self.answers.monitoring or bool(self.answers.subscriptions)

    def _may_judge(self) -> bool:
        slots = self.answers.slots
        return (
            not self.answers.closing
            and not self._closing_then
            and not self.held
            and not self.wants_turn
            and self._deferred is None
            and self._raw is None
            and slots.held_bytes < self.room.slots
            and (not self.route.is_shared or self._has_room(slots.awaited))
        )

    def _has_room(self, awaited: int) -> bool:
        if not awaited:
            self._shared_bytes = 0
        return awaited < self.room.shared_requests and self._shared_bytes < self.room.shared

    def exceeds_share(self, size: int, count: int) -> bool:
        """Whether so many bytes of so many requests are too much for one piece where others are."""
        return size > self.room.shared_request or count > self.room.shared_requests

    def needs_own(self) -> bool:
        """Whether the request in hand is too large for the shared connection that it would go on."""
        return self.route.is_shared and self.exceeds_share(self.reader.end - self.reader.start, 1)

    def backlog(self) -> int:
        held = self.reader.pending()  # a deferred request is of what was read
        return held if self._raw is None else held + len(self._raw)

    @property
    def mid_reply(self) -> bool:
        """A reply has reached the client in part, so that nothing else may be sent to it."""
        return self.opaque or self.answers.mid_reply

    # -- requests

    def _to_upstream(self, request: bytes, count: int) -> None:
        self.to_upstream.append(request)
        if self.transaction is not None:
            self.transaction.queued += count
        elif self.shapeable and not self.route.is_shared:
            self._doubt_pending()
        if self.route.is_shared:
            self.counts.append(count)
            self._shared_bytes += len(request)
        else:
            self.is_behind = False
        self.answers.forward(count)

    def when_answered(self, act: Callable[[], None]) -> None:
        """Carry out the request in hand once every reply is in that is due; until then nothing more is
        judged."""
        if self.answers.slots:
            self._deferred = act
        else:
            act()

    def doubt_replies(self) -> None:
        """The client's text might shape a reply on its own connection from here on."""
        self.is_doubtful = self.was_doubtful = True

    def mark_shapeable(self, fits: bool) -> None:
        """The client's text might shape the reply to the request in hand. `fits`: it may go where the client
        is now."""
        if self.transaction is not None:
            self.transaction.is_shapeable = True
        elif fits and self.route.is_shared:
            self.shapeable = True
        else:
            self.doubt_replies()

    def _doubt_pending(self) -> None:
        """What might be shaped goes on the client's own connection, though it could have been shared."""
        self.shapeable = False
        self.doubt_replies()

    def when_sure(self, act: Callable[[], None]) -> None:
        """Carry out the request in hand once nothing is due, and nothing can come that isn't its own reply.

        For what changes who the client is, or its database: its reply is believed. Not inside MULTI, where a
        barrier would be queued.
        """

        def sure() -> None:
            if self.is_doubtful:
                self.send_barrier(act)
                self._at_barrier = True
            else:
                act()

        self.when_answered(sure)

    def send_barrier(self, act: Callable[[], None], times: int = 1) -> Barrier:
        """Do this once Redis has shown that nothing else is to come before it; until then nothing is judged.
        What shows the contrary ends the session. The barrier is sent so many `times`, and returned."""
        barrier = Barrier.draw(Form.PING if self._is_subscriber else Form.HELLO)
        seen = Sightings(barrier.nonce)
        left = times

        def answered(reply: bytes) -> None:
            nonlocal left
            left -= 1
            # MONITOR shows the number, too: to a client that sees all that anybody sends.
            is_sure = left or seen.count == times or self.answers.monitoring
            if not barrier.is_passed(reply) or not is_sure:
                self.fall_out_of_step()
            elif not left:
                self._barrier = None
                self.held = self._at_barrier = self.is_doubtful = False
                act()

        for _ in range(times):
            self.to_upstream.append(barrier.request)
            self.answers.drop(answered)
        self.held = True
        self._barrier = seen
        return barrier

    def fall_out_of_step(self) -> None:
        """A reply isn't the one that was due."""
        self.closing = "identity: the replies are out of step with the requests"

    @property
    def _is_subscriber(self) -> bool:
        """Redis answers little else than PING to a subscriber of RESP2."""
        return self.answers.resp == 2 and bool(self.answers.subscriptions)

    def close_after_answers(self, reason: str) -> None:
        """Read no more, and close once everything that is due was sent."""
        self._closing_then = reason
        if not self.answers.slots:
            self.closing = reason

    # -- requests that are too large to be held
    def _large_request(self) -> None:
        """A request has come in part. Too large a one goes on in pieces, on a connection of the client's own;
        its end is withheld until it is judged."""
        if self.route.is_shared:
            self.route.stay()
            if self.answers.slots:
                self._deferred = self._leave_shared
                return
            self._leave_shared()
        if self.reader.is_large:
            self.streaming = True
            self.to_upstream.append(self.reader.take_partial())
            if not self.reader.is_large:
                self._read_requests()  # what stands behind the piece may complete the request

    def _refuse_streamed(self, reply: bytes) -> None:
        """A part of the refused request is upstream, its end is not: give up that connection.

        Redis has run nothing of it. Where a transaction is open, Redis is to say EXECABORT on the new one.
        """
        self.held = self.streaming = False
        watching = self.route.watching and self.transaction is None  # else EXEC is going to fail anyway
        if self.route.pinned or watching or self.answers.monitoring or self.answers.subscriptions:
            self.answers.local(reply)
            self.close_after_answers("a large request was refused, whose connection can't be made again")
            return
        self._give_up_own()
        self.to_upstream.clear()
        if self.transaction is not None:
            self.to_upstream += [MULTI, ABORT_MARKER]
            self.answers.drop()
            self.answers.replace(reply)
        else:
            self.answers.local(reply)

    # -- sessions that can't be followed

    def _splice(self, request: bytes) -> None:
        self._raw = request + self.reader.rest()
        self._splice_when_answered()

    def _splice_when_answered(self) -> None:
        if self._raw is not None and not self.answers.slots:
            self.route.is_shared = False
            self.opaque = True
            self.answers.let_out_captured()
            self.to_upstream.append(self._raw)
            self._raw = None

    # -- which connection

    def take_own(self, *, for_good: bool) -> None:
        """What is in hand, and what follows for a while, goes on a connection of its own."""
        if for_good:
            self.route.pinned = "nothing to share"
        self.route.stay()
        self.route.is_shared = False
        self.counts.clear()
        self.answers.go_on_with_kept()
        if self.shapeable:
            self._doubt_pending()

    def _leave_shared(self) -> None:
        self.route.is_shared = False
        self.answers.go_on_with_kept()
        self.is_behind = True

    def settle(self) -> None:
        if self.may_leave_own():
            self.route.is_shared = True
            if not self.route.knows_id:  # else that connection is kept, and gone back to
                self._give_up_own()

    def _give_up_own(self) -> None:
        """What goes on the client's own connection next goes on a new one, where no reply is in doubt."""
        self.reopen = True
        self.is_doubtful = self.was_doubtful = False

    def may_leave_own(self) -> bool:
        """Whether the client's own connection could be given up now without a difference to it."""
        answers = self.answers
        return (
            not self.route.is_shared
            and self.route.may_share()
            and not answers.slots
            and not self.to_upstream
            and not answers.monitoring
            and not answers.subscriptions
            and not answers.mid_reply
            and answers.reply == ON
            and self.transaction is None
            and not self.held
            and not self.wants_turn
            and not self.opaque
            and not self.streaming
            and not self.closing
            and not self._closing_then
            and self._raw is None
            and not self.exceeds_share(self.reader.announced(), 0)
        )

    # -- from upstream

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        if not completed:
            self._reply_bytes += len(data)
            if self._reply_bytes > self.room.shared_reply:
                self.route.stay()
                self._deferred = self._deferred or self._leave_shared
        else:
            self._reply_bytes = 0
        if self.answers.feed_shared(data, completed, whole):
            self._after_slot()
        self._close_when_answered()

    def from_kept(self, data: bytes) -> None:
        try:
            self.answers.feed_kept(data)
        except ReplyError as exc:
            self.closing = f"upstream sent what is no reply: {exc}"

    def from_upstream(self, data: bytes) -> None:
        """What Redis can't have meant ends the session."""
        if self.opaque:
            self.to_client.append(data)
            return
        if self._barrier is not None:
            self._barrier.feed(data)
        at = 0
        try:
            while at < len(data) and not self.closing:
                if self.opaque:
                    self.to_client.append(data[at:])
                    return
                at = self.answers.feed(data, at)
                if self.answers.slot_done:
                    self._after_slot()
        except ReplyError as exc:
            self.closing = f"upstream sent what is no reply: {exc}"
        self._close_when_answered()

    def _close_when_answered(self) -> None:
        if self._closing_then and self.answers.slots.head is None and not self.answers.mid_reply:
            self.closing = self.closing or self._closing_then

    def _after_slot(self) -> None:
        """A slot is answered: go on with what was held back."""
        if self._raw is not None:
            self._splice_when_answered()
        if self._deferred is not None and self.answers.slots.head is None:
            self._do_deferred()
        if not self._closing_then and not self.opaque and self.reader.pending():
            self._read_requests()

    def _do_deferred(self) -> None:
        if self._deferred is not None:
            act, self._deferred = self._deferred, None
            act()

    # -- upstream is gone

    def upstream_refused(self, reason: str) -> None:
        """No connection could be had: every request that waits gets an error, and the client stays.

        In the midst of a transaction it goes: what it sends next would run outside of it. So does one whose
        requests weren't read, since no one knows how many answers it waits for; it gets one. And one who has
        sent the beginning of a large request, which would go on as if it were the next one.
        """
        self.answers.fail(reason)
        if self._at_barrier:
            self.to_client.append(unreachable(reason))
        self.held = self._at_barrier = self.shapeable = False
        self._barrier = None
        self.to_upstream.clear()
        self.counts.clear()
        if self.opaque or self._raw is not None or self.streaming:
            self.to_client.append(unreachable(reason))
            self.closing = reason
        elif self.transaction is not None:
            self.closing = reason
        elif self._closing_then:
            self.closing = self._closing_then
        else:
            self._do_deferred()
            self._read_requests()

    def upstream_lost(self, reason: str) -> None:
        """The connection ended, and with it the client's, as where nothing stands between it and Redis.

        No error takes the place of a reply: a client takes an error for Redis' answer, and a connection that
        ends for what it is, a request that may have run or not.
        """
        if not self.closing:
            self.closing = self._closing_then or reason
