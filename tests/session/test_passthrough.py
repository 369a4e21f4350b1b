"""The session that reads nothing."""

from __future__ import annotations

from keyfence.session.passthrough import Passthrough


def test_bytes_go_on_as_they_came() -> None:
    one = Passthrough("A")
    one.from_client(b"*1\r\n$4\r\nPI")
    one.from_upstream(b"no RESP at all")
    assert one.to_upstream == [b"*1\r\n$4\r\nPI"]
    assert one.to_client == [b"no RESP at all"]
    assert one.wants_input()
    assert not one.closing


def test_a_client_gets_the_reason_why_there_is_no_upstream() -> None:
    one = Passthrough("A")
    one.from_client(b"PING\r\n")
    one.upstream_refused("upstream x is unreachable: connection refused")
    assert one.to_client == [b"-ERR keyfence: upstream x is unreachable: connection refused\r\n"]
    assert one.to_upstream == []
    assert one.closing.startswith("upstream")


def test_a_reply_is_awaited_until_something_comes_back() -> None:
    one = Passthrough("A")
    one.from_client(b"PING\r\n")
    assert one.outstanding
    one.from_upstream(b"+PONG\r\n")
    assert not one.outstanding


def test_the_client_is_closed_with_the_upstream() -> None:
    one = Passthrough("A")
    one.upstream_lost("upstream x is gone")
    assert one.closing == "upstream x is gone"
    assert one.to_client == []
