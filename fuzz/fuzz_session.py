#!/usr/bin/env python3
"""Guided fuzzing of a client's session: any bytes from the client and from Redis, in any order and pieces.

Rule: no step raises. Redis gets exactly the admitted requests, in order and byte for byte, and apart from
them only keyfence's own commands. All buffers are bounded. The session ends for a known reason.

An input chooses the service and the modes, then steps: relevant commands, raw bytes, replies of a
well-behaved Redis, raw bytes instead of replies, the end of a turn, the end of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness import Choices, fuzz, instrumented

# Imported outside `instrumented`, so that only the session's own branches count.
import keyfence.policy.engine.authorizer
import keyfence.policy.loading.load
import keyfence.telemetry.telemetry  # noqa: F401
from keyfence.net.closures import OTHER, UPSTREAM_LOST
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.resp import encode, requests
from keyfence.resp.limits import IDENTIFIED, MIB, ProtocolError, RequestLimits
from keyfence.resp.requests import RequestReader

with instrumented("keyfence.session"):
    from keyfence.session import fastpath
    from keyfence.session.conversation import conversation
    from keyfence.session.conversation.conversation import ABORT_MARKER, MULTI, ROOM

from tests.session.fake_redis import PASSWORD, FakeRedis
from tests.session.sessions import ROUTE, OrderedObserver, authorizer_with, session
from tests.session.test_session_in_any_order import NOTHING, WORDS

# Lower limits, so that small inputs reach them.
fastpath.TIMED_EACH = 3
requests.LARGE = 1200
requests.KEPT_OF_LARGE = 40
ROOM.shared_request = 400
ROOM.shared_reply = 1500

LIMITS = RequestLimits(max_request=4096)
GREETING = [encode.command(b"AUTH", b"keyfence", b"its own"), encode.command(b"SELECT", 1)]
# keyfence's own commands: the abort marker for a refused command in a transaction; MULTI, to reopen a
# transaction on another connection; PING before WAIT; ACL WHOAMI to identify the client; a substitute for
# CLIENT REPLY, in the client's spelling, and CLIENT REPLY itself before a session passes unread; barriers.
OWN = [
    *(re.escape(encode.command(b"CLIENT", b"REPLY", word)) for word in (b"OFF", b"SKIP")),
    *map(re.escape, [ABORT_MARKER, MULTI, encode.command(b"PING"), encode.command(b"ACL", b"WHOAMI")]),
    rb"\*3\r\n\$6\r\n(?i:client)\r\n\$[0-9]+\r\n(?i:reply)(?:\0[^\r]*)?\r\n\$2\r\nON\r\n",
    rb"\*3\r\n\$5\r\nHELLO\r\n\$1\r\n2\r\n\$32\r\n[0-9a-f]{32}\r\n",
    rb"\*2\r\n\$4\r\nPING\r\n\$32\r\n[0-9a-f]{32}\r\n",
]
SERVICES = ("CubeProxy", "CubeMaster", "unknown")
# Made once, since an authorizer keeps nothing of its sessions but counters.
AUTHORIZERS = (
    authorizer_with(ModeRule("enforce")),
    authorizer_with(ModeRule("observe")),
    authorizer_with(ModeRule("enforce", rule="scope.write"), ModeRule("observe")),
)
MORE: list[Sequence[bytes]] = [
    [b"SUBSCRIBE", b"a", b"b"],
    [b"PSUBSCRIBE", b"*"],
    [b"UNSUBSCRIBE"],
    [b"PUNSUBSCRIBE", b"*"],
    [b"SSUBSCRIBE", b"a"],
    [b"SUBSCRIBE"],
    [b"QUIT"],
    [b"POST", b"/"],
    [b"CLIENT", b"TRACKING", b"ON"],
    [b"HELLO", b"3", b"SETNAME", b"x", b"AUTH", b"proxy", PASSWORD],
    [b"HELLO"],
    [b"HELLO", b"4"],
    [b"AUTH", b"keyfence", b"its own"],
    [b"BLPOP", b"list", b"0"],
    [b"SET", ROUTE, b"x" * 1500],
    [b"SET", b"cube:v1:master:node:metric:n", b"y" * 6000],
    [b"CLIENT", b"REPLY", b"ON"],
    [b"WAIT", b"1", b"0"],
]
REQUESTS = [encode.command(*words) for words in [*WORDS, *MORE]] + NOTHING + [b"PING\r\n", b'ECHO "a b"\r\n']
REPLIES = [
    b"+OK\r\n",
    b"+QUEUED\r\n",
    b"+RESET\r\n",
    b"-NOAUTH Authentication required.\r\n",
    b"-LOADING Redis is loading the dataset in memory\r\n",
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n",
    b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$5\r\nhello\r\n",
    b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n",
    b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
    b"*-1\r\n",
    b"*2\r\n$1\r\na\r\n$300\r\n" + b"z" * 300 + b"\r\n",
    b"|1\r\n+a\r\n:1\r\n:5\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
]


class TurnClock:
    """The clock of turns. They end where the input says, and not as time passes."""

    def __init__(self) -> None:
        self.now = 1.0
        self.looks = 0  # until a turn is over; 0: none ends

    def __call__(self) -> float:
        self.looks -= self.looks > 0
        self.now += conversation.TURN_SECONDS * (self.looks == 1)
        return self.now


CLOCK = TurnClock()
conversation.perf_counter = CLOCK


class Talk:
    """A session, with everything that it received and sent."""

    def __init__(self, choices: Choices) -> None:
        CLOCK.looks = 0
        kind = choices.number()
        self.recorder = OrderedObserver()
        self.greeting = GREETING if kind & 8 else []
        in_force = AUTHORIZERS[kind // 16 % 3]
        in_force.forget_permissions()  # its caches have counters of the observer before
        self.session = session(
            SERVICES[kind % 3],
            in_force=InForce(in_force),
            observer=self.recorder,
            limits=LIMITS,
            greeting=self.greeting,
            sharing=bool(kind & 4),
        )
        self.redis: FakeRedis | None = FakeRedis()
        self.due = bytearray()  # replies that the well-behaved Redis has not sent yet
        self.from_client = bytearray()
        self.upstream = bytearray()
        self.lost = False

    def step(self, choices: Choices) -> None:
        session, step = self.session, choices.number()
        if step < 128:
            self._client(REQUESTS[step % len(REQUESTS)])
        elif step < 150:
            self._client(choices.bytes(choices.number()))
        elif step < 215:
            size = choices.number() * 8
            reply, self.due = bytes(self.due[:size]), self.due[size:]
            if reply:
                session.from_upstream(reply)
        elif step < 235:
            self._misbehave(REPLIES[step % len(REPLIES)])
        elif step < 250:
            self._misbehave(choices.bytes(choices.number()))
        elif step < 252:
            self.upstream.clear()
            self._refused()
        elif step < 253:
            CLOCK.looks = 2 + choices.number() % 16
        else:
            self.lost = True
            session.upstream_lost("upstream fake is gone: connection reset")
        self._carry()

    def _client(self, data: bytes) -> None:
        """Feeds bytes only while the session wants input, as the transport does."""
        self.take_turns()
        if self.session.wants_input():
            self.from_client += data
            self.session.from_client(data)

    def take_turns(self) -> None:
        while self.session.wants_turn:
            self.session.take_turn()
            self._carry()

    def _misbehave(self, data: bytes) -> None:
        self.redis, self.due = None, bytearray()
        if data:
            self.session.from_upstream(data)

    def _refused(self) -> None:
        """Reports that no connection could be made. From here on, earlier data is not checked."""
        self.session.upstream_refused("upstream fake is unreachable: connection refused")
        self.lost = True
        if not self.session.closing:
            self.session.closing = UPSTREAM_LOST.because("upstream")  # ends the test

    def _carry(self) -> None:
        session = self.session
        if session.reopen:
            self._reopen()
        pieces, session.to_upstream = session.to_upstream, []
        counts, session.counts = session.counts, []
        if not session.closing and pieces:
            if session.route.is_shared:
                assert [number_of_requests(piece) for piece in pieces] == counts
            sent = b"".join(pieces)
            self.upstream += sent
            self._answer(sent)
        assert sum(map(len, session.to_client)) <= ROOM.slots + MIB
        session.to_client.clear()
        assert session.outstanding >= 0
        assert session.replies.slots.held_bytes <= ROOM.slots + ROOM.backlog
        assert session.backlog() <= ROOM.backlog + LIMITS.max_request + len(REQUESTS[-1]) + 8192
        # In observe, a session that would pass unread ends if Redis cannot be told that replies are off.
        is_silent = session.closing.startswith("replies are off, ")
        assert is_silent or session.closing.closure is not OTHER, session.closing

    def _reopen(self) -> None:
        """Carries out the session's change of connection after it has sent a part of a request."""
        self.session.reopen = False
        if self.redis is not None:
            self.redis = FakeRedis()
        self.due.clear()
        reader = RequestReader(IDENTIFIED)
        reader.feed(bytes(self.upstream))
        while reader.next() is not None:
            pass
        del self.upstream[len(self.upstream) - reader.pending() :]

    def _answer(self, sent: bytes) -> None:
        if self.redis is None or self.session.is_opaque:
            self.redis = None
            return
        try:
            for reply in self.redis.feed(sent):
                self.due += reply
        except ProtocolError:
            raise AssertionError("Redis got invalid RESP") from None

    def verify(self) -> None:
        """Compares the bytes sent upstream with the requests that the session has reported as admitted."""
        outcomes = [outcome for _, _, outcome in self.recorder.commands]
        admitted, rest = self._requests(outcomes)
        at = 0
        own = re.compile(b"|".join([*OWN, *map(re.escape, self.greeting)]))
        for request in admitted:
            before = at
            while not (is_next := self.upstream.startswith(request, at)) and (
                found := own.match(self.upstream, at)
            ):
                at = found.end()
            if is_next:
                at += len(request)
            elif may_be_answered_locally(request):
                at = before  # the matched own command may be the client's next request
            else:
                break  # admitted but not sent, or the upstream was lost: nothing may follow
        left = bytes(self.upstream[at:])
        while found := own.match(left):
            left = left[found.end() :]
        large = self.session.is_streaming
        if left and not self.session.is_opaque and not (large and self.from_client.find(left) >= 0):
            raise AssertionError(f"sent to Redis but not admitted: {left[:200]!r}")
        if left:
            assert self.from_client.find(left) >= 0, f"not the client's bytes: {left[:200]!r}"
        assert rest is not None

    def _requests(self, outcomes: list[str]) -> tuple[list[bytes], bytes]:
        """Returns the admitted requests, as bytes, and the bytes after the last reported one."""
        reader = RequestReader(IDENTIFIED)  # the session checks its own limits
        reader.feed(bytes(self.from_client))
        admitted = []
        reported = iter(outcomes)
        try:
            while (argv := reader.next()) is not None:
                if not argv:
                    continue
                outcome = next(reported, None)
                if outcome is None:
                    break
                if outcome == "forwarded":
                    admitted.append(reader.span(reader.start, reader.end))
        except ProtocolError:
            pass
        return admitted, reader.rest()


def may_be_answered_locally(request: bytes) -> bool:
    """Whether keyfence may answer an admitted request itself: CLIENT REPLY, QUIT on a shared connection."""
    return b"reply\r\n" in request.lower() or b"quit\r\n" in request.lower()


def number_of_requests(piece: bytes) -> int:
    reader = RequestReader(IDENTIFIED)
    reader.feed(piece)
    number = 0
    while (argv := reader.next()) is not None:
        number += bool(argv)
    assert not reader.pending(), "a shared connection must get whole requests only"
    return number


def check(data: bytes) -> None:
    """Runs the steps of the input, then verifies what went upstream."""
    choices = Choices(data)
    talk = Talk(choices)
    while choices and not talk.session.closing and not talk.lost:
        talk.step(choices)
    if not talk.lost:
        talk.take_turns()
        talk.verify()


if __name__ == "__main__":
    fuzz(check)
