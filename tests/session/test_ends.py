"""What ends a session, and what a client gets when the upstream is not there or goes."""

from __future__ import annotations

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.reply_queue import MAX_INSPECTED
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    REFUSED,
    RecordingObserver,
    at_barrier,
    cmd,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

# -- what ends a session


def test_nothing_behind_quit_is_evaluated_or_answered() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    one.from_client(ADMITTED + cmd("QUIT") + ADMITTED + REFUSED)
    one.from_client(b"garbage behind it")
    assert passed(one) == ADMITTED + cmd("QUIT")
    one.from_upstream(b"*0\r\n+OK\r\n")
    assert sent(one) == b"*0\r\n+OK\r\n"
    assert one.closing == "QUIT"
    assert len(observer.commands) == 2


@pytest.mark.parametrize("attack", [b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"hOsT: x\r\n"])
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_an_http_request_closes_the_session(attack: bytes, mode: str) -> None:
    one = session(rules=[ModeRule(mode)])  # type: ignore[arg-type]
    one.from_client(attack + ADMITTED)
    assert one.closing.startswith("HTTP")
    assert passed(one) == sent(one) == b""


def test_a_protocol_error_is_reported_behind_the_due_replies() -> None:
    one = session()
    one.from_client(ADMITTED + b"*1\r\n:4\r\n" + ADMITTED)
    assert passed(one) == ADMITTED
    assert not one.closing
    one.from_upstream(b"*0\r\n")
    assert sent(one) == b"*0\r\n-ERR Protocol error: expected '$', got ':'\r\n"
    assert one.closing.startswith("protocol error")


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b"$-2\r\n", b"$3\r\nabcd\r\n", b"*?\r\n", b"\x00"])
def test_garbage_from_upstream_ends_the_session(garbage: bytes) -> None:
    one = session()
    one.from_client(ADMITTED)
    one.from_upstream(garbage)
    assert one.closing.startswith("upstream sent")


def test_garbage_in_place_of_the_reply_to_auth_authenticates_nobody() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + REFUSED)
    passed(one)
    one.from_upstream(b"OK\r\n")
    assert one.closing
    assert one.service == "CubeProxy"
    assert passed(one) == sent(one) == b""


def test_a_reply_that_nothing_asked_for_does_not_reach_the_client() -> None:
    one = session()
    one.from_client(ADMITTED)
    one.from_upstream(b"*0\r\n$6\r\nsecret\r\n")
    assert one.closing.startswith("upstream sent")
    assert sent(one) == b"*0\r\n"


def test_an_endless_reply_to_auth_is_not_kept() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    one.from_upstream(b"$%d\r\n" % (MAX_INSPECTED * 2) + b"x" * MAX_INSPECTED)
    assert one.closing.startswith("upstream sent")


# -- upstream is not there, or goes


def test_without_an_upstream_every_request_gets_an_error_in_its_place() -> None:
    one = session()
    one.from_client(ADMITTED * 2 + REFUSED + cmd("AUTH", "u", "p") + ADMITTED)
    one.upstream_refused("upstream x is unreachable: connection refused")
    got = replies(sent(one))
    sorry = b"-ERR keyfence: upstream x is unreachable: connection refused\r\n"
    assert got[:2] == [sorry] * 2
    assert is_refusal(got[2], "scope.write")
    assert not one.closing
    assert at_barrier(one) == b""
    for still_to_be_tried in (cmd("AUTH", "u", "p"), ADMITTED):
        assert passed(one) == still_to_be_tried
        one.upstream_refused("again")
        assert sent(one) == b"-ERR keyfence: again\r\n"
    one.from_client(ADMITTED)
    assert passed(one) == ADMITTED


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize("words", ["INFO", "CLUSTER SLOTS", "CLUSTER NODES", "CLIENT ID", "HELLO 3"])
def test_what_keyfence_answers_by_redis_reply_gets_an_error_too(words: str, mode: str) -> None:
    one = session(rules=[ModeRule(mode)], sharing=True)  # type: ignore[arg-type]
    one.from_client(cmd(words))
    passed(one)
    one.upstream_refused("away")
    assert sent(one) == b"-ERR keyfence: away\r\n"
    assert not one.closing


def test_a_transaction_whose_multi_failed_is_not_carried_out_in_part() -> None:
    """The next commands of such a client would run outside of the transaction."""
    one = session()
    one.from_client(cmd("MULTI") + ADMITTED)
    one.upstream_refused("upstream x is unreachable")
    assert len(replies(sent(one))) == 2
    assert one.closing
    one.from_client(ADMITTED + cmd("EXEC"))
    assert passed(one) == b""


def test_a_whole_transaction_may_fail_without_ending_the_session() -> None:
    one = session()
    one.from_client(cmd("MULTI") + ADMITTED + cmd("EXEC"))
    one.upstream_refused("upstream x is unreachable")
    assert len(replies(sent(one))) == 3
    assert not one.closing


@pytest.mark.parametrize("before", [b"", ADMITTED])
def test_an_opaque_session_gets_one_error_and_ends_without_an_upstream(before: bytes) -> None:
    one = observed()
    one.from_client(before + cmd("SYNC"))
    one.upstream_refused("upstream x is unreachable")
    assert sent(one) == b"-ERR keyfence: upstream x is unreachable\r\n" * (2 if before else 1)
    assert one.closing.startswith("upstream")


def test_quit_is_answered_and_closes_without_an_upstream() -> None:
    one = session()
    one.from_client(cmd("QUIT"))
    one.upstream_refused("upstream x is unreachable")
    assert len(replies(sent(one))) == 1
    assert one.closing == "QUIT"


def test_a_client_that_awaits_a_reply_is_closed_without_an_error_when_the_upstream_goes() -> None:
    one = session()
    one.from_client(ADMITTED + REFUSED + ADMITTED)
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing == "upstream x is gone"


@pytest.mark.parametrize(
    "part", [b"$10\r\nabc", b"*2\r\n:1\r\n", b"+O", b"$", b"|1\r\n+a\r\n:1\r\n", PUSH[:20]]
)
def test_no_error_is_put_inside_a_reply_when_the_upstream_goes(part: bytes) -> None:
    one = session()
    one.from_client(ADMITTED + ADMITTED)
    one.from_upstream(part)
    assert sent(one) == part
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing


def test_half_a_reply_to_auth_authenticates_nobody() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    one.from_upstream(b"+OK\r")
    one.upstream_lost("upstream x is gone")
    assert one.service == "CubeProxy"
    assert sent(one) == b""


def test_an_idle_session_ends_with_its_upstream_without_an_error() -> None:
    one = session()
    one.from_client(ADMITTED)
    one.from_upstream(b"*0\r\n")
    sent(one)
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing
