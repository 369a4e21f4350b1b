"""The session that reads nothing."""

from __future__ import annotations

from keyfence.session.conversation.identity import Identity
from keyfence.session.passthrough import Passthrough, Unread


def test_bytes_go_on_as_they_came() -> None:
    one = Passthrough(Identity("A"), Unread())
    one.from_client(b"*1\r\n$4\r\nPI")
    one.from_upstream(b"no RESP at all")
    assert one.conversation.to_upstream == [b"*1\r\n$4\r\nPI"]
    assert one.conversation.replies.to_client == [b"no RESP at all"]
    assert one.conversation.wants_input()
    assert not one.conversation.replies.closing


def test_a_client_gets_the_reason_why_there_is_no_upstream() -> None:
    one = Passthrough(Identity("A"), Unread())
    one.from_client(b"PING\r\n")
    one.upstream_refused("upstream x is unreachable: connection refused")
    error = b"-ERR keyfence: upstream x is unreachable: connection refused\r\n"
    assert one.conversation.replies.to_client == [error]
    assert one.conversation.to_upstream == []
    assert one.conversation.replies.closing.startswith("upstream")


def test_a_reply_is_awaited_until_something_comes_back() -> None:
    one = Passthrough(Identity("A"), Unread())
    one.from_client(b"PING\r\n")
    assert one.conversation.outstanding
    one.from_upstream(b"+PONG\r\n")
    assert not one.conversation.outstanding


def test_the_client_is_closed_with_the_upstream() -> None:
    one = Passthrough(Identity("A"), Unread())
    one.conversation.upstream_lost("upstream x is gone")
    assert one.conversation.replies.closing == "upstream x is gone"
    assert one.conversation.replies.to_client == []
