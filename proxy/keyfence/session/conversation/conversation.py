# cython: annotation_typing=False
"""One client's conversation with Redis: its reply slots, its connection, its state, and what is held back.

Rule: nothing is decided here. Every reply to a sent request is awaited. The client's connection changes only
when no reply is due. A session that cannot be followed any more passes unread or ends; nothing is guessed.

`Session` builds on this: it reads and decides. `reply_queue` assigns the upstream's bytes to reply slots,
`routing` chooses the connection of a request, and `states` has the session's states.
"""

from __future__ import annotations

from collections.abc import Callable

from keyfence.net.closures import IDENTITY, OTHER, STAYS_OPEN, Reason, lost, upstream_sent
from keyfence.resp import encode
from keyfence.resp.barrier import Barrier, Form, Sightings
from keyfence.resp.limits import RequestLimits
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError
from keyfence.resp.requests import RequestReader

from .base import SessionBase
from .reply_queue import ON, ReplyQueue, unreachable
from .routing import Route
from .states import ADMITS, Event, Input, State, next_state, states_where
from .transactions import OpenTransaction


class Room:
    """How much one client may have waiting or under way, in bytes unless another unit is named."""

    def __init__(self) -> None:
        # Kept by reply slots (local replies, callbacks). Beyond this, no request is evaluated until replies
        # arrive.
        self.slots = 1024 * 1024
        # Taken in from the client while nothing may be evaluated. Beyond this, its socket is not read.
        self.backlog = 64 * 1024
        # How many requests, and about how many bytes of them, may be under way on a shared connection.
        self.shared_requests = 4096
        self.shared = 1024 * 1024
        # A larger request needs a dedicated connection, and so does a client that gets a larger reply.
        self.shared_request = 64 * 1024
        self.shared_reply = 256 * 1024


ROOM = Room()

# `State` as integers, which compiled code compares without a look-up.
_READING = int(State.READING)
_AWAITING_ALL = int(State.AWAITING_ALL)
_BECOMING_OPAQUE = int(State.BECOMING_OPAQUE)
_OPAQUE = int(State.OPAQUE)
_CLOSING = int(State.CLOSING)

# What states admit, from `states.ADMITS`: the one state that evaluates, and sets of states as bits.
(_EVALUATING,) = (int(state) for state, admits in ADMITS.items() if admits.input is Input.EVALUATE)
_AWAITS_MORE = states_where(lambda admits: admits.awaits_more)
_HOLDS_NOTHING = states_where(lambda admits: admits.input in (Input.PASS, Input.DROP))
_NO_LIMIT = 1 << 62

# Sent upstream in place of a command that is refused inside MULTI. Its wrong arity makes Redis mark the
# transaction, so that EXEC answers EXECABORT in Redis' own words and runs nothing (server.c, rejectCommand).
ABORT_MARKER = encode.command(b"ECHO")
MULTI = encode.command(b"MULTI")


