"""Random conversations against a model: each reply is in its place, whatever is sent, in whatever pieces and
turns.

The expectation is made the slow and obvious way: one command at a time, judged, then answered by a Redis of
its own or refused. The session gets the same bytes in random pieces, while replies come in random pieces,
late, and with pushes between them. The client's turns end at random places.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.replies import ReplyFramer
from keyfence.resp.requests import RequestReader
from keyfence.resp.values import answer
from keyfence.session.conversation.refusal import refusal
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.counters import Counters
from tests.session.fake_redis import PASSWORD, FakeRedis
from tests.session.sessions import (
    ROUTE,
    USERS,
    RecordingObserver,
    Session,
    authorizer_with,
    cmd,
    granting,
    passed,
    replies,
    sent,
    session,
)
from tests.session.turn_ends import SHARES, random_turn_ends

WORDS: list[list[bytes]] = [
    [b"HGETALL", ROUTE],
    [b"hget", ROUTE, b"HostIP"],
    [b"PING"],
    [b"ECHO", b"a \r\n$-1\r\n"],
    [b"HSET", ROUTE, b"HostIP", b"10.0.0.1"],
    [b"DEL", ROUTE],
    [b"GET", b"nobody's"],
    [b"KEYS", b"*"],
    [b"NO.SUCH", b"thing"],
    [b""],
    [b"MULTI"],
    [b"multi"],
    [b"MULTI", b"x"],
    [b"EXEC"],
    [b"ExEc"],
    [b"EXEC", b"x"],
    [b"DISCARD"],
    [b"discard", b"x"],
    [b"WATCH", ROUTE],
    [b"AUTH", b"master", PASSWORD],
    [b"AUTH", b"proxy", PASSWORD],
    [b"auth", b"master", b"wrong"],
    [b"AUTH", PASSWORD],
    [b"HELLO", b"3"],
    [b"HELLO", b"2"],
    [b"HELLO", b"3", b"AUTH", b"master", PASSWORD],
    [b"HELLO", b"3", b"AUTH", b"master", b"wrong"],
    [b"RESET"],
    [b"SYNC"],
    [b"MONITOR"],
    [b"CLIENT", b"REPLY", b"OFF"],
    [b"CLIENT", b"reply", b"skip"],
    [b"CLIENT", b"REPLY", b"ON"],
    [b"CLIENT", b"ID"],
]
# keyfence answers these itself: one at once, one after its owner was asked, one with an error.
OWN: list[list[bytes]] = [[b"KEYFENCE", b"HELP"], [b"keyfence", b"STATS"], [b"KEYFENCE", b"NOSUCH"]]
COUNTED = {"commands": 7}
CHANGES = [[b"HELLO", b"3"], [b"HELLO", b"2"], [b"MULTI"], [b"EXEC"], [b"CLIENT", b"REPLY", b"SKIP"]]
# MULTI and the likes of it often enough that transactions come about.
COMMANDS = st.sampled_from(WORDS) | st.sampled_from(WORDS[:7]) | st.sampled_from([WORDS[10], WORDS[13]])
NOTHING = [b"*0\r\n", b"*-1\r\n", b"\r\n", b"  \n"]
INLINE = [b"PING\r\n", b'ECHO "a b"\r\n', b"exec\n", b"MULTI\r\n", b"GET 'nobody'\r\n"]
STEPS = st.lists(
    COMMANDS.map(lambda words: cmd(*words)) | st.sampled_from(NOTHING) | st.sampled_from(INLINE),
    max_size=40,
)


@dataclasses.dataclass
class Expected:
    """What a client should read, one entry for each command, and what Redis should carry out."""

    replies: list[bytes]
    redis: FakeRedis
    service: str
    commands: int = 0
    refused: int = 0


def expect(stream: bytes, the_judge: Authorizer | None = None) -> Expected:
    """The reference: one command after the other."""
    the_judge = the_judge or authorizer_with()
    redis = FakeRedis()
    expected = Expected([], redis, "CubeProxy")
    in_multi = False
    reader = RequestReader(IDENTIFIED)
    reader.feed(stream)
    while (argv := reader.next()) is not None:
        if not argv:
            redis.hears()  # it uses CLIENT REPLY SKIP up
            continue
        expected.commands += 1
        number = the_judge.number(expected.service)
        ruling = the_judge.rule(Asker(number), argv)
        name = argv[0].upper()
        if ruling.refused_by is None and (reason := _not_followed(argv, in_multi, redis)):
            ruling = the_judge.opaque(number, *reason)
        if ruling.refused_by is not None:
            expected.refused += 1
            said = refusal(ruling.refused_by, "#cube-redis", "d-1")
            if in_multi:
                redis.spoil()
            expected.replies += [said] if redis.hears() else []
            continue
        if name == b"KEYFENCE":
            said = _own_answer(argv[1], redis.version)
            if in_multi:
                expected.refused += 1
                redis.spoil()
                said = b"-ERR Command not allowed inside a transaction\r\n"
            expected.replies += [said] if redis.hears() else []
            continue
        reply = redis.answer(argv)
        expected.replies += [reply] if reply else []
        if name == b"MULTI" and len(argv) == 1:
            in_multi = True
        elif name in (b"EXEC", b"DISCARD", b"RESET") and len(argv) == 1:
            in_multi = False
        if name in (b"RESET", b"EXEC") or (name in (b"AUTH", b"HELLO") and reply != b"+QUEUED\r\n"):
            expected.service = USERS.get(redis.user.decode(), "CubeProxy")
    return expected


def _own_answer(subcommand: bytes, version: int) -> bytes:
    if subcommand == b"STATS":
        return answer(COUNTED, version)
    if subcommand == b"NOSUCH":
        return b"-ERR unknown subcommand 'NOSUCH'. Try KEYFENCE HELP.\r\n"
    one = session(in_force=InForce(granting()))
    one.from_client(cmd("KEYFENCE", subcommand))
    return sent(one)


def _not_followed(argv: Sequence[bytes], in_multi: bool, redis: FakeRedis) -> tuple[str, str] | None:
    name = argv[0].upper()
    if name == b"SYNC":
        return "SYNC", "its replies cannot be followed"
    if in_multi and name == b"MONITOR":
        return "MONITOR", "what MONITOR shows inside MULTI cannot be followed"
    if in_multi and name == b"CLIENT" and argv[1].upper() == b"REPLY":
        if argv[2].upper() == b"ON" and redis.reply == b"ON":
            return None
        return "CLIENT REPLY", "it changes which replies are sent inside MULTI"
    return None


SILENT = "replies are off, and Redis cannot be told so inside MULTI or inside a request"


@dataclasses.dataclass
class Conversation:
    """A session between a client that has `to_send` and a Redis whose replies lie in `due`."""

    one: Session
    dice: random.Random
    to_send: bytes
    pushes: bool
    redis: FakeRedis = dataclasses.field(default_factory=FakeRedis)
    got: bytearray = dataclasses.field(default_factory=bytearray)
    due: bytearray = dataclasses.field(default_factory=bytearray)
    pushed: list[bytes] = dataclasses.field(default_factory=list)
    # Of a connection that is shared: how many replies each piece that was sent gets, and what cuts them.
    counts: list[int] = dataclasses.field(default_factory=list)
    framer: ReplyFramer = dataclasses.field(default_factory=ReplyFramer)
    shares: Sequence[float] = SHARES  # of the looks at the clock that may end a turn; one is drawn
    turns: int = 0  # that the session took after its first one

    def run(self) -> None:
        with random_turn_ends(self.dice, self.shares):
            while sides := self._sides():
                self.dice.choice(sides)()
                self._carry()
        assert not self.to_send, "the client's requests are read no more"

    def _sides(self) -> list[Callable[[], None]]:
        """What may happen next; nothing at the end."""
        one = self.one
        sides = [self._client] * bool(self.to_send and one.wants_input())
        sides += [self._upstream] * bool(self.due)
        sides += [self._owner] * (one.question is not None)
        sides += [self._turn] * one.wants_turn
        return sides + [self._end_round] * bool(sides and one.turn_ends)

    def _turn(self) -> None:
        assert self.one.awaits_more  # otherwise the connection of a client that sends no more is closed
        self.turns += 1
        self.one.take_turn()

    def _end_round(self) -> None:
        self.one.turn_ends = 0.0

    def _piece(self, data: bytes | bytearray) -> int:
        return self.dice.choice([1, 2, 3, 7, 40, 300, len(data), len(data)])

    def _client(self) -> None:
        size = self._piece(self.to_send)
        self.one.from_client(self.to_send[:size])
        self.to_send = self.to_send[size:]

    def _owner(self) -> None:
        assert self.one.question is not None
        self.one.answer(COUNTED)

    def _upstream(self) -> None:
        size = self._piece(self.due)
        data = bytes(self.due[:size])
        del self.due[:size]
        if not self.one.route.is_shared:
            self.one.from_upstream(data)
            return
        at = 0
        while at < len(data):
            start, at = at, self.framer.advance(data, at, self.counts[0])
            completed = self.framer.completed
            self.counts[0] -= completed
            if not self.counts[0]:
                self.counts.pop(0)
            self.one.from_shared(data[start:at], completed, self.framer.at_boundary)

    def _carry(self) -> None:
        self._maybe_push()
        pieces, self.one.to_upstream = self.one.to_upstream, []
        counts, self.one.counts = self.one.counts, []
        self.counts += counts
        self.redis.is_unread = self.one.is_opaque
        if self.one.route.is_shared:
            assert len(counts) == len(pieces)
        for index, piece in enumerate(pieces):
            answered = self.redis.feed(piece)
            for reply in answered:
                self.due += reply
                self._maybe_push()
            if self.one.route.is_shared:
                # Other clients' requests come next on this connection.
                assert len(answered) == counts[index]
                assert self.redis.is_at_rest
        self.got += sent(self.one)
        # In observe, a session that would pass unread ends if Redis cannot be told that replies are off.
        assert self.one.closing in ("", SILENT)
        if self.one.closing:
            self.to_send = b""
            self.due.clear()

    def _maybe_push(self) -> None:
        """Redis sends pushes between replies, never inside of one; `due` always ends between two."""
        if self.pushes and self.dice.random() < 0.3:
            push = b">2\r\n+invalidate\r\n:%d\r\n" % len(self.pushed)
            self.pushed.append(push)
            self.due += push


def answers(got: bytearray) -> list[bytes]:
    """The replies, with one id for all decisions: which refusals share an id does not depend on order."""
    return [re.sub(rb"\(d-\d+\)", b"(d-1)", reply) for reply in replies(bytes(got))]


# A candidate policy under which most of these commands are evaluated otherwise.
CANDIDATE = parse_policy(
    """
    policy: candidate
    services: [CubeMaster, CubeProxy, CubeAPI]
    commands: {forbid: [PING, HGET], allow: [KEYS]}
    keys: {one: {key: "nobody's", type: string, writers: [CubeProxy]}}
    """
)


def compared() -> tuple[InForce, Changes]:
    """The policy with a candidate beside it, and what counts the changes."""
    told, modes = Changes(1, Counters()), Modes((ModeRule("enforce"),), CANDIDATE.services)
    authorizer = authorizer_with()
    authorizer.candidate = Candidate(Authorizer(CANDIDATE, modes), told)
    return InForce(authorizer), told


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, seed=st.integers(0, 2**32), pushes=st.booleans(), has_candidate=st.booleans())
def test_every_reply_is_in_its_place(
    steps: list[bytes], seed: int, pushes: bool, has_candidate: bool
) -> None:
    stream = b"".join(steps)
    expected = expect(stream)
    observer = RecordingObserver()
    in_force, changes = compared() if has_candidate else (None, None)
    one = session(observer=observer, in_force=in_force)
    talk = Conversation(one, random.Random(seed), stream, pushes)
    talk.run()
    if changes is not None:
        changes.gather()
        assert sum(changes.commands.values()) == expected.commands
    frames = answers(talk.got)
    assert [frame for frame in frames if not frame.startswith(b">")] == expected.replies
    assert [frame for frame in frames if frame.startswith(b">")] == talk.pushed
    # Nothing that was refused has reached Redis, and all else has, in order.
    assert without_reply(talk.redis) == without_reply(expected.redis)
    assert talk.redis.ran == expected.redis.ran
    assert talk.one.service == expected.service
    assert talk.one.outstanding == 0
    assert sum(outcome == "refused" for _, _, outcome in observer.commands) == expected.refused
    assert len(observer.commands) == expected.commands


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(
            COMMANDS.map(lambda words: cmd(*words)),
            st.sampled_from([*NOTHING, *INLINE]),
            st.lists(st.sampled_from(WORDS[:8]).map(lambda words: cmd(*words)), max_size=6).map(
                lambda queued: cmd("MULTI") + b"".join(queued) + cmd("exec")
            ),
        ),
        max_size=30,
    ),
    seed=st.integers(0, 2**32),
    has_candidate=st.booleans(),
)
def test_every_reply_is_in_its_place_where_connections_change(
    steps: list[bytes], seed: int, has_candidate: bool
) -> None:
    """Connections change between a shared one and the client's own, and back as time passes."""
    stream = b"".join(steps)
    expected = expect(stream)
    observer = RecordingObserver()
    dice = random.Random(seed)
    now = [0.0]

    def clock() -> float:
        now[0] += dice.choice([0.0, 1.0, 30.0, 60.0])
        return now[0]

    in_force, changes = compared() if has_candidate else (None, None)
    one = session(observer=observer, in_force=in_force, sharing=True, clock=clock)
    talk = Conversation(one, dice, stream, pushes=False)
    talk.run()
    if changes is not None:
        changes.gather()
        assert sum(changes.commands.values()) == expected.commands
    assert answers(talk.got) == expected.replies
    assert talk.redis.ran == expected.redis.ran
    assert talk.one.service == expected.service
    assert talk.one.outstanding == 0
    assert len(observer.commands) == expected.commands


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(COMMANDS, st.sampled_from(OWN), st.sampled_from(CHANGES)).map(lambda words: cmd(*words))
        | st.sampled_from(NOTHING),
        min_size=10,  # so that some of them follow each other closely
        max_size=30,
    ),
    seed=st.integers(0, 2**32),
    sharing=st.booleans(),
)
def test_keyfence_s_own_answers_are_in_their_places(steps: list[bytes], seed: int, sharing: bool) -> None:
    stream = b"".join(steps)
    expected = expect(stream, granting())
    observer = RecordingObserver()
    one = session(observer=observer, in_force=InForce(granting()), sharing=sharing)
    talk = Conversation(one, random.Random(seed), stream, pushes=not sharing)
    talk.run()
    frames = answers(talk.got)
    assert [frame for frame in frames if not frame.startswith(b">")] == expected.replies
    assert [frame for frame in frames if frame.startswith(b">")] == talk.pushed
    assert talk.redis.ran == expected.redis.ran
    assert talk.one.outstanding == 0
    assert sum(outcome == "refused" for _, _, outcome in observer.commands) == expected.refused
    assert len(observer.commands) == expected.commands


