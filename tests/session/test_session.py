"""One client's conversation, case by case. `test_session_in_any_order` has the random ones."""

from __future__ import annotations

import gc
import weakref

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.process.serving.garbage import without_collections
from keyfence.session.conversation.conversation import ABORT_MARKER, ROOM
from keyfence.session.conversation.transactions import MAX_EFFECTS
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    REFUSED,
    ROUTE,
    RecordingObserver,
    at_barrier,
    authorizer_with,
    cmd,
    in_multi,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

# -- passing and refusing


def test_an_admitted_pipeline_leaves_in_one_piece() -> None:
    one = session()
    one.from_client(ADMITTED * 100)
    assert one.to_upstream == [ADMITTED * 100]
    assert one.outstanding == 100


def test_a_refusal_waits_for_the_replies_before_it() -> None:
    one = session()
    one.from_client(ADMITTED + REFUSED + ADMITTED)
    assert passed(one) == ADMITTED * 2
    assert sent(one) == b""
    one.from_upstream(b"*0\r\n")
    first, refusal = replies(sent(one))
    assert first == b"*0\r\n"
    assert is_refusal(refusal, "scope.write")
    one.from_upstream(b":1\r\n")
    assert sent(one) == b":1\r\n"


def test_a_refusal_with_nothing_before_it_comes_at_once() -> None:
    one = session()
    one.from_client(REFUSED)
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b""
    assert one.outstanding == 0


def test_an_observed_violation_passes_unchanged_and_is_reported() -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(REFUSED)
    assert passed(one) == REFUSED
    assert sent(one) == b""
    assert observer.found == [("CubeProxy", "HSET", "scope.write", "observed")]
    assert observer.commands == [("CubeProxy", "HSET", "forwarded")]


@pytest.mark.parametrize("nothing", [b"*0\r\n", b"*-1\r\n", b"\r\n", b"\n", b"   \r\n"])
def test_a_request_without_a_reply_is_not_forwarded(nothing: bytes) -> None:
    one = session()
    one.from_client(nothing + ADMITTED + nothing + ADMITTED + nothing)
    assert passed(one) == ADMITTED * 2
    assert one.outstanding == 2


def test_an_inline_command_is_evaluated_like_any_other() -> None:
    one = session()
    one.from_client(b"HSET " + ROUTE + b" HostIP 10.0.0.1\r\nhgetall '" + ROUTE + b"'\n")
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b"hgetall '" + ROUTE + b"'\n"


def test_a_clients_text_never_becomes_a_label() -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(cmd("EVIL.LABEL", "x") + cmd("\r\n", "y"))
    assert {command for _, command, _ in observer.commands} == {"other"}
    assert {command for _, command, _, _ in observer.found} == {"other"}


def test_each_command_is_counted_once() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    for words in ("MULTI", "SUBSCRIBE x", "AUTH u p", "CLIENT REPLY OFF", "EXEC"):
        one.from_client(cmd(words))
    one.from_upstream(b"+OK\r\n-ERR arity\r\n+QUEUED\r\n-ERR arity\r\n-EXECABORT\r\n")
    at_barrier(one)
    one.from_client(cmd("AUTH u p"))
    assert observer.commands == [
        ("CubeProxy", "MULTI", "forwarded"),
        ("CubeProxy", "SUBSCRIBE", "refused"),
        ("CubeProxy", "AUTH", "forwarded"),
        ("CubeProxy", "CLIENT REPLY", "refused"),
        ("CubeProxy", "EXEC", "forwarded"),
        ("CubeProxy", "AUTH", "forwarded"),
    ]


def test_repeated_violations_are_reported_for_each_command() -> None:
    observer = RecordingObserver()
    it = observed("CubeProxy", observer)
    good, bad = cmd("HSET", ROUTE, "HostIP", "10.0.0.1"), cmd("HSET", ROUTE, "HostIP", "nowhere")
    it.from_client(good * 3 + bad + good * 2 + ADMITTED + good)
    write = ("CubeProxy", "HSET", "scope.write", "observed")
    value = ("CubeProxy", "HSET", "value.invalid", "observed")
    assert sorted(observer.found) == [write] * 7 + [value]
    assert observer.commands.count(("CubeProxy", "HSET", "forwarded")) == 7


def test_an_enforced_violation_is_never_only_counted() -> None:
    observer = RecordingObserver()
    it = session("CubeProxy", observer=observer)
    it.from_client(cmd("HSET", ROUTE, "HostIP", "10.0.0.1") * 3)
    assert it.to_upstream == []
    assert observer.commands == [("CubeProxy", "HSET", "refused")] * 3


def test_the_time_of_a_decision_is_reported_for_a_sample() -> None:
    class Timed(RecordingObserver):
        times = 0

        def authorized(self, _service: str, _seconds: float) -> None:
            self.times += 1

    observer = Timed()
    session(observer=observer).from_client(ADMITTED * 129)
    assert observer.times == 3


# -- pushes


def test_pushes_pass_between_replies_and_while_nothing_is_due() -> None:
    one = session()
    one.from_upstream(PUSH)
    assert sent(one) == PUSH
    one.from_client(ADMITTED * 2)
    one.from_upstream(PUSH + b":1\r\n" + PUSH + b":2\r\n" + PUSH)
    assert sent(one) == PUSH + b":1\r\n" + PUSH + b":2\r\n" + PUSH
    assert one.outstanding == 0
    assert not one.closing


