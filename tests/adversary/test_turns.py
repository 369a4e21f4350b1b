"""Searches for conversations that go wrong because of where a client's turns end.

The class: an event between two turns that changes the fate of a request, or a turn that ends where only a
part of what belongs together was sent. Turns end at random places. Between them, bytes arrive from the client
and from Redis in random pieces, and the policy is loaded again.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from keyfence.policy import budget
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine import authorizer as authorizer_module
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.session import slowpath, whole
from keyfence.session.conversation.conversation import ROOM
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.counters import Counters
from tests.adversary.conftest import Search
from tests.session.sessions import ROUTE, RecordingObserver, cmd, policy, session
from tests.session.test_session_in_any_order import (
    CANDIDATE,
    INLINE,
    NOTHING,
    WORDS,
    Conversation,
    answers,
    expect,
    without_reply,
)
from tests.session.turn_ends import SHARES

SEVERAL = [
    [b"DEL", ROUTE, ROUTE, b"nobody's"],
    [b"HSET", ROUTE, b"HostIP", b"x", b"no-such", b"1"],
    [b"TYPE", ROUTE],
    [b"HGETALL", ROUTE],
]


def test_search_for_conversations_that_go_wrong_in_turns(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command with an argument may take several turns, one for each key."""
    monkeypatch.setattr(slowpath, "AT_ONCE", 1)
    monkeypatch.setattr(authorizer_module, "MANY", -1)
    monkeypatch.setattr(budget, "PAUSE_STEPS", 1)
    turns = 0
    for rng in search.attempts_of_at_least(50):
        one_step = [*WORDS, *SEVERAL * 3, [b"MULTI"], [b"EXEC"]]
        steps = [cmd(*rng.choice(one_step)) for _ in range(rng.randint(1, 30))]
        steps += rng.choices([*NOTHING, *INLINE], k=3)
        rng.shuffle(steps)
        stream = b"".join(steps)
        expected = expect(stream)
        observer = RecordingObserver()
        observer.recorder = lambda *_: None  # turns off the decision cache
        talk = Conversation(session(observer=observer, sharing=rng.random() < 0.5), rng, stream, pushes=False)
        talk.run()
        turns += talk.turns
        assert answers(talk.got) == expected.replies
        assert without_reply(talk.redis) == without_reply(expected.redis)
        assert talk.redis.ran == expected.redis.ran
        assert talk.one.service == expected.service
        assert talk.one.outstanding == 0
        assert sum(outcome == "refused" for _, _, outcome in observer.commands) == expected.refused
        assert len(observer.commands) == expected.commands
    assert turns > search.attempts


TEXT = """
policy: turns
claims: ["a:"]
services: {services}
placeholders: {{id: "[^:{{}}]{{0,60}}"}}
scopes: {{a: {{prefix: "a:", writers: [CubeMaster], readers: [CubeProxy]}}}}
keys:
  cart: {{key: "a:cart:{{<id>}}", type: hash, fields: {{size: integer}}, writers: [CubeMaster, CubeProxy]}}
  lock: {{key: "a:lock:{{<id>}}", type: string, ttl: {{max: 1m, at: write}}, writers: [CubeMaster]}}
  note: {{key: "a:note:{{<id>}}", type: string}}
{more}
"""
# With the services in another order too: a number that was kept over a reload is another service's.
ORDERS = ("[CubeMaster, CubeProxy, CubeAPI]", "[CubeAPI, other, CubeProxy, CubeMaster]")
POLICIES: list[tuple[CompiledPolicy, ...]] = [
    (policy(),),
    *(
        tuple(parse_policy(TEXT.format(services=services, more=more)) for services in ORDERS)
        for more in ("", "cluster: true")
    ),
]
MODES = [
    [ModeRule("enforce")],
    [ModeRule("observe")],
    [ModeRule("enforce", "scope.write"), ModeRule("observe")],
    [ModeRule("observe", "key.unregistered"), ModeRule("enforce")],
]
MOST_PEEKED = 64  # arguments; whoever peeks relies on that a request with more is evaluated in turns only
KEYS = [ROUTE, b"a:cart:{1}", b"a:cart:{2}", b"a:lock:{1}", b"a:note:{1}", b"a:nothing:1", b"nobody:1"]
WAYS = [
    [b"GET", b""],
    [b"GET", b""],
    [b"SET", b"", b"v"],
    [b"SET", b"", b"v", b"EX", b"30"],
    [b"HSET", b"", b"size", b"3"],
    [b"HGETALL", b""],
    [b"HSET", b"", b"size", b"big"],
    [b"EXPIRE", b"", b"10"],
    [b"DEL", b"", b""],
    [b"MGET", b"", b"", b""],
    [b"EXISTS", *[b""] * 6],
    [b"EXISTS", *[b""] * MOST_PEEKED],
    [b"DEL", *[b""] * 2 * MOST_PEEKED],
    [b"WATCH", b""],
    [b"UNWATCH"],
    [b"BLPOP", b"", b"1"],
    [b"EVAL", b"return 1", b"1", b""],
    [b"SCAN", b"0", b"MATCH", b"a:cart:*"],
    [b"PUBLISH", b"a:news", b"x"],
    [b"SUBSCRIBE", b"a:news", b"other"],
    [b"PSUBSCRIBE", b"a*"],
    [b"UNSUBSCRIBE"],
    [b"UNSUBSCRIBE", b"other"],
    [b"PUNSUBSCRIBE"],
    [b"RESET"],
    [b"SELECT", b"1"],
    [b"OBJECT", b"ENCODING", b""],
    [b"GET", b"x" * 200],
]
LOGINS = (b"AUTH", b"HELLO", b"SELECT")
SHAPING = (b"EVAL", b"NO.SUCH", b"")


