# cython: annotation_typing=False
"""The reply queue: assigns the upstream's bytes to reply slots, and collects the output to the client.

Rule: a frame from upstream is either a message that no request asked for (a push, a Pub/Sub message, a line
of MONITOR) or the reply for the head slot. Only the frame itself shows which, never the time of its arrival.
A frame that is neither ends the session.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from keyfence.commands.addresses import NOTICE_WORDS
from keyfence.net.closures import STAYS_OPEN, upstream_sent
from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer

from .identity import Identity
from .reply_slots import Confirm, Drop, Forward, Inspect, Local, Replace, ReplySlots
from .subscriptions import SHARD_CHANNEL_ENDED, Subscriptions, is_message, leading_word

# The largest reply that is inspected (to AUTH or HELLO, or to EXEC with either) or replaced, in bytes.
MAX_INSPECTED = 1024 * 1024

_PUSH = ord(">")
_STATUS = ord("+")
_ERRORS = b"-!"
# The kind of the incoming frame, if it is a push or frames are followed one by one.
_UNDECIDED = 0  # not known yet
_PASSED = 1  # a message, which is passed on
_ANSWER = 2  # for the head slot, and passed on as it comes
_DROPPED = 3  # for the head slot, and dropped
_WHOLE = 4  # for the head slot, and collected
_SILENCED = 5  # a message, which is dropped
_ENDED = 6  # the end of a subscription that Redis has ended by itself: passed on, and collected

# MONITOR's line for each command that Redis carries out (`src/replication.c`, replicationFeedMonitors).
_MONITOR_LINE = re.compile(rb"\+[0-9]{1,20}\.[0-9]{6} \[[0-9]")
_MONITOR_LEAD = 40  # bytes that suffice to show that

# Most messages begin with one of these. No reply begins with the first, and no reply to a subscribed client
# with the second.
_PUSHED_MESSAGE = b">3\r\n$7\r\nmessage\r\n"
_MESSAGE = b"*3\r\n$7\r\nmessage\r\n"
# So do most pushes to a client that has not subscribed (CLIENT TRACKING).
_INVALIDATION = b">2\r\n$10\r\ninvalidate\r\n"

# Modes of CLIENT REPLY
ON, OFF, SKIP = range(3)

# Shared by all sessions that have received nothing on a dedicated connection yet.
_UNUSED = ReplyFramer()
_NOTHING = bytearray()


class ReplyQueue:
    """The reply side of a session: its reply slots, and the incoming frame.

    After each `feed`, `slot_done` says whether a reply slot was answered.
    """

    def __init__(self) -> None:
        self.to_client: list[bytes] = []  # the next output to the client; its taker empties it
        self.closing = STAYS_OPEN  # why to close the client once that is sent
        self.slots = ReplySlots()
        self.resp = 2  # the protocol that HELLO has chosen
        self.mode = ON  # of CLIENT REPLY; SKIP: the next request's reply is dropped
        self.monitoring = False
        self.takes_notices = False  # the client has asked keyfence for maintenance notifications
        self.subscriptions: Subscriptions | None = None  # None: it never subscribed
        self.slot_done = False
        self._framer = _UNUSED
        self._captured = _NOTHING
        self._frame = _UNDECIDED  # the kind of the incoming frame
        self._in_shared_reply = False
        self._kept = b""  # part of a push on the dedicated connection, while the client uses a shared one
        # Complete pushes that wait for the end of a shared reply. Most clients get none in their life.
        self._late_pushes: list[bytes] | None = None

    # -- what is due

    def forward(self, count: int) -> None:
        """The next `count` replies are the client's."""
        if self.mode == ON:
            self.slots.forward(count)
            return
        dropped = 1 if self.mode == SKIP else count
        self.slots.add(Drop(dropped))
        if self.mode == SKIP:
            self.mode = ON
            if count > 1:
                self.slots.forward(count - 1)

    def inspect(self, seen: Callable[[bytes], None], keeps: int = 0) -> None:
        """The next reply is the client's, and `seen` is called with it. `seen` keeps `keeps` bytes alive."""
        self.slots.add(Inspect(seen, self._is_silent(), keeps))

    def replace(self, reply: bytes) -> None:
        """The next reply is dropped, and the client gets `reply` instead."""
        self.slots.add(Replace(b"" if self._is_silent() else reply))

    def drop(self, seen: Callable[[bytes], None] | None = None, *, answers: bool = False) -> None:
        """The next reply is for keyfence. `answers`: `seen` answers the client by it, so the client gets an
        error if it does not come."""
        self.slots.add(Replace(b"", seen, answers))

    def drop_unless_error(self, seen: Callable[[bytes], None]) -> None:
        """As `drop`, but if the reply is an error, the client gets it."""

        def answered(reply: bytes) -> None:
            if reply.startswith(b"-"):
                self.to_client.append(reply)
            seen(reply)

        self.drop(answered, answers=True)

    def edit(self, edited: Callable[[bytes], bytes]) -> None:
        """The next reply is the client's as `edited` returns it."""
        if self._is_silent():
            self.drop()
        else:
            self.drop(lambda reply: self.to_client.append(edited(reply)), answers=True)

    def local(self, reply: bytes) -> None:
        """The client gets `reply` in its turn."""
        if self._is_silent():
            return
        if self.slots.head is None and self._is_between_replies():
            self.to_client.append(reply)
        else:
            self.slots.add(Local(reply))
            self.let_out()

    def tell(self, notice: bytes) -> bool:
        """Send the client a maintenance notification. Returns False if it has not asked for such, or cannot
        get one now."""
        if not self.takes_notices or self.resp != 3 or self.mid_reply:
            return False
        self.to_client.append(notice)
        return True

    def confirm(self, slot: Confirm) -> None:
        """Await the confirmations of a subscription, which Redis sends even with CLIENT REPLY OFF."""
        self._is_silent()
        self.slots.add(slot)

    def pass_over(self) -> None:
        """A request without a reply arrived. It uses up CLIENT REPLY SKIP (`networking.c`, resetClient)."""
        if self.mode == SKIP:
            self.mode = ON

    def _is_silent(self) -> bool:
        if self.mode == ON:
            return False
        if self.mode == SKIP:
            self.mode = ON
        return True

    # -- state

    @property
    def mid_reply(self) -> bool:
        """Whether part of a frame has reached the client, so that nothing else may be sent to it now."""
        return not self._is_between_replies()

    def _is_between_replies(self) -> bool:
        return self._framer.at_boundary and not self._in_shared_reply

    def is_at_rest(self) -> bool:
        """Whether nothing is due, under way or expected, and the client's replies are switched on."""
        return (
            not self.slots
            and not self.monitoring
            and not self.subscriptions
            and not self.mid_reply
            and self.mode == ON
        )

    def follow_subscriptions(self) -> Subscriptions:
        """Look at every frame from now on."""
        if self.subscriptions is None:
            self.subscriptions = Subscriptions()
        return self.subscriptions

    def follow_monitor(self) -> None:
        """MONITOR was accepted. From now on, its lines come between the replies."""
        self.monitoring = True

    def reset(self) -> None:
        """RESET was carried out."""
        self.resp = 2
        self.mode = ON
        self.monitoring = False
        if self.subscriptions is not None:
            self.subscriptions.clear()

    def let_out(self) -> None:
        """Send the local replies whose turn has come, but never inside an incomplete frame."""
        if self.slots.head is not None and self._is_between_replies():
            self.to_client.extend(self.slots.ready())

    def let_out_captured(self) -> None:
        """Send the part of a message that was kept back, because the session is not followed any more."""
        if self._captured:
            self.to_client.append(bytes(self._captured))
            self._captured.clear()

    def fail(self, reason: str) -> None:
        """The due replies will not come: send the client an error for each reply that it awaits."""
        error = unreachable(reason)
        while self.slots:
            slot = self.slots.pop()
            if isinstance(slot, Forward):
                self.to_client.append(error * slot.count)
            elif isinstance(slot, Confirm) or (isinstance(slot, Inspect) and not slot.silent):
                self.to_client.append(error)
            elif isinstance(slot, Local | Replace) and slot.data:
                self.to_client.append(slot.data)
            elif isinstance(slot, Replace) and slot.answers:
                self.to_client.append(error)
        self._captured.clear()

    # -- from a shared connection

    def feed_shared(self, data: bytes, completed: int, whole: bool) -> bool:
        """Take in replies for the head slot, as the shared connection has split them. `whole`: the last one
        has ended. Returns whether the slot is answered."""
        done = self.slots.answer_run(completed)
        self.to_client.append(data)
        self._in_shared_reply = not whole
        if self._late_pushes and whole:
            self.to_client.extend(self._late_pushes)
            self._late_pushes = None
        if done:
            self.let_out()
        return done

    # -- from the client's own connection while it shares another

    def feed_kept(self, data: bytes, client: Identity) -> None:
        """Pass on pushes, which come there if another client names this connection (CLIENT TRACKING …
        REDIRECT). Nothing else can be due. Raises ReplyError."""
        data = self._kept + data
        at = 0
        while at < len(data):
            framer = ReplyFramer()
            end = framer.advance(data, at, 1, stop_after_push=True)
            if framer.kind not in (0, _PUSH):
                self.closing = upstream_sent("a reply that no request asked for")
                return
            if not framer.at_boundary:
                break
            push = data[at:end]
            at = end
            if _kind_of_push(leading_word(push) or b"", client) == _SILENCED:
                continue
            if self._in_shared_reply:
                self._late_pushes = [*(self._late_pushes or ()), push]
            else:
                self.to_client.append(push)
        self._kept = data[at:]
        if len(self._kept) > MAX_INSPECTED:
            self.closing = upstream_sent("an oversized push")

    def go_on_with_kept(self) -> None:
        """The client has left the shared connection: `feed` will take in the rest of an incomplete push."""
        if self._kept:
            self._framer = ReplyFramer()
            self._captured = bytearray(self._kept)
            self._framer.advance(self._kept, 0, 1)
            self._kept = b""

    # -- from the client's own connection

    def feed(self, data: bytes, at: int, client: Identity) -> int:
        """Take in `data` from `at` up to a frame's end, or all of it. Returns where the next frame begins.
        `client` hears of noted errors and of notices. Raises ReplyError."""
        self.slot_done = False
        if self._framer is _UNUSED:
            self._framer = ReplyFramer()
            self._captured = bytearray()
        if self.subscriptions is not None or self.monitoring:
            return self._follow_frame(data, at, client)
        head = self.slots.head
        if isinstance(head, Forward):
            return self._forward_replies(data, at, head, client)
        if isinstance(head, Drop):
            return self._drop_reply(data, at, head, client)
        if isinstance(head, Inspect | Replace):
            return self._capture(data, at, client)
        return self._forward_push(data, at, client)

    def _piece(self, data: bytes, at: int, end: int, client: Identity) -> bytes:
        """The bytes that the framer has just followed, as the client may see them."""
        piece = data if at == 0 and end == len(data) else data[at:end]
        if self._framer.errors is not None:
            return client.errors_came(piece, self._framer.take_errors(), at)
        return piece

    def _forward_replies(self, data: bytes, at: int, head: Forward, client: Identity) -> int:
        framer = self._framer
        end = framer.advance(data, at, head.count, stop_after_push=True)
        begin = framer.frame_at if framer.kind == _PUSH else end  # of the push, which comes last
        if begin > at:
            self.to_client.append(self._piece(data, at, begin, client))
        if self.slots.answer_run(framer.completed):
            self._slot_done()
        elif begin < end:
            self._take_push(data, begin, end, client)
        return end

    def _drop_reply(self, data: bytes, at: int, head: Drop, client: Identity) -> int:
        """CLIENT REPLY silences replies, not pushes."""
        end = self._framer.advance(data, at, 1, stop_after_push=True)
        if self._framer.kind == _PUSH:
            self._take_push(data, at, end, client)
            return end
        self._piece(data, at, end, client)
        if self._framer.at_boundary and self.slots.answered(head, 1):
            self._slot_done()
        return end

    def _forward_push(self, data: bytes, at: int, client: Identity) -> int:
        """With no reply due from upstream, only a push may come."""
        end = self._framer.advance(data, at, 1, stop_after_push=True)
        if self._framer.kind not in (0, _PUSH):
            self.closing = upstream_sent("a reply that no request asked for")
        else:
            self._take_push(data, at, end, client)
            if self.slots and self._framer.at_boundary:
                self._slot_done()  # a local reply has waited for the push's end
        return end

    def _take_push(self, data: bytes, at: int, end: int, client: Identity) -> None:
        """Pass on a part of a push, or drop it. The beginning is kept back until its first word has come."""
        if self._frame == _UNDECIDED and not self._captured and data.startswith(_INVALIDATION, at):
            self._frame = _PASSED
        if self._frame == _UNDECIDED:
            self._captured += data[at:end]
            word = leading_word(self._captured)
            if word is not None or self._framer.at_boundary:
                self._frame = _kind_of_push(word or b"", client)
                if self._frame == _PASSED:
                    self.to_client.append(bytes(self._captured))
                self._captured.clear()
        elif self._frame == _PASSED:
            self.to_client.append(data[at:end])
        if self._framer.at_boundary:
            self._frame = _UNDECIDED

    def _capture(self, data: bytes, at: int, client: Identity) -> int:
        """Collect one reply that is inspected or replaced. Pushes before it are passed on."""
        end = self._framer.advance(data, at, 1, stop_after_push=True)
        if self._framer.kind == _PUSH:
            self._take_push(data, at, end, client)
            return end
        self._captured += self._piece(data, at, end, client)
        if len(self._captured) > MAX_INSPECTED:
            self.closing = upstream_sent("an oversized reply")
        elif self._framer.at_boundary:
            reply = bytes(self._captured)
            self._captured.clear()
            self._captured_reply(reply)
        return end

    def _captured_reply(self, reply: bytes) -> None:
        slot = self.slots.pop()
        if isinstance(slot, Replace):
            if slot.data:
                self.to_client.append(slot.data)
            if slot.seen is not None:
                slot.seen(reply)
        elif isinstance(slot, Inspect):
            if not slot.silent:
                self.to_client.append(reply)
            slot.seen(reply)
        if not self.closing:
            self._slot_done()

    def _slot_done(self) -> None:
        self.let_out()
        self.slot_done = True

    # -- frame by frame, if messages come among the replies

    def _follow_frame(self, data: bytes, at: int, client: Identity) -> int:
        framer = self._framer
        end = framer.advance(data, at, 1, stop_after_push=True)
        piece = self._piece(data, at, end, client)
        if self._frame == _UNDECIDED and not self._captured and self._is_message(piece):
            self._frame = _PASSED
        if self._frame in (_UNDECIDED, _WHOLE, _ENDED):
            self._captured += piece
        elif self._frame not in (_DROPPED, _SILENCED):
            self.to_client.append(piece)
        if self._frame == _UNDECIDED:
            owner = self._owner_of_frame(client)
            if owner == _UNDECIDED:
                return end
            self._frame = owner
            if owner in (_PASSED, _ANSWER):
                self.to_client.append(bytes(self._captured))
            if owner not in (_WHOLE, _ENDED):
                self._captured.clear()
        if len(self._captured) > MAX_INSPECTED:
            self.closing = upstream_sent("an oversized reply")
        elif framer.at_boundary and not self.closing:
            self._end_frame()
        return end

    def _is_message(self, frame: bytes) -> bool:
        """Whether a frame with this beginning is surely a message. `_owner_of_frame` decides about the
        others."""
        if frame.startswith(_PUSHED_MESSAGE):
            return True
        if self.resp != 2 or self.subscriptions is None or not frame.startswith(_MESSAGE):
            return False
        count: int = self.subscriptions.count
        return count > 0

    def _owner_of_frame(self, client: Identity) -> int:
        """The kind of the frame that begins with the captured bytes, as soon as they show it."""
        if self.monitoring and self._framer.kind == _STATUS:
            if _MONITOR_LINE.match(self._captured):
                return _SILENCED if self.mode == OFF else _PASSED
            if len(self._captured) < _MONITOR_LEAD and not self._framer.at_boundary:
                return _UNDECIDED
            return self._owner_of_reply(b"", client)
        word = leading_word(self._captured)
        if word is None and not self._framer.at_boundary:
            return _UNDECIDED
        return self._owner_of_reply(word or b"", client)

    def _owner_of_reply(self, word: bytes, client: Identity) -> int:
        head = self.slots.head
        kind = self._framer.kind
        if isinstance(head, Confirm) and word == head.word:
            return _ANSWER
        subscribed = bool(self.subscriptions) or isinstance(head, Confirm)
        if word == SHARD_CHANNEL_ENDED and subscribed and (kind == _PUSH or self.resp == 2):
            return _ENDED
        if kind == _PUSH:
            return _kind_of_push(word, client)
        if self.resp == 2 and subscribed and is_message(word):
            return _PASSED
        if isinstance(head, Drop):
            return _DROPPED
        if head is None:
            self.closing = upstream_sent("a reply that no request asked for")
        return _ANSWER if isinstance(head, Forward | Confirm) else _WHOLE

    def _end_frame(self) -> None:
        owner, self._frame = self._frame, _UNDECIDED
        head = self.slots.head
        if owner == _WHOLE:
            reply = bytes(self._captured)
            self._captured.clear()
            self._captured_reply(reply)
        elif owner == _ENDED:
            frame = bytes(self._captured)
            self._captured.clear()
            self.to_client.append(frame)
            assert self.subscriptions is not None
            self.subscriptions.ended(frame)
            if self.slots:
                self._slot_done()
        elif owner == _DROPPED and isinstance(head, Drop):
            if self.slots.answered(head, 1):
                self._slot_done()
        elif owner == _ANSWER and isinstance(head, Confirm) and self._framer.kind in _ERRORS:
            self.slots.pop()
            self._slot_done()
        elif owner == _ANSWER and isinstance(head, Forward | Confirm):
            if isinstance(head, Confirm):
                head.confirmed()
            if self.slots.answered(head, 1):
                self._slot_done()
        elif self.slots:
            self._slot_done()  # a local reply has waited for the end of a message


def _kind_of_push(word: bytes, client: Identity) -> int:
    """Whether a push that begins with this word is passed on."""
    return _SILENCED if word in NOTICE_WORDS and client.hides_notice(word) else _PASSED


def unreachable(reason: str) -> bytes:
    """The error in place of a reply that upstream does not send."""
    return encode.error(f"ERR keyfence: {reason}")