def without_reply(redis: FakeRedis) -> list[tuple[bytes, ...]]:
    """What it received, without CLIENT REPLY, which keyfence replaces."""
    return [
        words for words in redis.received if words[0].upper() != b"CLIENT" or words[1].upper() != b"REPLY"
    ]


ADMITTED_TO_MASTER = [
    cmd("HGETALL", ROUTE),
    cmd("HSET", ROUTE, "HostIP", "10.0.0.1"),
    cmd("MULTI"),
    cmd("exec"),
    cmd("DISCARD", "x"),
    cmd("CLIENT", "ID"),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(st.sampled_from([*ADMITTED_TO_MASTER, *INLINE[:4]]), max_size=40),
    seed=st.integers(0, 2**32),
)
def test_what_is_admitted_goes_upstream_byte_for_byte(steps: list[bytes], seed: int) -> None:
    talk = Conversation(session("CubeMaster"), random.Random(seed), b"".join(steps), pushes=False)
    forwarded = bytearray()
    feed = talk.redis.feed

    def watched(data: bytes) -> list[bytes]:
        forwarded.extend(data)
        return feed(data)

    talk.redis.feed = watched  # type: ignore[method-assign]
    talk.run()
    assert bytes(forwarded) == b"".join(steps)


def test_one_byte_at_a_time_makes_no_difference() -> None:
    stream = b"".join(cmd(*words) for words in WORDS * 3)
    expected = expect(stream)
    one = session()
    redis = FakeRedis()
    got = bytearray()
    for at in range(len(stream)):
        one.from_client(stream[at : at + 1])
        for reply in redis.feed(passed(one)):
            for index in range(len(reply)):
                one.from_upstream(reply[index : index + 1])
        got += sent(one)
    assert answers(got) == expected.replies
    assert redis.ran == expected.redis.ran