def requests(rng: random.Random, *, sharing: bool) -> list[bytes]:
    """A stream of requests. Few keys and ways, so that the decision cache knows many of them."""
    # After a reply that a script may have shaped, it depends on connections and barriers whether the reply to
    # a login inside MULTI is believed. So a stream has such commands or logins.
    left_out = LOGINS if sharing or rng.random() < 0.5 else SHAPING
    # Redis refuses a subscriber's MULTI and HELLO. How the commands after MULTI are evaluated depends on when
    # the reply comes, and after a HELLO that may log in the session ends.
    has_transactions = rng.random() < 0.8
    left_out += (b"SUBSCRIBE", b"PSUBSCRIBE") if has_transactions else (b"MULTI", *LOGINS)
    words, ways = ([one for one in these if one[0].upper() not in left_out] for these in (WORDS, WAYS))
    keys, ways = rng.sample(KEYS, 3), rng.sample(ways, rng.choice([2, 6, len(ways)]))

    def one() -> bytes:
        if rng.random() < 0.15:
            return cmd(*rng.choice(words))
        return cmd(*(word or rng.choice(keys) for word in rng.choice(ways)))

    steps: list[bytes] = []
    for _ in range(rng.randint(1, 15)):
        kind = rng.random()
        if kind < 0.4 and has_transactions:
            end = rng.choice([b"EXEC", b"EXEC", b"EXEC", b"exec", b"DISCARD"])
            steps.append(cmd("MULTI") + b"".join(one() for _ in range(rng.randint(0, 12))) + cmd(end))
        elif kind < 0.9:
            steps += [one()] * rng.choice([1, 1, 5]) + [one() for _ in range(rng.randint(0, 3))]
        else:
            steps.append(rng.choice([*NOTHING, *INLINE] if has_transactions else NOTHING))
    return steps


class Disturbed(Conversation):
    """A conversation during which an equal policy may be put in force, or the connection to Redis lost."""

    reload: Callable[[], None] | None = None
    may_lose = False
    is_lost = False

    def _sides(self) -> list[Callable[[], None]]:
        sides = super()._sides()
        if sides and self.reload is not None:
            sides.append(self.reload)
        if sides and self.may_lose and self.dice.random() < 0.05:
            return [self._lose]
        return sides

    def _lose(self) -> None:
        self.is_lost, self.may_lose = True, False
        self.one.upstream_lost("upstream lost")
        self.to_send = b""
        self.due.clear()

    def _carry(self) -> None:
        if not self.is_lost:
            super()._carry()
        assert not self.one.to_upstream


