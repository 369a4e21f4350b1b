"""Requests that are too large to be held."""

from __future__ import annotations

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.conversation import ABORT_MARKER
from tests.session.sessions import (
    ADMITTED,
    ROUTE,
    Session,
    cmd,
    in_multi,
    is_refusal,
    large,
    passed,
    replies,
    sent,
)

OBSERVE = [ModeRule("observe")]


BIG = cmd("HSET", ROUTE, "HostIP", "1" * 5000)


def in_pieces(one: Session, data: bytes, size: int = 700) -> None:
    for at in range(0, len(data), size):
        one.from_client(data[at : at + size])


def test_a_large_request_goes_on_as_it_comes_but_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch, service="CubeMaster", rules=OBSERVE)
    in_pieces(one, BIG[:-1])
    assert passed(one) == BIG[:-2]
    assert one.outstanding == 0
    one.from_client(BIG[-1:] + ADMITTED)
    assert passed(one) == b"\r\n" + ADMITTED
    one.from_upstream(b":1\r\n*0\r\n")
    assert sent(one) == b":1\r\n*0\r\n"


def test_a_large_request_is_refused_by_giving_up_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch)
    one.from_client(ADMITTED)
    in_pieces(one, BIG + ADMITTED)
    assert passed(one) == ADMITTED + BIG[:-2]
    one.from_upstream(b"*0\r\n")
    assert one.reopen
    first, second = replies(sent(one))
    assert (first, is_refusal(second, "scope.write")) == (b"*0\r\n", True)
    assert passed(one) == ADMITTED


def large_with_a_known_id(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose client has asked for the id of its connection."""
    one = large(monkeypatch)
    one.from_client(cmd("CLIENT ID"))
    one.from_upstream(b":7\r\n")
    return one


def test_the_target_of_a_redirection_is_closed_with_the_connection_of_its_refused_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis would send the messages to an id that is gone."""
    one = large_with_a_known_id(monkeypatch)
    assert one.context.ids.may_name("CubeProxy", 7)
    in_pieces(one, BIG)
    assert not one.reopen
    assert replies(sent(one))[0] == b":7\r\n"
    assert one.closing == "a large request was refused, and its connection cannot be replaced"


def test_a_client_that_only_knows_its_id_stays_when_its_large_request_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = large_with_a_known_id(monkeypatch)
    assert not one.context.ids.may_name("CubeMaster", 7)  # another service may not name it
    in_pieces(one, BIG)
    assert one.reopen
    assert not one.closing


def test_a_large_request_refused_inside_multi_still_aborts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one = in_multi(large(monkeypatch))
    one.from_client(ADMITTED)
    in_pieces(one, BIG + cmd("EXEC"))
    assert passed(one) == ADMITTED + BIG[:-2]
    one.from_upstream(b"+QUEUED\r\n")
    assert one.reopen
    assert passed(one) == cmd("MULTI") + ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"+OK\r\n-ERR arity\r\n-EXECABORT\r\n")
    queued, refused, aborted = replies(sent(one))
    assert (queued, aborted) == (b"+QUEUED\r\n", b"-EXECABORT\r\n")
    assert is_refusal(refused, "scope.write")


def test_a_key_too_long_to_be_held_cannot_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cmd("GET", b"cube:v1:shared:sandbox:proxy:" + b"x" * 500)
    one = large(monkeypatch, rules=[ModeRule("enforce", "session.opaque"), ModeRule("observe")])
    in_pieces(one, data, 200)
    assert one.reopen
    assert is_refusal(sent(one), "session.opaque")
    one = large(monkeypatch, rules=OBSERVE)
    in_pieces(one, data, 200)
    assert one.is_opaque
    assert passed(one) == data


def test_a_client_that_loses_the_upstream_inside_a_large_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = large(monkeypatch, service="CubeMaster", rules=OBSERVE)
    in_pieces(one, BIG[:3000])
    one.upstream_refused("upstream x is unreachable")
    assert sent(one) == b"-ERR keyfence: upstream x is unreachable\r\n"
    assert one.closing


def test_a_large_request_moves_its_client_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch, service="CubeMaster", rules=OBSERVE, sharing=True)
    one.from_client(BIG[:60])
    assert not one.route.is_shared
    in_pieces(one, BIG[60:])
    assert passed(one) == BIG
