# cython: annotation_typing=False
"""One client's conversation with Redis: its reply slots, its connection, its state, and what is held back.

Rule: nothing is evaluated here. Every reply to a sent request is awaited. The client's connection changes
only when no reply is due. A session that cannot be followed any more passes unread or ends; nothing is
guessed.

`Session` reads the requests that may be evaluated now. `reply_queue` assigns the upstream's bytes to reply
slots, `routing` chooses the connection of a request, and `states` has the session's states.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from time import perf_counter
from typing import Any

from keyfence.net.closures import IDENTITY, OTHER, STAYS_OPEN, Reason, lost, upstream_sent
from keyfence.resp import encode
from keyfence.resp.barrier import Barrier, Form, Sightings
from keyfence.resp.limits import RequestLimits
from keyfence.resp.profile import Profile
from keyfence.resp.replies import ReplyError
from keyfence.resp.requests import RequestReader

from .identity import Identity
from .owner_questions import Question
from .reply_queue import OFF, ON, SKIP, ReplyQueue, unreachable
from .routing import Route
from .states import ADMITS, Event, Input, State, next_state, states_where
from .transactions import OpenTransaction

# How long one client may keep the process's loop busy before other clients have their turn. All work for a
# client draws from this: it ends between two requests, or at a pause within a long one.
TURN_SECONDS = 0.002


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


class Doubt(IntEnum):
    """Whether a reply on the client's dedicated connection may be another one than it looks like. Compiled
    modules compare these as C integers."""

    NONE = 0
    UNPROVEN = 1  # requests were sent since the last barrier; Redis should answer each of them once
    PAST = 2  # the client's text might have shaped a reply before the last barrier that was passed
    OPEN = 3  # it might shape the next reply


ROOM = Room()

# `State` as integers, which compiled code compares without a look-up.
_READING = int(State.READING)
_AWAITING_ALL = int(State.AWAITING_ALL)
_BECOMING_OPAQUE = int(State.BECOMING_OPAQUE)
_OPAQUE = int(State.OPAQUE)
_CLOSING = int(State.CLOSING)

_NO_DOUBT, _UNPROVEN, _PAST, _OPEN = map(int, Doubt)

# What states admit, from `states.ADMITS`: the one state that evaluates, and sets of states as bits.
(_EVALUATING,) = (int(state) for state, admits in ADMITS.items() if admits.input is Input.EVALUATE)
_AWAITS_MORE = states_where(lambda admits: admits.awaits_more)
_HOLDS_NOTHING = states_where(lambda admits: admits.input in (Input.PASS, Input.DROP))
_NO_LIMIT = 1 << 62

# Sent upstream in place of a command that is refused inside MULTI. Its wrong arity makes Redis mark the
# transaction, so that EXEC answers EXECABORT in Redis' own words and runs nothing (server.c, rejectCommand).
# After ASKING or CLIENT CACHING, it is the next command, for which they hold (networking.c, resetClient).
ABORT_MARKER = encode.command(b"ECHO")
MULTI = encode.command(b"MULTI")
# Redis replies to everything, and keyfence drops what the client has switched off. Before keyfence stops to
# follow the session, it tells Redis.
_SILENCE = {
    mode: encode.command(b"CLIENT", b"REPLY", word) for mode, word in ((OFF, b"OFF"), (SKIP, b"SKIP"))
}


class Conversation:
    """One client's requests, the replies due for them, and the connection that they take.

    The owner of the client's connection takes the output, and asks what may happen next.
    """

    def __init__(self, profile: Profile, route: Route, limits: RequestLimits) -> None:
        self.replies = ReplyQueue()
        self.profile = profile  # the state that its connection to Redis must have
        self.route = route  # which connection `to_upstream` is for
        self.to_upstream: list[bytes] = []
        self.counts: list[int] = []  # the replies that each piece of it gets, on a shared connection
        self.shapeable = False  # the client's text might shape one of those replies
        self.question: Question | None = None  # for the owner; nothing is evaluated until its answer
        self.wants_turn = False  # other clients have their turn first; then `take_turn` goes on
        # When the client's turn in this round of the loop is over (`perf_counter`); 0.0: it has not begun.
        # The owner sets it back when the next round begins.
        self.turn_ends = 0.0
        self.state = _READING
        self.transaction: OpenTransaction | None = None
        self.room = ROOM
        self.reader = RequestReader(limits)
        self.partly_sent = False  # the beginning of the current request was sent upstream already
        self._deferred: Callable[[], None] | None = None  # called once every due reply has arrived
        # BECOMING_OPAQUE: sent upstream unread once every due reply has arrived. Not joined: it may be large.
        self._unread: list[bytes] | None = None
        self._closing_then = STAYS_OPEN  # CLOSING: why the session closes once every due reply has arrived
        self._shared_bytes = 0  # sent on the shared connection since the last time nothing was due
        self._reply_bytes = 0  # of a reply that is coming in on the shared connection
        self.doubt = _NO_DOUBT
        self._at_barrier = False  # the current request is not sent yet, and waits for a barrier
        self._barrier: Sightings | None = None  # of the barrier that is awaited

    # -- state

    def enter(self, event: Event) -> None:
        """Change the state as `states.TRANSITIONS` says."""
        self.state = int(next_state(self.state, event))

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

    def turn_is_over(self) -> bool:
        """Whether the client has used up its turn. The first question of a turn begins it."""
        now = perf_counter()
        if not self.turn_ends:
            self.turn_ends = now + TURN_SECONDS
            return TURN_SECONDS <= 0.0
        return now >= self.turn_ends

    def yields(self) -> bool:
        """Whether the client has used up its turn. Then it wants another one."""
        if self.turn_is_over():
            self.wants_turn = True
            return True
        return False

    @property
    def outstanding(self) -> int:
        """How many replies from upstream are due."""
        return self.replies.slots.awaited

    def wants_input(self) -> bool:
        """Whether the client's socket is worth reading now. A waiting session takes in some more bytes,
        because only reading shows that a client has gone."""
        if self.replies.closing:
            return False
        if _HOLDS_NOTHING >> self.state & 1:
            return True
        return self.may_evaluate() or self.backlog() < self.room.backlog

    @property
    def holds_back(self) -> bool:
        """Whether received requests wait for replies before they may be evaluated or sent."""
        if self.replies.closing or _HOLDS_NOTHING >> self.state & 1:
            return False
        return not self.may_evaluate()

    @property
    def awaits_more(self) -> bool:
        """Whether something may still arrive for a client that sends no more."""
        if self.replies.slots or self.wants_turn:
            return True
        # Without a reply slot, a session may still wait for an answer from other processes.
        return bool(_AWAITS_MORE >> self.state & 1)

    @property
    def in_transaction(self) -> bool:
        """Whether commands are queued that an EXEC may still run."""
        return self.transaction is not None

    @property
    def waits(self) -> bool:
        """Whether the client waits for a reply or for messages, so that it is not idle."""
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
        """The number of received bytes of requests that were not sent on yet."""
        unread = sum(map(len, self._unread)) if self._unread is not None else 0
        return self.reader.pending() + unread  # a deferred request is part of the bytes read

    # -- requests

    def from_client(self, data: bytes) -> bool:
        """Take in bytes from the client. Returns whether requests may be read in them."""
        if self.replies.closing or self.state == _CLOSING:
            return False  # as Redis drops everything after QUIT
        if self.state == _OPAQUE:
            self.to_upstream.append(data)
            return False
        if self.state == _BECOMING_OPAQUE:
            assert self._unread is not None
            self._unread.append(data)
            return False
        self.reader.feed(data)
        return True

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
            self.route.is_behind = False
            if self.doubt == _NO_DOUBT:
                self.doubt = _UNPROVEN
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

    def after_deferred(self, act: Callable[[], None]) -> None:
        """Call `act` after what waits until every due reply has arrived, or at once if nothing does."""
        before = self._deferred
        if before is None:
            act()
            return

        def both() -> None:
            before()
            act()

        self._deferred = both

    def hold(self) -> None:
        """Evaluate nothing more until `release`."""
        self.enter(Event.HOLD)

    def release(self) -> None:
        """The reply that the next evaluation depends on has arrived."""
        self.enter(Event.RELEASE)

    def doubt_replies(self) -> None:
        """From now on the client's text might shape a reply on its dedicated connection."""
        self.doubt = _OPEN

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

    def when_sure(self, act: Callable[[], None], *, is_login: bool = False) -> None:
        """Carry out the current request once no reply is due and only its own reply can come.

        This is for commands that change the client's identity or database, because keyfence believes their
        replies. A login trusts no other request to have had one reply. It is not for use inside MULTI, where
        Redis would queue a barrier.
        """

        def sure() -> None:
            if self.doubt == _OPEN or (is_login and self.doubt != _NO_DOUBT):
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
                self._at_barrier = False
                self.doubt = _PAST if self.doubt >= _PAST else _NO_DOUBT
                self.release()
                act()

        for _ in range(times):
            self.to_upstream.append(barrier.request)
            self.replies.drop(answered)
        self.hold()
        self._barrier = seen
        return barrier

    def note(self, **settings: Any) -> None:
        """The connection to Redis has these settings from now on."""
        self.profile = self.profile._replace(**settings)

    def fall_out_of_step(self) -> None:
        """A reply is not the one that was due: end the session."""
        self.end(IDENTITY.because("identity: the replies are out of step with the requests"))

    def end(self, reason: Reason) -> None:
        """Read no more from either side, and close."""
        self.replies.closing = reason

    @property
    def is_subscriber(self) -> bool:
        """To a RESP2 subscriber, Redis answers little more than PING."""
        return self.replies.resp == 2 and bool(self.replies.subscriptions)

    def close_after_replies(self, reason: Reason) -> None:
        """Read no more, and close once every due reply has been sent."""
        self.enter(Event.FINISH)
        self._closing_then = reason
        if not self.replies.slots:
            self.end(reason)

    # -- requests that are too large to be held

    def stream(self) -> bool:
        """Part of a request may have arrived that is too large for a shared connection. If it is too large to
        be held, send it on in pieces on the client's dedicated connection, and withhold its end until it is
        evaluated. Returns whether the bytes after a piece may complete the request."""
        if not self.exceeds_share(self.reader.announced(), 0) or not self.may_evaluate():
            return False
        if self.route.is_shared:
            self.route.stay()
            if self.replies.slots:
                self._defer(self.leave_shared)
                return False
            self.leave_shared()
        if not self.reader.is_large:
            return False
        self.partly_sent = True
        self.to_upstream.append(self.reader.take_partial())
        return not self.reader.is_large

    def refuse_streamed(self, reply: bytes) -> None:
        """Give up the connection that carries the refused request without its end.

        Redis has run nothing of that request. If a transaction is open, the new connection must answer
        EXECABORT.
        """
        self.partly_sent = False
        is_bound = self.route.is_bound(in_transaction=self.transaction is not None)
        if is_bound or self.replies.monitoring or self.replies.subscriptions:
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

    def pass_unread(self, request: bytes) -> None:
        """Once every due reply has arrived, send `request` and everything after it unread."""
        is_silent = self.replies.mode != ON
        if is_silent and (self.transaction is not None or self.partly_sent):
            reason = "replies are off, and Redis cannot be told so inside MULTI or inside a request"
            self.close_after_replies(OTHER.because(reason))
            return
        silence = [_SILENCE[self.replies.mode]] if is_silent else []
        self._unread = [*silence, request, self.reader.rest()]
        self.enter(Event.LOSE_TRACK)
        self._pass_unread_when_answered()

    def _pass_unread_when_answered(self) -> None:
        if self.state == _BECOMING_OPAQUE and not self.replies.slots:
            if self.route.is_shared:
                self.leave_shared()
            self.enter(Event.ANSWERED)
            self.replies.let_out_captured()
            assert self._unread is not None
            self.to_upstream += self._unread
            self._unread = None

    # -- which connection

    def take_own(self, *, for_good: bool) -> None:
        """Use the client's dedicated connection for the current request and, for a while, for those after
        it, because there is no connection to share for this client now, or ever (`for_good`)."""
        if for_good:
            self.route.pinned = "nothing to share"
        self.route.stay()
        self.route.is_shared = False
        self.counts.clear()
        self.replies.go_on_with_kept()
        self.doubt = max(self.doubt, _UNPROVEN)
        if self.shapeable:
            self._doubt_pending()

    def leave_shared(self) -> None:
        self.route.is_shared = False
        self.replies.go_on_with_kept()
        self.route.is_behind = True

    def settle(self) -> None:
        """Return to a shared connection if nothing keeps the client on its dedicated one any more."""
        if self.may_leave_own():
            self.route.is_shared = True
            if not self.route.keeps_own:  # otherwise the client will return to that connection
                self._give_up_own()

    def give_up_own(self) -> bool:
        """Have the dedicated connection replaced by a new one, if the client would not notice. Returns
        whether it is."""
        if self.route.is_shared or not self.route.leaves_nothing or not self._is_at_rest():
            return False
        self._give_up_own()
        return True

    def may_ask_on_own(self) -> bool:
        """Whether keyfence may send a request of its own on the dedicated connection now."""
        return not self.route.is_shared and not self.route.pinned and self._is_at_rest()

    def _give_up_own(self) -> None:
        """Replace the client's dedicated connection by a new one, on which no reply is in doubt."""
        self.route.reopen = True
        self.doubt = _NO_DOUBT

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
            and not self.replies.closing
            and self.transaction is None
            and self.replies.is_at_rest()
        )

    # -- from upstream

    def from_shared(self, data: bytes, completed: int, whole: bool) -> bool:
        """Take in this client's part of the bytes from Redis on a shared connection. Returns whether a reply
        slot is answered."""
        if not completed:
            self._reply_bytes += len(data)
            if self._reply_bytes > self.room.shared_reply:
                self.route.stay()
                if self.state == _READING:
                    self._defer(self.leave_shared)
        else:
            self._reply_bytes = 0
        return self.replies.feed_shared(data, completed, whole)

    def from_kept(self, data: bytes, client: Identity) -> None:
        """Take in bytes from Redis on the dedicated connection while the client uses a shared one; `client`
        hears of notices."""
        try:
            self.replies.feed_kept(data, client)
        except ReplyError as exc:
            self.end(upstream_sent(f"bytes that are not a reply: {exc}"))

    def from_upstream(self, data: bytes, at: int, client: Identity) -> int:
        """Take in bytes from Redis on the dedicated connection, from `at` up to a frame's end; `client` hears
        of noted errors and of notices. Returns where the next frame begins. `replies.slot_done` says whether
        a reply slot is answered. Bytes that are not RESP end the session."""
        if self.state == _OPAQUE:
            self.replies.to_client.append(data[at:])
            return len(data)
        if at == 0 and self._barrier is not None:
            self._barrier.feed(data)
        try:
            return self.replies.feed(data, at, client)
        except ReplyError as exc:
            self.end(upstream_sent(f"bytes that are not a reply: {exc}"))
            return len(data)

    def after_slot(self) -> bool:
        """A reply slot is answered: carry out what has waited for it. Returns whether received requests may
        be read on."""
        if self.state == _BECOMING_OPAQUE:
            self._pass_unread_when_answered()
        if self.state == _AWAITING_ALL and self.replies.slots.head is None:
            self._do_deferred()
        return self.state == _READING and self.reader.pending() > 0

    def close_when_answered(self) -> None:
        """Close a session that has ended, if nothing more is due."""
        if self.state == _CLOSING and self.replies.slots.head is None and not self.replies.mid_reply:
            self.replies.closing = self.replies.closing or self._closing_then

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
            self.replies.to_client.append(unreachable(reason))
        self._at_barrier = self.shapeable = False
        self._barrier = None
        self.release()
        self.to_upstream.clear()
        self.counts.clear()
        if self.state in (_OPAQUE, _BECOMING_OPAQUE) or self.partly_sent:
            self.replies.to_client.append(unreachable(reason))
            self.end(lost(reason))
        elif is_guarded:
            self.end(lost(reason))
        elif self.state == _CLOSING:
            self.end(self._closing_then)
        elif self.state == _AWAITING_ALL:
            self._do_deferred()

    def upstream_lost(self, reason: str) -> None:
        """The connection ended. The client's connection ends with it, as it would without keyfence.

        No error takes the place of a reply, because a client would take the error for Redis' answer. A closed
        connection tells the truth: a request may have run or not.
        """
        if not self.replies.closing:
            self.end(self._closing_then or lost(reason))