@dataclasses.dataclass
class Setting:
    """What two sessions have in common. One of them has its turns; the other one never ends a turn."""

    rng: random.Random

    def __post_init__(self) -> None:
        rng = self.rng
        self.policies = rng.choice(POLICIES)
        self.modes = rng.choice(MODES)
        self.service = rng.choice(["CubeProxy", "CubeMaster"])
        self.sharing = rng.random() < 0.7
        self.has_candidate = rng.random() < 0.4
        self.has_recorder = rng.random() < 0.2
        self.has_pending = rng.random() < 0.4
        self.reloads = rng.random() < 0.3
        self.may_lose = rng.random() < 0.1

    def authorizer(self, compiled: CompiledPolicy, changes: Changes) -> Authorizer:
        candidate = None
        if self.has_candidate:
            beside = Authorizer(CANDIDATE, Modes((ModeRule("enforce"),), CANDIDATE.services))
            candidate = Candidate(beside, changes)
        modes = Modes(self.modes, compiled.services)
        pending = PendingTtls() if self.has_pending else None
        return Authorizer(compiled, modes, clock=lambda: 1e9, pending=pending, candidate=candidate)

    def run(self, stream: bytes, rng: random.Random, *, has_turns: bool) -> tuple[Disturbed, object]:
        """Have the conversation. Returns it, and what was reported of it."""
        observer, changes = RecordingObserver(), Changes(1, Counters())
        recorded: list[tuple[bytes, ...]] = []
        if self.has_recorder:
            observer.recorder = lambda _policy, _service, argv, _touches: recorded.append(tuple(argv))
        now = [0.0]

        def clock() -> float:
            now[0] += rng.choice([0.0, 1.0, 30.0, 60.0])
            return now[0]

        in_force = InForce(self.authorizer(self.policies[0], changes))
        one = session(self.service, in_force=in_force, observer=observer, sharing=self.sharing, clock=clock)
        talk = Disturbed(one, rng, stream, pushes=False, shares=SHARES[1:] if has_turns else [0.0])

        def reload() -> None:
            in_force.authorizer = self.authorizer(rng.choice(self.policies), changes)
            one.forget_policy()

        if self.reloads and has_turns:
            talk.reload = reload
        talk.may_lose = self.may_lose and has_turns
        talk.run()
        changes.gather()
        reported = (
            Counter(observer.commands),
            Counter(observer.found),
            observer.sessions,
            recorded,
            changes.commands,
        )
        return talk, reported


def without_ids(got: bytearray) -> bytes:
    """What a client got, with one id for all decisions: which refusals share one differs."""
    return re.sub(rb"\(d-\d+\)", b"(d-1)", got)


@contextmanager
def smaller_limits(rng: random.Random) -> Iterator[None]:
    """Lower limits, so that short streams reach them."""
    with pytest.MonkeyPatch.context() as patch:
        at_once = rng.choice([MOST_PEEKED, 250])
        patch.setattr(slowpath, "AT_ONCE", at_once)
        patch.setattr(whole, "AT_ONCE", at_once)
        patch.setattr(authorizer_module, "MANY", rng.choice([-1, authorizer_module.MANY]))
        patch.setattr(budget, "PAUSE_STEPS", rng.choice([1, 10, 100]))
        patch.setattr(ROOM, "shared_request", rng.choice([150, 400, ROOM.shared_request]))
        patch.setattr(ROOM, "shared_requests", rng.choice([5, 20, ROOM.shared_requests]))
        patch.setattr(ROOM, "slots", rng.choice([500, ROOM.slots]))
        patch.setattr(ROOM, "backlog", rng.choice([500, ROOM.backlog]))
        yield


def test_search_for_conversations_in_which_the_ends_of_turns_show(search: Search) -> None:
    """Whatever the turns, client and Redis get what they get without turns, and the same is reported."""
    turns = 0
    for rng in search.attempts_of_at_least(100):
        setting = Setting(rng)
        stream = b"".join(requests(rng, sharing=setting.sharing))
        with smaller_limits(rng):
            plain, expected = setting.run(stream, rng, has_turns=False)
            talk, reported = setting.run(stream, rng, has_turns=True)
        turns += talk.turns
        if talk.is_lost:
            assert without_ids(plain.got).startswith(without_ids(talk.got))
            assert plain.redis.received[: len(talk.redis.received)] == talk.redis.received
            continue
        assert without_ids(talk.got) == without_ids(plain.got)
        assert without_reply(talk.redis) == without_reply(plain.redis)
        assert talk.redis.ran == plain.redis.ran
        assert talk.one.service == plain.one.service
        assert talk.one.outstanding == plain.one.outstanding == 0
        assert reported == expected
    assert turns > search.attempts
