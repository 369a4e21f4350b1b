"""Which commands may go on a shared connection, and when a client changes over."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.resp.profile import Profile
from keyfence.session.conversation.conversation import ROOM
from keyfence.session.conversation.routing import STAY
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    RecordingObserver,
    Session,
    cmd,
    is_refusal,
    passed,
    replies,
    sent,
    session,
)

OBSERVE = [ModeRule("observe")]


def shared(**options: Any) -> Session:
    one = session(sharing=True, clock=options.pop("clock", lambda: 0.0), **options)
    assert one.route.is_shared
    return one


def test_shareable_commands_stay_on_the_shared_connection() -> None:
    one = shared()
    one.from_client(ADMITTED * 3 + REFUSED + ADMITTED)
    assert (passed(one), one.counts) == (ADMITTED * 4, [3, 1])
    one.from_shared(b"*0\r\n*0\r\n*1\r\n", 2, False)
    one.from_shared(b"+a\r\n", 1, True)
    one.from_shared(b"*0\r\n", 1, True)
    got = replies(sent(one))
    assert got[:3] + got[4:] == [b"*0\r\n", b"*0\r\n", b"*1\r\n+a\r\n", b"*0\r\n"]
    assert is_refusal(got[3], "scope.write")
    assert one.route.is_shared


@pytest.mark.parametrize(
    "words", ["MULTI", "CLIENT ID", "BLPOP a 0", "SELECT 1", "NO.SUCH", "XREAD STREAMS a 0"]
)
def test_other_commands_wait_for_due_replies_and_then_go_on_a_connection_of_their_own(words: str) -> None:
    observer = RecordingObserver()
    one = shared(rules=OBSERVE, observer=observer)
    one.from_client(ADMITTED + cmd(words) + ADMITTED)
    assert (passed(one), one.counts) == (ADMITTED, [1])
    one.from_shared(b"*0\r\n", 1, True)
    assert not one.route.is_shared
    assert passed(one).startswith(cmd(words))
    assert len(observer.commands) >= 2
    assert [name for _, name, _ in observer.commands].count("HGETALL") <= 2


def test_greetings_do_not_keep_a_client_from_sharing() -> None:
    one = shared(rules=OBSERVE)
    one.from_client(cmd("HELLO 3") + cmd("CLIENT SETNAME me"))
    assert passed(one) == cmd("HELLO 3") + cmd("CLIENT SETNAME me")
    one.from_upstream(b"%1\r\n+proto\r\n:3\r\n+OK\r\n")
    one.from_client(ADMITTED)
    assert one.route.is_shared
    assert one.profile == Profile(resp=3, name=b"me")
    assert one.route.knows_id


def test_a_client_that_blocks_stays_on_its_own_connection_for_a_while() -> None:
    now = 100.0
    one = shared(rules=OBSERVE, clock=lambda: now)
    one.from_client(ADMITTED)
    one.from_shared(b"*0\r\n", 1, True)
    one.from_client(cmd("BLPOP", "a", 0))
    passed(one)
    one.from_upstream(b"*-1\r\n")
    one.from_client(ADMITTED)
    passed(one)
    one.from_upstream(b"*0\r\n")
    assert not one.route.is_shared
    now += STAY
    one.from_client(ADMITTED)
    assert one.route.is_shared


@pytest.mark.parametrize(
    "words", ["CLIENT TRACKING ON", "READONLY", "NO.SUCH", "SCRIPT DEBUG NO", "CLIENT NO-TOUCH ON"]
)
def test_a_command_that_leaves_something_behind_keeps_its_client_for_good(words: str) -> None:
    now = 100.0
    one = shared(rules=OBSERVE, clock=lambda: now)
    one.from_client(cmd(words))
    one.from_upstream(b"+OK\r\n")
    now += STAY * 10
    one.from_client(ADMITTED)
    assert not one.route.is_shared


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("WATCH a", b"+OK\r\n"),
        ("MULTI", b"+OK\r\n"),
        ("SUBSCRIBE a", b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"),
        ("MONITOR", b"+OK\r\n"),
        ("CLIENT REPLY OFF", b"+OK\r\n"),
    ],
)
def test_a_client_shares_again_once_its_connection_state_has_ended(words: str, answers: bytes) -> None:
    now = 100.0
    one = shared(rules=OBSERVE, clock=lambda: now)
    one.from_client(cmd(words))
    passed(one)
    one.from_upstream(answers)
    now += STAY * 10
    one.settle()
    assert not one.route.is_shared
    one.from_client(cmd("RESET"))
    passed(one)
    one.from_upstream(b"+RESET\r\n")
    now += STAY
    one.settle()
    assert one.route.is_shared


def test_wait_covers_writes_made_on_a_shared_connection() -> None:
    """Any command brings its connection up to the newest write; nothing is needed once one was sent there."""
    one = shared(rules=OBSERVE)
    one.from_client(cmd("WAIT", 1, 0) * 2)
    assert passed(one) == cmd("PING") + cmd("WAIT", 1, 0) * 2
    one.from_upstream(b"+PONG\r\n:1\r\n:1\r\n")
    assert sent(one) == b":1\r\n:1\r\n"


def test_quit_does_not_end_a_shared_connection() -> None:
    one = shared()
    one.from_client(ADMITTED + cmd("QUIT") + ADMITTED)
    assert passed(one) == ADMITTED
    one.from_shared(b"*0\r\n", 1, True)
    assert sent(one) == b"*0\r\n+OK\r\n"
    assert one.closing == "QUIT"


def test_a_client_has_a_bounded_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROOM, "shared_requests", 10)
    one = shared()
    for _ in range(30):
        one.from_client(ADMITTED)
    assert sum(one.counts) == 10
    one.counts.clear()
    one.from_shared(b"*0\r\n" * 4, 4, True)
    one.from_shared(b"*0\r\n" * 6, 6, True)
    assert sum(one.counts) == 20  # what is in hand already goes at once


def test_a_client_that_gets_large_replies_moves_to_its_own_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ROOM, "shared_reply", 100)
    one = shared()
    one.from_client(ADMITTED * 2)
    one.from_shared(b"*1\r\n$500\r\n" + b"x" * 150, 0, False)
    one.from_client(ADMITTED)
    one.from_shared(b"x" * 350 + b"\r\n*0\r\n", 2, True)
    assert not one.route.is_shared
    assert passed(one) == ADMITTED * 3