@pytest.mark.parametrize("at", range(1, len(PUSH)))
def test_a_local_reply_never_stands_inside_a_push(at: int) -> None:
    one = session()
    one.from_upstream(PUSH[:at])
    one.from_client(REFUSED + ADMITTED + REFUSED)
    begun = sent(one)  # nothing until the push's first word has come
    assert PUSH[:at].startswith(begun)
    one.from_upstream(PUSH[at:] + b":1\r\n")
    first, second, third, last = replies(begun + sent(one))
    assert (first, third) == (PUSH, b":1\r\n")
    assert is_refusal(second, "scope.write")
    assert is_refusal(last, "scope.write")


def test_a_protocol_error_waits_for_the_end_of_a_push() -> None:
    one = session()
    one.from_upstream(PUSH[:20])
    one.from_client(b"*x\r\n")
    assert sent(one) == PUSH[:20]
    assert not one.closing
    one.from_upstream(PUSH[20:])
    assert replies(PUSH[:20] + sent(one))[1].startswith(b"-ERR Protocol error")
    assert one.closing


def test_pushes_pass_a_reply_that_is_replaced() -> None:
    one = in_multi(session())
    one.from_client(REFUSED)
    one.from_upstream(PUSH + b"-ERR wrong" + b" number\r\n")
    push, refusal = replies(sent(one))
    assert push == PUSH
    assert is_refusal(refusal, "scope.write")


# -- limits


def test_too_many_waiting_local_replies_stop_the_reading_until_replies_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ROOM, "slots", 20_000)
    monkeypatch.setattr(ROOM, "backlog", 1_000)
    observer = RecordingObserver()
    one = session(observer=observer)
    one.from_client(REFUSED)
    flood = REFUSED * (20_000 // len(sent(one)) * 3)
    one.from_client(ADMITTED)
    one.from_client(flood)
    assert len(observer.commands) < len(flood) // len(REFUSED) / 2
    assert not one.wants_input()
    assert one.holds_back
    one.from_upstream(b"*0\r\n")
    assert one.wants_input()
    assert len(observer.commands) == len(flood) // len(REFUSED) + 2
    assert len(replies(sent(one))) == len(flood) // len(REFUSED) + 1


@pytest.mark.parametrize("words", ["CLIENT SETNAME x", "HELLO 2", "UNWATCH", "CLIENT SETINFO LIB-NAME x"])
def test_commands_that_change_the_session_wait_in_bounded_memory_behind_one_that_blocks(words: str) -> None:
    one = observed()
    one.from_client(cmd("BLPOP", ROUTE, "0"))
    rounds = 0
    while one.wants_input() and rounds < 10_000:
        one.from_client(cmd(words) * 100)
        rounds += 1
    assert rounds < 1_000
    assert one.replies.slots.held_bytes <= ROOM.slots + 1024
    assert one.backlog() <= ROOM.backlog + 100 * len(cmd(words))


def test_a_transaction_keeps_a_limited_number_of_commands_that_change_the_session() -> None:
    one = session()
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    for number in range(MAX_EFFECTS + 1):
        sent(one)
        one.from_client(cmd("CLIENT", "SETNAME", f"n{number}"))
        if number < MAX_EFFECTS:
            one.from_upstream(b"+QUEUED\r\n")
    assert one.transaction is not None
    assert one.transaction.is_full
    one.from_upstream(b"-ERR wrong number of arguments for 'echo' command\r\n")
    assert is_refusal(sent(one), "session.opaque")


def test_a_client_that_waits_for_auth_may_send_a_little_more() -> None:
    """Only reading shows that the client has gone; the rest stays in its socket."""
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    assert one.wants_input()
    one.from_client(ADMITTED * (ROOM.backlog // len(ADMITTED) + 1))
    assert not one.wants_input()
    one.from_upstream(b"+OK\r\n")
    assert one.wants_input()


def test_an_idle_session_keeps_no_policy_that_is_not_in_force() -> None:
    holder = InForce(authorizer_with())
    one = session("CubeMaster", in_force=holder, sharing=True)
    gc.collect()
    with without_collections():
        one.from_client(ADMITTED * 2 + cmd("SET", "nobody:1", "x") + cmd("SCAN", "0", "MATCH", "a:*"))
        earlier = weakref.ref(holder.authorizer)
        holder.authorizer = authorizer_with()
        one.forget_policy()
        assert earlier() is None
        assert one.service == "CubeMaster"
        one.from_client(ADMITTED)
        assert passed(one).endswith(ADMITTED)


@pytest.mark.parametrize("words", ["ASKING", "CLIENT CACHING YES", "client caching no"])
@pytest.mark.parametrize("sharing", [False, True])
def test_what_holds_for_the_next_command_ends_with_a_refused_one(words: str, sharing: bool) -> None:
    """Redis gets another command in its place, for the first one only. The cache refuses the rest."""
    held = InForce(authorizer_with(ModeRule("enforce", "scope.write"), ModeRule("observe")))
    one = session(in_force=held, sharing=sharing)
    for _ in range(3):
        one.from_client(cmd(words) + REFUSED + REFUSED + ADMITTED)
        assert passed(one) == cmd(words) + ABORT_MARKER + ADMITTED
        one.from_upstream(b"+OK\r\n-ERR wrong number of arguments for 'echo' command\r\n*0\r\n")
        ok, first, second, last = replies(sent(one))
        assert (ok, last) == (b"+OK\r\n", b"*0\r\n")
        assert is_refusal(first, "scope.write")
        assert is_refusal(second, "scope.write")


def test_what_holds_for_a_command_that_passes_costs_nothing() -> None:
    one = observed()
    one.from_client(cmd("CLIENT CACHING YES") + ADMITTED * 2)
    assert passed(one) == cmd("CLIENT CACHING YES") + ADMITTED * 2
