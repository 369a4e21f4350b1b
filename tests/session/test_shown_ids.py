"""A client may name its own connection by id, and those of its service."""

from __future__ import annotations

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.owner_questions import Question
from keyfence.session.conversation.shown_ids import ShownIds, redirections
from tests.session.sessions import (
    RecordingObserver,
    Session,
    authorizer_with,
    cmd,
    identities,
    is_refusal,
    passed,
    sent,
)

NODE = "10.0.0.1:6379"
HELLO_2 = b"*6\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:7042\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"
HELLO_3 = b"%3\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:7042\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n"


def session(
    ids: ShownIds,
    service: str = "CubeProxy",
    observer: RecordingObserver | None = None,
    mode: str = "enforce",
) -> Session:
    in_force = InForce(authorizer_with(ModeRule(mode)))  # type: ignore[arg-type]
    context = SessionContext(in_force, identities(), observer or RecordingObserver(), ids=ids)
    return Session(context, ClientOrigin(service, "10.0.0.9:5"))


def exchange(one: Session, request: bytes, reply: bytes) -> bytes:
    """Send a request that is admitted, and its reply; returns what the client got."""
    one.from_client(request)
    assert passed(one) == request
    one.from_upstream(reply)
    return sent(one)


def redirect(one: Session, number: int | str, *more: str) -> bytes:
    """What the client gets at once; nothing where the request went upstream."""
    one.from_client(cmd("CLIENT", "TRACKING", "ON", *more, "REDIRECT", str(number)))
    return sent(one)


SHOWN = [
    (cmd("CLIENT ID"), b":7042\r\n"),
    (cmd("client id"), b":7042\r\n"),
    (cmd("CLIENT INFO"), b"$22\r\nid=7042 addr=1.2.3.4:5\r\n"),
    (cmd("CLIENT INFO"), b"=26\r\ntxt:id=7042 addr=1.2.3.4:5\r\n"),
    (cmd("HELLO"), HELLO_2),
    (cmd("HELLO 2"), HELLO_2),
    (cmd("HELLO 3"), HELLO_3),
]


@pytest.mark.parametrize(("request_", "reply"), SHOWN)
def test_an_id_that_a_client_was_shown_is_its_own_and_its_services(request_: bytes, reply: bytes) -> None:
    ids = ShownIds()
    one, other, stranger = session(ids), session(ids), session(ids, "CubeMaster")
    assert exchange(one, request_, reply) == reply
    assert redirect(one, 7042) == b""
    assert redirect(other, 7042) == b""
    answer = redirect(stranger, 7042)
    assert is_refusal(answer, "command.forbidden")
    assert b"CubeMaster may not use CLIENT TRACKING to redirect to another service's connection" in answer
    assert b"CLIENT ID" in answer
    assert passed(stranger) == b""


def test_an_id_in_a_transaction_is_shown_by_exec() -> None:
    ids = ShownIds()
    one = session(ids)
    exchange(one, cmd("MULTI"), b"+OK\r\n")
    exchange(one, cmd("CLIENT ID"), b"+QUEUED\r\n")
    assert not ids.may_name("CubeProxy", 9)
    exchange(one, cmd("EXEC"), b"*1\r\n:9\r\n")
    assert ids.may_name("CubeProxy", 9)


def test_an_id_that_was_not_shown_is_foreign() -> None:
    ids = ShownIds()
    one = session(ids)
    exchange(one, cmd("CLIENT ID"), b"-NOPERM no\r\n")
    assert len(ids) == 0
    assert is_refusal(redirect(one, 5), "command.forbidden")


def test_a_foreign_id_passes_and_is_reported_in_observe() -> None:
    observer = RecordingObserver()
    one = session(ShownIds(), observer=observer, mode="observe")
    assert redirect(one, 5) == b""
    assert passed(one) == cmd("CLIENT TRACKING ON REDIRECT 5")
    assert ("CubeProxy", "CLIENT TRACKING", "command.forbidden", "observed") in observer.found


def test_a_foreign_id_in_a_transaction_aborts_it() -> None:
    one = session(ShownIds())
    exchange(one, cmd("MULTI"), b"+OK\r\n")
    one.from_client(cmd("CLIENT TRACKING ON REDIRECT 5"))
    assert passed(one) == cmd("ECHO")
    one.from_upstream(b"-ERR wrong number of arguments\r\n")
    assert is_refusal(sent(one), "command.forbidden")


def test_a_client_that_has_gone_has_no_id() -> None:
    ids = ShownIds()
    one, other = session(ids), session(ids)
    exchange(one, cmd("CLIENT ID"), b":7\r\n")
    one.client.leave()
    one.client.leave()
    assert len(ids) == 0
    assert is_refusal(redirect(other, 7), "command.forbidden")


def test_each_client_has_one_id_however_often_it_asks() -> None:
    ids = ShownIds()
    one = session(ids)
    for number in range(1, 1000):
        exchange(one, cmd("CLIENT ID"), b":%d\r\n" % number)
    assert len(ids) == 1
    assert is_refusal(redirect(one, 998), "command.forbidden")
    assert redirect(one, 999) == b""


