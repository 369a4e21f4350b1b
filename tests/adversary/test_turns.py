"""A search for conversations that go wrong if an evaluation takes several turns.

The class: an event between two turns of an evaluation that changes the fate of its request or of later ones.
Here every command with an argument takes several turns, one for each key. Between them, bytes arrive from the
client and from Redis, in random pieces.
"""

from __future__ import annotations

import pytest

from keyfence.policy import budget
from keyfence.policy.engine import authorizer
from keyfence.session import session as session_module
from keyfence.session.conversation import base
from tests.adversary.conftest import Search
from tests.session.sessions import ROUTE, RecordingObserver, cmd, session
from tests.session.test_session_in_any_order import (
    INLINE,
    NOTHING,
    WORDS,
    Conversation,
    answers,
    expect,
    without_reply,
)

SEVERAL = [
    [b"DEL", ROUTE, ROUTE, b"nobody's"],
    [b"HSET", ROUTE, b"HostIP", b"x", b"no-such", b"1"],
    [b"TYPE", ROUTE],
    [b"HGETALL", ROUTE],
]


class InTurns(Conversation):
    """A conversation with a session whose turns come at random moments."""

    turns = 0

    def run(self) -> None:
        while self.to_send or self.due or self.one.wants_turn:
            sides = [self._client] * bool(self.to_send and self.one.wants_input())
            sides += [self._upstream] * bool(self.due)
            sides += [self._turn] * self.one.wants_turn
            self.dice.choice(sides)()
            self._carry()

    def _turn(self) -> None:
        self.turns += 1
        self.one.take_turn()


def test_search_for_conversations_that_go_wrong_in_turns(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "AT_ONCE", 1)
    monkeypatch.setattr(base, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(authorizer, "MANY", -1)
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
        talk = InTurns(session(observer=observer, sharing=rng.random() < 0.5), rng, stream, pushes=False)
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