class Conversation(SessionBase):
    """One client's requests, the replies due for them, and the connection that they take."""

    def __init__(self, service: str, profile: Profile, route: Route, limits: RequestLimits) -> None:
        self.replies = ReplyQueue()
        super().__init__(service, profile, self.replies, route)
        self.state = _READING
        self.transaction: OpenTransaction | None = None
        self.takes_notices = False  # the client has asked keyfence for maintenance notifications
        self.is_behind = False  # nothing was sent on the dedicated connection since the last shared request
        self.room = ROOM
        self.reader = RequestReader(limits)
        self.partly_sent = False  # the beginning of the current request was sent upstream already
        self._deferred: Callable[[], None] | None = None  # called once every due reply has arrived
        self._unread = b""  # BECOMING_OPAQUE: sent upstream unread once every due reply has arrived
        self._closing_then = STAYS_OPEN  # CLOSING: why the session closes once every due reply has arrived
        self._shared_bytes = 0  # sent on the shared connection since the last time nothing was due
        self._reply_bytes = 0  # of a reply that is coming in on the shared connection
        # The client's text might shape the reply to a request on the dedicated connection, so the next reply
        # may not be what it looks like …
        self.is_doubtful = False
        self.was_doubtful = False  # … or might have shaped one before the last barrier was passed
        self._at_barrier = False  # the current request is not sent yet, and waits for a barrier
        self._barrier: Sightings | None = None  # of the barrier that is awaited

    def _read_requests(self) -> None:
        """Continue with everything that was held back."""
        raise NotImplementedError

    # -- state

    def enter(self, event: Event) -> None:
        """Change the state as `states.TRANSITIONS` says."""
        self.state = int(next_state(self.state, event))

    @property
    def is_opaque(self) -> bool:
        """Whether every byte passes unread."""
        return self.state == _OPAQUE

    def may_evaluate(self) -> bool:
        """Whether the next request may be evaluated now."""
        slots = self.replies.slots
        return (
            self.state == _EVALUATING
            and not self.replies.closing
            and not self.wants_turn
            and slots.held_bytes < self.room.slots
            and (not self.route.is_shared or self._has_room(slots.awaited))
        )

    @property
    def outstanding(self) -> int:
        return self.replies.slots.awaited

    def wants_input(self) -> bool:
        """A waiting session takes in some more bytes, because only reading shows that a client has gone."""
        if self.replies.closing:
            return False
        if _HOLDS_NOTHING >> self.state & 1:
            return True
        return self.may_evaluate() or self.backlog() < self.room.backlog

    @property
    def holds_back(self) -> bool:
        if self.closing or _HOLDS_NOTHING >> self.state & 1:
            return False
        return not self.may_evaluate()

    @property
    def awaits_more(self) -> bool:
        if self.replies.slots or self.wants_turn:
            return True
        # Without a reply slot, a session may still wait for an answer from other processes.
        return bool(_AWAITS_MORE >> self.state & 1)

    @property
    def is_streaming(self) -> bool:
        """Whether a request too large to be held is under way."""
        return self.partly_sent or self.reader.is_large

    @property
    def in_transaction(self) -> bool:
        return self.transaction is not None

    @property
    def waits(self) -> bool:
        return self.awaits_more or self.replies.monitoring or bool(self.replies.subscriptions)

    def _has_room(self, awaited: int) -> bool:
        if not awaited:
            self._shared_bytes = 0
        return awaited < self.room.shared_requests and self._shared_bytes < self.room.shared

    def exceeds_share(self, size: int, count: int) -> bool:
        """Whether `count` requests of `size` bytes together are too much for one piece on a shared
        connection."""
        return size > self.room.shared_request or count > self.room.shared_requests

    def largest_request(self) -> int:
        """The greatest size of a request on the connection that the client uses now."""
        return self.room.shared_request if self.route.is_shared else _NO_LIMIT

    def backlog(self) -> int:
        return self.reader.pending() + len(self._unread)  # a deferred request is part of the bytes read

    @property
    def mid_reply(self) -> bool:
        """Whether part of a reply has reached the client, so that nothing else may be sent to it now."""
        return self.state == _OPAQUE or self.replies.mid_reply

    # -- requests

    def send(self, request: bytes, count: int) -> None:
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
        self.replies.forward(count)

    def when_answered(self, act: Callable[[], None]) -> None:
        """Carry out the current request once every due reply has arrived. Until then, evaluate nothing
        more."""
        if self.replies.slots:
            self._defer(act)
        else:
            act()

    def _defer(self, act: Callable[[], None]) -> None:
        self._deferred = act
        self.enter(Event.DEFER)

    def hold(self) -> None:
        """Evaluate nothing more until `release`."""
        self.enter(Event.HOLD)

    def release(self) -> None:
        """The reply that the next decision depends on has arrived."""
        self.enter(Event.RELEASE)

    def doubt_replies(self) -> None:
        """From now on the client's text might shape a reply on its dedicated connection."""
        self.is_doubtful = self.was_doubtful = True

    def mark_shapeable(self, fits: bool) -> None:
        """The client's text might shape the reply to the current request. `fits`: the request may take the
        connection that the client uses now."""
        if self.transaction is not None:
            self.transaction.is_shapeable = True
        elif fits and self.route.is_shared:
            self.shapeable = True
        else:
            self.doubt_replies()

    def _doubt_pending(self) -> None:
        """A reply that the client's text might shape comes on its dedicated connection, although the request
        could have taken a shared one."""
        self.shapeable = False
        self.doubt_replies()

    def when_sure(self, act: Callable[[], None]) -> None:
        """Carry out the current request once no reply is due and only its own reply can come.

        This is for commands that change the client's identity or database, because keyfence believes their
        replies. It is not for use inside MULTI, where Redis would queue a barrier.
        """

        def sure() -> None:
            if self.is_doubtful:
                self.send_barrier(act)
                self._at_barrier = True
            else:
                act()

        self.when_answered(sure)

    def send_barrier(self, act: Callable[[], None], times: int = 1) -> Barrier:
        """Send a barrier `times` times, and call `act` once Redis has shown that nothing else comes before
        it. Until then, nothing is evaluated. If something else comes, the session ends. Returns the
        barrier."""
        barrier = Barrier.draw(Form.PING if self.is_subscriber else Form.HELLO)
        seen = Sightings(barrier.nonce)
        left = times

        def answered(reply: bytes) -> None:
            nonlocal left
            left -= 1
            # MONITOR shows the number too, but only to a client that sees every command anyway.
            is_sure = left or seen.count == times or self.replies.monitoring
            if not barrier.is_passed(reply) or not is_sure:
                self.fall_out_of_step()
            elif not left:
                self._barrier = None
                self._at_barrier = self.is_doubtful = False
                self.release()
                act()

        for _ in range(times):
            self.to_upstream.append(barrier.request)
            self.replies.drop(answered)
        self.hold()
        self._barrier = seen
        return barrier

    def fall_out_of_step(self) -> None:
        """A reply is not the one that was due: end the session."""
        self.closing = IDENTITY.because("identity: the replies are out of step with the requests")

    @property
    def is_subscriber(self) -> bool:
        """To a RESP2 subscriber, Redis answers little more than PING."""
        return self.replies.resp == 2 and bool(self.replies.subscriptions)

    def close_after_replies(self, reason: Reason) -> None:
        """Read no more, and close once every due reply has been sent."""
        self.enter(Event.FINISH)
        self._closing_then = reason
        if not self.replies.slots:
            self.closing = reason

    def ask_beside(self, request: bytes, answered: Callable[[bytes], None]) -> bool:
        """It is sent between two requests, whatever replies are due: not inside MULTI, nor if Redis would not
        answer it, or only in another way."""
        can_ask = (
            self.state == _READING
            and not self.route.is_shared
            and self.transaction is None
            and not self.partly_sent
            and not self.closing
            and not self.is_subscriber
            and not self.replies.monitoring
            and self.replies.mode == ON
        )
        if can_ask:
            self.to_upstream.append(request)
            self.replies.drop(answered)
        return can_ask

    # -- requests that are too large to be held

    def _large_request(self) -> None:
        """Part of a request has arrived. If it is too large to be held, send it on in pieces on the client's
        dedicated connection, and withhold its end until it is decided."""
        if self.route.is_shared:
            self.route.stay()
            if self.replies.slots:
                self._defer(self.leave_shared)
                return
            self.leave_shared()
        if self.reader.is_large:
            self.partly_sent = True
            self.to_upstream.append(self.reader.take_partial())
            if not self.reader.is_large:
                self._read_requests()  # the bytes after the piece may complete the request

    def _refuse_streamed(self, reply: bytes) -> None:
        """Give up the connection that carries the refused request without its end.

        Redis has run nothing of that request. If a transaction is open, the new connection must answer
        EXECABORT.
        """
        self.partly_sent = False
        watching = self.route.watching and self.transaction is None  # otherwise EXEC will fail anyway
        if self.route.pinned or watching or self.replies.monitoring or self.replies.subscriptions:
            self.replies.local(reply)
            reason = "a large request was refused, and its connection cannot be replaced"
            self.close_after_replies(OTHER.because(reason))
            return
        self._give_up_own()
        self.to_upstream.clear()
        if self.transaction is not None:
            self.to_upstream += [MULTI, ABORT_MARKER]
            self.replies.drop()
            self.replies.replace(reply)
        else:
            self.replies.local(reply)

    # -- sessions that cannot be followed

    def _pass_unread(self, request: bytes) -> None:
        """Once every due reply has arrived, send `request` and everything after it unread."""
        self._unread = request + self.reader.rest()
        self.enter(Event.LOSE_TRACK)
        self._pass_unread_when_answered()

    def _pass_unread_when_answered(self) -> None:
        if self.state == _BECOMING_OPAQUE and not self.replies.slots:
            if self.route.is_shared:
                self.leave_shared()
            self.enter(Event.ANSWERED)
            self.replies.let_out_captured()
            self.to_upstream.append(self._unread)
            self._unread = b""

    def tell(self, notice: bytes) -> bool:
        if not self.takes_notices or self.profile.resp != 3 or self.mid_reply:
            return False
        self.to_client.append(notice)
        return True

    # -- which connection

    def take_own(self, *, for_good: bool) -> None:
        """Use the client's dedicated connection for the current request and, for a while, for those after
        it."""
        if for_good:
            self.route.pinned = "nothing to share"
        self.route.stay()
        self.route.is_shared = False
        self.counts.clear()
        self.replies.go_on_with_kept(self)
        if self.shapeable:
            self._doubt_pending()

    def leave_shared(self) -> None:
        self.route.is_shared = False
        self.replies.go_on_with_kept(self)
        self.is_behind = True

    def settle(self) -> None:
        if self.may_leave_own():
            self.route.is_shared = True
            if not self.route.knows_id:  # otherwise that connection is kept, and the client will return to it
                self._give_up_own()

    def give_up_own(self) -> bool:
        if self.route.is_shared or not self.route.leaves_nothing or not self._is_at_rest():
            return False
        self._give_up_own()
        return True

    def may_ask_on_own(self) -> bool:
        return not self.route.is_shared and not self.route.pinned and self._is_at_rest()

    def _give_up_own(self) -> None:
        """Replace the client's dedicated connection by a new one, on which no reply is in doubt."""
        self.reopen = True
        self.is_doubtful = self.was_doubtful = False

    def may_leave_own(self) -> bool:
        """Whether the client would not notice if its dedicated connection were given up now."""
        return (
            not self.route.is_shared
            and self.route.may_share()
            and self._is_at_rest()
            and not self.exceeds_share(self.reader.announced(), 0)
        )

    def _is_at_rest(self) -> bool:
        """Whether nothing of the client is under way on its dedicated connection."""
        return (
            self.state == _READING
            and not self.wants_turn
            and not self.partly_sent
            and not self.to_upstream
            and not self.closing
            and self.transaction is None
            and self.replies.is_at_rest()
        )

    # -- from upstream

    def from_shared(self, data: bytes, completed: int, whole: bool) -> None:
        if not completed:
            self._reply_bytes += len(data)
            if self._reply_bytes > self.room.shared_reply:
                self.route.stay()
                if self.state == _READING:
                    self._defer(self.leave_shared)
        else:
            self._reply_bytes = 0
        if self.replies.feed_shared(data, completed, whole):
            self._after_slot()
        self._close_when_answered()

    def from_kept(self, data: bytes) -> None:
        try:
            self.replies.feed_kept(data, self)
        except ReplyError as exc:
            self.closing = upstream_sent(f"bytes that are not a reply: {exc}")

    def from_upstream(self, data: bytes) -> None:
        """End the session, because the upstream sent bytes that are not RESP."""
        if self.state == _OPAQUE:
            self.to_client.append(data)
            return
        if self._barrier is not None:
            self._barrier.feed(data)
        at = 0
        try:
            while at < len(data) and not self.replies.closing:
                if self.state == _OPAQUE:
                    self.to_client.append(data[at:])
                    return
                at = self.replies.feed(data, at, self)
                if self.replies.slot_done:
                    self._after_slot()
        except ReplyError as exc:
            self.closing = upstream_sent(f"bytes that are not a reply: {exc}")
        self._close_when_answered()

    def _close_when_answered(self) -> None:
        if self.state == _CLOSING and self.replies.slots.head is None and not self.replies.mid_reply:
            self.closing = self.closing or self._closing_then

    def _after_slot(self) -> None:
        """A reply slot was answered: continue with what was held back."""
        if self.state == _BECOMING_OPAQUE:
            self._pass_unread_when_answered()
        if self.state == _AWAITING_ALL and self.replies.slots.head is None:
            self._do_deferred()
        if self.state == _READING and self.reader.pending():
            self._read_requests()

    def _do_deferred(self) -> None:
        act, self._deferred = self._deferred, None
        self.enter(Event.ANSWERED)
        if act is not None:
            act()

    # -- upstream is gone

    def upstream_refused(self, reason: str) -> None:
        """No connection could be made: every waiting request gets an error, and the client stays.

        Three kinds of clients cannot stay, and get an error too. After MULTI or WATCH, the next commands of a
        client that does not look at replies would run outside a transaction, or without the watch. In an
        opaque session, the number of due replies is unknown. If part of a large request was sent, the rest
        would look like the next request.
        """
        is_guarded = self.transaction is not None or self.route.watching
        self.replies.fail(reason)
        if self._at_barrier:
            self.to_client.append(unreachable(reason))
        self._at_barrier = self.shapeable = False
        self._barrier = None
        self.release()
        self.to_upstream.clear()
        self.counts.clear()
        if self.state in (_OPAQUE, _BECOMING_OPAQUE) or self.partly_sent:
            self.to_client.append(unreachable(reason))
            self.closing = lost(reason)
        elif is_guarded:
            self.closing = lost(reason)
        elif self.state == _CLOSING:
            self.closing = self._closing_then
        else:
            if self.state == _AWAITING_ALL:
                self._do_deferred()
            self._read_requests()

    def upstream_lost(self, reason: str) -> None:
        """The connection ended. The client's connection ends with it, as it would without keyfence.

        No error takes the place of a reply, because a client would take the error for Redis' answer. A closed
        connection tells the truth: a request may have run or not.
        """
        if not self.closing:
            self.closing = self._closing_then or lost(reason)