def test_an_id_belongs_to_the_client_that_redis_gave_it_to_last() -> None:
    ids = ShownIds()
    before, now = session(ids, "CubeMaster"), session(ids)
    exchange(before, cmd("CLIENT ID"), b":7\r\n")
    exchange(now, cmd("CLIENT ID"), b":7\r\n")  # Redis was started anew
    assert is_refusal(redirect(before, 7), "command.forbidden")
    assert redirect(now, 7) == b""
    assert len(ids) == 1


def test_an_id_belongs_to_the_service_that_its_client_is_now() -> None:
    ids = ShownIds()
    one, other = session(ids), session(ids)
    exchange(one, cmd("CLIENT ID"), b":7\r\n")
    exchange(one, cmd("AUTH master pw"), b"+OK\r\n")
    assert one.service == "CubeMaster"
    assert is_refusal(redirect(other, 7), "command.forbidden")
    assert redirect(one, 7) == b""


def test_an_unknown_client_may_name_only_its_own_connection() -> None:
    ids = ShownIds()
    one, other = session(ids, "unknown"), session(ids, "unknown")
    exchange(one, cmd("CLIENT ID"), b":7\r\n")
    assert redirect(one, 7) == b""
    assert is_refusal(redirect(other, 7), "command.forbidden")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((b"ON",), []),
        ((b"ON", b"REDIRECT"), []),
        ((b"ON", b"REDIRECT", b"5"), [(4, 5)]),
        ((b"OFF", b"redirect\0x", b"5", b"NOLOOP"), [(4, 5)]),
        ((b"ON", b"BCAST", b"PREFIX", b"REDIRECT", b"5"), []),
        ((b"ON", b"PREFIX", b"REDIRECT", b"REDIRECT", b"5"), [(6, 5)]),
        ((b"ON", b"REDIRECT", b"5", b"REDIRECT", b"6"), [(4, 5), (6, 6)]),
        ((b"ON", b"REDIRECT", b"05"), []),
        ((b"ON", b"REDIRECT", b"-5"), [(4, -5)]),
        ((b"REDIRECT", b"5"), []),
    ],
)
def test_ids_are_found_where_redis_reads_them(words: tuple[bytes, ...], found: list[tuple[int, int]]) -> None:
    assert redirections([b"CLIENT", b"TRACKING", *words]) == found


# -- other processes


def asked(ids: ShownIds, service: str = "CubeProxy") -> tuple[Session, Question]:
    ids.is_all = False
    one = session(ids, service)
    one.from_client(cmd("CLIENT TRACKING ON REDIRECT 5") + cmd("PING"))
    assert (passed(one), sent(one)) == (b"", b"")
    question = one.question
    assert question is not None
    assert (question.kind, question.content) == ("whose", (service, NODE, 5))
    one.question = None
    return one, question


def test_other_processes_are_asked_for_an_unknown_id_and_the_session_waits() -> None:
    one, question = asked(ShownIds(lambda: NODE))
    one.take_answer(question, True)
    assert passed(one) == cmd("CLIENT TRACKING ON REDIRECT 5") + cmd("PING")


def test_an_id_that_no_process_knows_is_foreign() -> None:
    one, question = asked(ShownIds(lambda: NODE))
    one.take_answer(question, False)
    assert is_refusal(sent(one), "command.forbidden")
    assert passed(one) == cmd("PING")


def test_an_answer_of_other_processes_that_comes_twice_or_too_late_does_nothing() -> None:
    one, question = asked(ShownIds(lambda: NODE))
    one.take_answer(question, True)
    passed(one)
    one.take_answer(question, False)
    assert (passed(one), sent(one)) == (b"", b"")
    late, question = asked(ShownIds(lambda: NODE))
    late.upstream_lost("gone")
    late.take_answer(question, True)
    assert passed(late) == b""


def test_other_processes_are_asked_once_no_reply_is_due() -> None:
    ids = ShownIds()
    ids.is_all = False
    one = session(ids)
    one.from_client(cmd("PING") + cmd("CLIENT TRACKING ON REDIRECT 5"))
    assert passed(one) == cmd("PING")
    assert one.question is None
    one.from_upstream(b"+PONG\r\n")
    assert one.question is not None


def test_other_processes_are_not_asked_for_an_unknown_client() -> None:
    ids = ShownIds()
    ids.is_all = False
    one = session(ids, "unknown")
    assert is_refusal(redirect(one, 5), "command.forbidden")
    assert one.question is None


def test_a_reply_that_the_client_has_shaped_shows_no_id() -> None:
    ids = ShownIds()
    one = session(ids)
    one.talk.doubt_replies()
    one.from_client(cmd("CLIENT ID"))
    assert passed(one) != cmd("CLIENT ID")  # a barrier goes before it
    one.from_upstream(b":999\r\n")
    assert one.closing.startswith("identity")
    assert len(ids) == 0
