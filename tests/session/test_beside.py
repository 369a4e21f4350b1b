"""A request of keyfence's own goes to Redis between a client's, and its reply reaches no client."""

from __future__ import annotations

import pytest

from keyfence.session.conversation.beside import ask_beside
from tests.session.sessions import ADMITTED, REFUSED, Session, cmd, in_multi, observed, passed, sent, session
from tests.session.test_subscriptions import frame, message, subscribed

LOGIN = cmd("AUTH", "keyfence", "token")


def asked(one: Session) -> list[bytes] | None:
    """Asks beside; returns the list that the reply comes to, or None if it cannot be asked."""
    replies: list[bytes] = []
    return replies if ask_beside(one.talk, LOGIN, replies.append) else None


def test_the_reply_has_its_place_among_those_that_are_due() -> None:
    one = session()
    one.from_client(ADMITTED)
    replies = asked(one)
    one.from_client(ADMITTED + REFUSED + ADMITTED)
    assert passed(one) == ADMITTED + LOGIN + ADMITTED * 2
    one.from_upstream(b"*0\r\n+OK\r\n*1\r\n:1\r\n*2\r\n:1\r\n:2\r\n")
    assert replies == [b"+OK\r\n"]
    first, _, rest = sent(one).partition(b"-NOPERM")
    assert first == b"*0\r\n*1\r\n:1\r\n"
    assert rest.endswith(b"*2\r\n:1\r\n:2\r\n")


def test_it_may_come_in_pieces() -> None:
    one = session()
    replies = asked(one)
    for byte in b"-WRONGPASS no\r\n":
        one.from_upstream(bytes([byte]))
    assert replies == [b"-WRONGPASS no\r\n"]
    assert sent(one) == b""
    assert not one.closing


def test_it_is_not_sent_inside_multi() -> None:
    one = in_multi(session())
    assert asked(one) is None
    one.from_client(cmd("EXEC"))
    one.from_upstream(b"*0\r\n")
    assert passed(one) == cmd("EXEC")
    assert asked(one) == []


def test_it_is_not_sent_while_a_login_of_the_client_is_under_way() -> None:
    one = session()
    one.from_client(cmd("AUTH", "u", "p"))
    assert asked(one) is None
    one.from_upstream(b"-WRONGPASS no\r\n")
    assert asked(one) == []


def test_a_resp2_subscriber_cannot_be_asked_and_a_resp3_one_can() -> None:
    assert asked(subscribed(2, b"news")) is None
    one = subscribed(3, b"news")
    replies = asked(one)
    text = message(b"text", version=3)
    one.from_upstream(text + b"+OK\r\n" + text)
    assert replies == [b"+OK\r\n"]
    assert sent(one) == text * 2


def test_a_former_resp2_subscriber_can_be_asked() -> None:
    one = subscribed(2, b"news")
    one.from_client(cmd("UNSUBSCRIBE"))
    one.from_upstream(frame(b"unsubscribe", b"news", 0))
    sent(one)
    replies = asked(one)
    one.from_upstream(b"+OK\r\n")
    assert replies == [b"+OK\r\n"]
    assert sent(one) == b""


@pytest.mark.parametrize(
    ("request_", "reply"),
    [(cmd("MONITOR"), b"+OK\r\n"), (cmd("CLIENT REPLY OFF"), b""), (cmd("CLIENT REPLY SKIP"), b"")],
)
def test_it_is_not_sent_where_redis_would_not_answer_it_plainly(request_: bytes, reply: bytes) -> None:
    one = observed()
    one.from_client(request_)
    one.from_upstream(reply)
    assert asked(one) is None


def test_it_is_not_sent_on_a_shared_connection_nor_by_a_session_that_ends() -> None:
    assert asked(session(sharing=True)) is None
    one = session()
    one.from_client(cmd("QUIT"))
    assert asked(one) is None
