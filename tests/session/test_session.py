"""One client's conversation, case by case. `test_session_in_any_order` has the random ones."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from keyfence.identity.passwords import Password
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.resp import requests
from keyfence.resp.profile import Profile
from keyfence.session.conversation import ABORT_MARKER, ROOM
from keyfence.session.handlers.transactions import MAX_EFFECTS
from keyfence.session.reply_queue import MAX_INSPECTED
from keyfence.session.routing import STAY
from keyfence.session.session import Session
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    ROUTE,
    Told,
    at_barrier,
    cmd,
    identities,
    is_refusal,
    judge,
    observed,
    passed,
    replies,
    sent,
    session,
)

OBSERVE = [ModeRule("observe")]
PUSH = b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n"


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


def test_an_observed_violation_passes_unchanged_and_is_told() -> None:
    told = Told()
    one = observed(told=told)
    one.from_client(REFUSED)
    assert passed(one) == REFUSED
    assert sent(one) == b""
    assert told.found == [("CubeProxy", "HSET", "scope.write", "observed")]
    assert told.commands == [("CubeProxy", "HSET", "forwarded")]


@pytest.mark.parametrize("nothing", [b"*0\r\n", b"*-1\r\n", b"\r\n", b"\n", b"   \r\n"])
def test_a_request_without_a_reply_is_not_forwarded(nothing: bytes) -> None:
    one = session()
    one.from_client(nothing + ADMITTED + nothing + ADMITTED + nothing)
    assert passed(one) == ADMITTED * 2
    assert one.outstanding == 2


def test_an_inline_command_is_judged_like_any_other() -> None:
    one = session()
    one.from_client(b"HSET " + ROUTE + b" HostIP 10.0.0.1\r\nhgetall '" + ROUTE + b"'\n")
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b"hgetall '" + ROUTE + b"'\n"


def test_what_a_client_words_never_becomes_a_label() -> None:
    told = Told()
    one = observed(told=told)
    one.from_client(cmd("EVIL.LABEL", "x") + cmd("\r\n", "y"))
    assert {command for _, command, _ in told.commands} == {"other"}
    assert {command for _, command, _, _ in told.found} == {"other"}


def test_each_command_is_counted_once() -> None:
    told = Told()
    one = session(told=told)
    for words in ("MULTI", "SUBSCRIBE x", "AUTH u p", "CLIENT REPLY OFF", "EXEC"):
        one.from_client(cmd(words))
    one.from_upstream(b"+OK\r\n-ERR arity\r\n+QUEUED\r\n-ERR arity\r\n-EXECABORT\r\n")
    at_barrier(one)
    one.from_client(cmd("AUTH u p"))
    assert told.commands == [
        ("CubeProxy", "MULTI", "forwarded"),
        ("CubeProxy", "SUBSCRIBE", "refused"),
        ("CubeProxy", "AUTH", "forwarded"),
        ("CubeProxy", "CLIENT REPLY", "refused"),
        ("CubeProxy", "EXEC", "forwarded"),
        ("CubeProxy", "AUTH", "forwarded"),
    ]


# -- transactions


def in_multi(one: Session) -> Session:
    one.from_client(cmd("MULTI"))
    assert passed(one) == cmd("MULTI")
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b"+OK\r\n"
    return one


def test_the_keys_of_a_transaction_share_a_slot_where_the_policy_says_so() -> None:
    loaded = parse_policy(
        "policy: p\nservices: [CubeProxy]\ncluster: true\n"
        "scopes: {all: {prefix: 'k', writers: [CubeProxy], unregistered: allow}}\n"
    )
    cluster = Authorizer(loaded, Modes([ModeRule("enforce")], loaded.services))
    one = in_multi(session(in_force=InForce(cluster)))
    one.from_client(cmd("GET k:{a}:1") + cmd("GET k:{a}:2") + cmd("GET k:{b}:1") + cmd("EXEC"))
    assert passed(one) == cmd("GET k:{a}:1") + cmd("GET k:{a}:2") + ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"+QUEUED\r\n+QUEUED\r\n-ERR arity\r\n-EXECABORT no\r\n")
    assert is_refusal(replies(sent(one))[2], "slot.cross")
    one.from_client(cmd("GET k:{b}:1"))  # the next one begins anew
    assert passed(one) == cmd("GET k:{b}:1")


def test_a_refusal_in_a_transaction_spoils_it() -> None:
    one = in_multi(session())
    one.from_client(ADMITTED + REFUSED + cmd("EXEC"))
    assert passed(one) == ADMITTED + ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"+QUEUED\r\n-ERR wrong number of arguments for 'echo' command\r\n-EXECABORT Tr")
    one.from_upstream(b"ansaction discarded\r\n")
    queued, refusal, abort = replies(sent(one))
    assert queued == b"+QUEUED\r\n"
    assert is_refusal(refusal, "scope.write")
    assert abort == b"-EXECABORT Transaction discarded\r\n"
    one.from_client(REFUSED)
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b""


def test_an_end_that_redis_refuses_ends_no_transaction() -> None:
    one = in_multi(session())
    one.from_client(cmd("discard x y") + REFUSED)
    assert passed(one) == cmd("discard x y") + ABORT_MARKER


@pytest.mark.parametrize("end", ["EXEC", "exec", "DisCard", "RESET"])
def test_whatever_ends_a_transaction_does_so_in_any_case(end: str) -> None:
    one = in_multi(session())
    one.from_client(cmd(end))
    passed(one)
    one.from_upstream(b"+RESET\r\n" if end == "RESET" else b"+OK\r\n")
    sent(one)
    one.from_client(REFUSED)
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b""


def test_a_multi_that_redis_refuses_begins_none() -> None:
    one = session()
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"-NOAUTH Authentication required.\r\n")
    passed(one)
    one.from_client(cmd("AUTH", "master", "pw"))
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"


def test_the_reply_to_an_earlier_multi_ends_no_later_one() -> None:
    one = session()
    one.from_client(cmd("MULTI") + cmd("EXEC") + cmd("MULTI"))
    one.from_upstream(b"-NOPERM\r\n-ERR EXEC without MULTI\r\n")
    passed(one)
    one.from_client(REFUSED)
    assert passed(one) == ABORT_MARKER


def test_a_transaction_keeps_the_policy_that_it_began_with() -> None:
    """Trap 5: a reload between queueing and EXEC."""
    in_force = InForce(judge(ModeRule("observe")))
    one = session(in_force=in_force)
    in_multi(one)
    in_force.judge = judge()
    one.from_client(REFUSED)
    assert passed(one) == REFUSED
    one.from_client(cmd("EXEC") + REFUSED)
    assert passed(one) == cmd("EXEC")
    one.from_upstream(b"+QUEUED\r\n*1\r\n:1\r\n")
    assert is_refusal(replies(sent(one))[-1], "scope.write")


# -- who it is


def test_a_command_behind_auth_is_judged_as_who_it_turns_out_to_be() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + REFUSED)
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+O")
    assert passed(one) == sent(one) == b""
    one.from_upstream(b"K\r\n")
    assert sent(one) == b"+OK\r\n"
    assert passed(one) == REFUSED  # CubeMaster may


def test_a_command_behind_a_failed_auth_is_judged_as_who_it_was() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + REFUSED + ADMITTED)
    passed(one)
    one.from_upstream(b"-WRONGPASS invalid username-password pair\r\n")
    wrong, refusal = replies(sent(one))
    assert wrong.startswith(b"-WRONGPASS")
    assert is_refusal(refusal, "scope.write")
    assert passed(one) == ADMITTED


def test_two_auths_in_a_row_wait_for_each_other() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + cmd("AUTH", "proxy", "pw") + REFUSED)
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == cmd("AUTH", "proxy", "pw")
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == b""
    assert is_refusal(replies(sent(one))[-1], "scope.write")


def test_the_reply_to_multi_lets_nothing_past_auth() -> None:
    one = session("CubeMaster")
    one.from_client(cmd("MULTI") + cmd("EXEC") + cmd("AUTH", "proxy", "pw") + REFUSED)
    one.from_upstream(b"+OK\r\n*0\r\n")
    assert passed(one) == cmd("MULTI") + cmd("EXEC") + cmd("AUTH", "proxy", "pw")
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == b""
    assert is_refusal(replies(sent(one))[-1], "scope.write")


@pytest.mark.parametrize(
    "reply", [b"%1\r\n+proto\r\n:3\r\n", b"|1\r\n+a\r\n:1\r\n%1\r\n+proto\r\n:3\r\n", PUSH + b"*0\r\n"]
)
def test_hello_authenticates_too(reply: bytes) -> None:
    one = session()
    one.from_client(cmd("HELLO", 3, "AUTH", "master", "pw") + REFUSED)
    passed(one)
    for at in range(len(reply)):
        one.from_upstream(reply[at : at + 1])
    assert sent(one) == reply
    assert one.service == "CubeMaster"
    assert passed(one) == REFUSED


@pytest.mark.parametrize(
    ("hello", "reply"),
    [
        ("HELLO 3 AUTH proxy pw BOGUS", b"-ERR Syntax error in HELLO option 'BOGUS'\r\n"),
        ("HELLO 3 AUTH proxy pw SETNAME bad!", b"-ERR Client names cannot contain spaces\r\n"),
        ("HELLO 3 AUTH proxy pw AUTH x y", b"-WRONGPASS invalid username-password pair\r\n"),
    ],
)
@pytest.mark.parametrize(
    ("told", "service"),
    [
        (b"$5\r\nproxy\r\n", "CubeProxy"),  # Redis 6.2 and 7.0 take one option after the other
        (b"$7\r\ndefault\r\n", "CubeMaster"),  # later ones look at all of them first
        (b"-NOAUTH Authentication required.\r\n", "CubeMaster"),
        (b"-NOPERM no permissions\r\n", None),
    ],
)
def test_after_a_hello_that_may_have_authenticated_redis_is_asked_who_the_client_is(
    hello: str, reply: bytes, told: bytes, service: str | None
) -> None:
    one = session("CubeMaster")
    one.from_client(cmd(hello) + ADMITTED)
    assert passed(one) == cmd(hello)
    one.from_upstream(reply)
    assert sent(one) == reply
    assert passed(one) == cmd("ACL", "WHOAMI")
    one.from_upstream(told)
    assert sent(one) == b""
    if service is None:
        assert one.closing.startswith("identity")
        assert passed(one) == b""
    else:
        assert one.service == service
        assert passed(one) == ADMITTED


def test_a_hello_that_failed_before_any_option_ends_nothing() -> None:
    one = session()
    one.from_client(cmd("HELLO 9 AUTH master pw"))
    one.from_upstream(b"-NOPROTO unsupported protocol version\r\n")
    assert not one.closing
    assert one.service == "CubeProxy"


def test_reset_makes_of_the_client_who_connected() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    one.from_upstream(b"+OK\r\n")
    one.from_client(cmd("RESET") + REFUSED)
    assert passed(one) == cmd("AUTH", "master", "pw") + cmd("RESET")
    one.from_upstream(b"+RESET\r\n")
    assert passed(one) == b""
    ok, reset, refusal = replies(sent(one))
    assert (ok, reset) == (b"+OK\r\n", b"+RESET\r\n")
    assert is_refusal(refusal, "scope.write")


def test_after_reset_the_upstreams_login_and_database_are_restored() -> None:
    login = [cmd("AUTH", "svc", "pw"), cmd("SELECT", 2)]
    one = session(greeting=login)
    one.from_client(cmd("RESET") + ADMITTED)
    assert passed(one) == cmd("RESET")
    one.from_upstream(b"+RESET\r\n")
    assert passed(one) == login[0] + login[1] + ADMITTED
    one.from_upstream(b"+OK\r\n+OK\r\n*0\r\n")
    assert sent(one) == b"+RESET\r\n*0\r\n"


def test_a_login_that_fails_after_reset_ends_the_session() -> None:
    one = session(greeting=[cmd("SELECT", 2)])
    one.from_client(cmd("RESET") + ADMITTED)
    one.from_upstream(b"+RESET\r\n-ERR DB index is out of range\r\n*0\r\n")
    assert sent(one) == b"+RESET\r\n"
    assert one.closing.startswith("upstream")


def test_unidentified_clients_may_send_little() -> None:
    """As Redis before AUTH: ten arguments of 16 KiB (I7)."""
    one = session("unknown")
    one.from_client(b"*2\r\n$3\r\nGET\r\n$16385\r\n")
    assert sent(one) == b"-ERR Protocol error: unauthenticated bulk length\r\n"
    assert one.closing.startswith("protocol error")
    two = session("unknown")
    two.from_client(b"*11\r\n")
    assert sent(two) == b"-ERR Protocol error: unauthenticated multibulk length\r\n"


def test_one_that_identifies_itself_may_send_more_in_the_same_breath() -> None:
    big = cmd("HSET", ROUTE, "HostIP", "10.0.0.1", *(word for n in range(20) for word in (f"{n}", "1")))
    one = session("unknown", rules=[ModeRule("observe", "command.forbidden"), ModeRule("enforce")])
    one.from_client(cmd("AUTH", "master", "pw") + big)
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == big
    one.from_client(cmd("RESET"))
    one.from_upstream(b":1\r\n+RESET\r\n")
    sent(one)
    one.from_client(big)
    assert sent(one) == b"-ERR Protocol error: unauthenticated multibulk length\r\n"


def test_unidentified_clients_that_are_only_observed_may_send_as_much_as_others() -> None:
    one = observed("unknown")
    one.from_client(cmd("SET", "k", b"x" * 100_000))
    assert len(passed(one)) > 100_000


# -- what ends a session


def test_nothing_behind_quit_is_judged_or_answered() -> None:
    told = Told()
    one = session(told=told)
    one.from_client(ADMITTED + cmd("QUIT") + ADMITTED + REFUSED)
    one.from_client(b"garbage behind it")
    assert passed(one) == ADMITTED + cmd("QUIT")
    one.from_upstream(b"*0\r\n+OK\r\n")
    assert sent(one) == b"*0\r\n+OK\r\n"
    assert one.closing == "QUIT"
    assert len(told.commands) == 2


@pytest.mark.parametrize("attack", [b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", b"hOsT: x\r\n"])
@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_http_is_hung_up_on(attack: bytes, mode: str) -> None:
    one = session(rules=[ModeRule(mode)])  # type: ignore[arg-type]
    one.from_client(attack + ADMITTED)
    assert one.closing.startswith("HTTP")
    assert passed(one) == sent(one) == b""


def test_a_protocol_error_is_told_behind_the_replies_that_are_due() -> None:
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


def test_garbage_in_place_of_the_reply_to_auth_changes_nobodys_name() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + REFUSED)
    passed(one)
    one.from_upstream(b"OK\r\n")
    assert one.closing
    assert one.service == "CubeProxy"
    assert passed(one) == sent(one) == b""


def test_a_reply_that_nothing_asked_for_reaches_nobody() -> None:
    one = session()
    one.from_client(ADMITTED)
    one.from_upstream(b"*0\r\n$6\r\nsecret\r\n")
    assert one.closing.startswith("upstream sent")
    assert sent(one) == b"*0\r\n"


def test_a_reply_to_auth_that_has_no_end_is_not_kept() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    one.from_upstream(b"$%d\r\n" % (MAX_INSPECTED * 2) + b"x" * MAX_INSPECTED)
    assert one.closing.startswith("upstream sent")


# -- pushes


def test_pushes_pass_between_replies_and_while_nothing_is_asked() -> None:
    one = session()
    one.from_upstream(PUSH)
    assert sent(one) == PUSH
    one.from_client(ADMITTED * 2)
    one.from_upstream(PUSH + b":1\r\n" + PUSH + b":2\r\n" + PUSH)
    assert sent(one) == PUSH + b":1\r\n" + PUSH + b":2\r\n" + PUSH
    assert one.outstanding == 0
    assert not one.closing


@pytest.mark.parametrize("at", range(1, len(PUSH)))
def test_an_answer_made_here_never_lands_inside_of_a_push(at: int) -> None:
    one = session()
    one.from_upstream(PUSH[:at])
    one.from_client(REFUSED + ADMITTED + REFUSED)
    assert sent(one) == PUSH[:at]
    one.from_upstream(PUSH[at:] + b":1\r\n")
    first, second, third, last = replies(PUSH[:at] + sent(one))
    assert (first, third) == (PUSH, b":1\r\n")
    assert is_refusal(second, "scope.write")
    assert is_refusal(last, "scope.write")


def test_a_protocol_error_waits_for_the_end_of_a_push() -> None:
    one = session()
    one.from_upstream(PUSH[:5])
    one.from_client(b"*x\r\n")
    assert sent(one) == PUSH[:5]
    assert not one.closing
    one.from_upstream(PUSH[5:])
    assert replies(PUSH[:5] + sent(one))[1].startswith(b"-ERR Protocol error")
    assert one.closing


def test_pushes_pass_a_reply_that_is_replaced() -> None:
    one = in_multi(session())
    one.from_client(REFUSED)
    one.from_upstream(PUSH + b"-ERR wrong" + b" number\r\n")
    push, refusal = replies(sent(one))
    assert push == PUSH
    assert is_refusal(refusal, "scope.write")


# -- what can't be followed

OPAQUE = [
    "PSYNC ? -1",
    "SYNC",
    "replconf ack 1",
    "SCRIPT DEBUG YES",
    "script debug sync",
]


@pytest.mark.parametrize("words", OPAQUE)
def test_what_cant_be_followed_is_passed_unread_in_observe(words: str) -> None:
    told = Told()
    one = observed(told=told)
    one.from_client(cmd(words) + REFUSED)
    assert one.opaque
    assert passed(one) == cmd(words) + REFUSED
    one.from_upstream(b"anything")
    one.from_client(b"at all")
    assert sent(one) == b"anything"
    assert passed(one) == b"at all"
    assert "session.opaque" in [rule for _, _, rule, _ in told.found]
    assert len(told.sessions) == 1


@pytest.mark.parametrize("words", OPAQUE)
def test_what_cant_be_followed_is_refused_in_enforce(words: str) -> None:
    one = session(rules=[ModeRule("enforce", "session.opaque"), ModeRule("observe")])
    one.from_client(cmd(words) + ADMITTED)
    assert is_refusal(sent(one), "session.opaque")
    assert passed(one) == ADMITTED
    assert not one.opaque


def test_a_script_debugger_that_is_refused_leaves_the_session_as_it_is() -> None:
    one = in_multi(observed())
    one.from_client(cmd("SCRIPT DEBUG YES") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n*1\r\n-ERR SCRIPT DEBUG must be called outside a pipeline\r\n")
    assert not one.opaque
    one = observed()
    one.from_client(cmd("SCRIPT DEBUG NO") + cmd("SCRIPT DEBUG") + ADMITTED)
    assert not one.opaque


def test_a_session_turns_opaque_only_once_its_replies_are_in() -> None:
    one = observed()
    one.from_client(ADMITTED + ADMITTED + cmd("SYNC") + REFUSED)
    assert passed(one) == ADMITTED * 2
    assert one.holds_back
    one.from_client(b"PI")
    one.from_upstream(b":1\r\n")
    assert passed(one) == b""
    one.from_upstream(b":2\r\n" + PUSH)
    assert passed(one) == cmd("SYNC") + REFUSED + b"PI"
    assert sent(one) == b":1\r\n:2\r\n" + PUSH
    assert one.opaque


def test_who_authenticates_inside_multi_is_another_once_exec_has_said_so() -> None:
    one = in_multi(session())
    one.from_client(cmd("PING") + cmd("AUTH", "master", "pw") + cmd("EXEC") + REFUSED)
    one.from_upstream(b"+QUEUED\r\n" * 2)
    assert one.service == "CubeProxy"
    one.from_upstream(b"*2\r\n+PONG\r\n+OK\r\n")
    assert at_barrier(one) == cmd("PING") + cmd("AUTH", "master", "pw") + cmd("EXEC")
    assert one.service == "CubeMaster"
    assert passed(one) == REFUSED


@pytest.mark.parametrize(
    "answer",
    [
        b"*-1\r\n",
        b"_\r\n",
        b"-EXECABORT\r\n",
        b"*2\r\n+PONG\r\n-WRONGPASS\r\n",
        b"*2\r\n*1\r\n+OK\r\n-ERR\r\n",
    ],
)
def test_who_fails_to_authenticate_inside_multi_stays_who_he_is(answer: bytes) -> None:
    one = in_multi(session())
    one.from_client(cmd("PING") + cmd("AUTH", "master", "pw") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n" * 2 + answer)
    assert at_barrier(one)
    assert one.service == "CubeProxy"
    assert passed(one) == ADMITTED


def test_an_exec_that_lacks_the_answer_to_a_failed_login_ends_the_session() -> None:
    """So Redis 8.0 and Valkey 8.1 answer (redis/redis#15640): what comes next would fill the place."""
    one = in_multi(session())
    one.from_client(cmd("AUTH", "master", "wrong") * 2 + cmd("PING") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n" * 3 + b"*3\r\n+PONG\r\n")
    at_barrier(one)
    assert one.closing.startswith("identity")
    assert passed(one) == b""


def test_what_is_answered_at_once_inside_multi_has_no_place_in_the_answer_of_exec() -> None:
    one = in_multi(session())
    one.from_client(cmd("WATCH", ROUTE) + cmd("MULTI") + cmd("AUTH", "master", "pw") + cmd("EXEC"))
    one.from_upstream(b"-ERR inside\r\n-ERR nested\r\n+QUEUED\r\n*1\r\n+OK\r\n")
    at_barrier(one)
    assert one.service == "CubeMaster"


def test_the_protocol_may_change_inside_multi() -> None:
    one = in_multi(observed())
    one.from_client(cmd("HELLO", 3) + cmd("SELECT", 4) + cmd("EXEC"))
    one.from_upstream(b"+QUEUED\r\n+QUEUED\r\n*2\r\n%1\r\n+proto\r\n:3\r\n+OK\r\n")
    assert (one.profile.resp, one.profile.database) == (3, 4)


# -- CLIENT REPLY

REPLY_ON = cmd("CLIENT", "REPLY", "ON")


def switched(mode: str) -> Session:
    one = session()
    one.from_client(cmd("CLIENT", "REPLY", mode))
    assert passed(one) == REPLY_ON
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b""
    return one


def test_with_replies_off_nothing_is_answered_but_everything_is_judged() -> None:
    one = switched("off")
    one.from_client(ADMITTED + REFUSED + cmd("MULTI") + REFUSED + cmd("EXEC") + cmd("CLIENT REPLY OFF"))
    assert passed(one) == ADMITTED + cmd("MULTI") + ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"*0\r\n" + PUSH + b"+OK\r\n-ERR arity\r\n-EXECABORT\r\n")
    assert sent(one) == PUSH
    one.from_client(REPLY_ON + ADMITTED)
    one.from_upstream(b"+OK\r\n*0\r\n")
    assert sent(one) == b"+OK\r\n*0\r\n"


def test_one_reply_is_skipped() -> None:
    one = switched("SKIP")
    one.from_client(ADMITTED * 3)
    one.from_upstream(b"*1\r\n+a\r\n*1\r\n+b\r\n*1\r\n+c\r\n")
    assert sent(one) == b"*1\r\n+b\r\n*1\r\n+c\r\n"


def test_a_refusal_is_skipped_too() -> None:
    one = switched("SKIP")
    one.from_client(REFUSED * 2)
    assert len(replies(sent(one))) == 1


def test_nothing_is_judged_before_redis_has_said_that_replies_may_be_switched_off() -> None:
    one = session()
    one.from_client(cmd("CLIENT REPLY OFF") + ADMITTED)
    assert passed(one) == REPLY_ON
    one.from_upstream(b"-NOAUTH Authentication required.\r\n")
    assert sent(one) == b"-NOAUTH Authentication required.\r\n"
    assert passed(one) == ADMITTED
    one.from_upstream(b"-NOAUTH\r\n")
    assert sent(one) == b"-NOAUTH\r\n"


def test_reset_switches_replies_on() -> None:
    one = switched("OFF")
    one.from_client(cmd("RESET") + ADMITTED)
    one.from_upstream(b"+RESET\r\n*0\r\n")
    assert sent(one) == b"+RESET\r\n*0\r\n"


# -- MONITOR

LINE = b'+1700000000.123456 [0 10.0.0.1:55] "GET" "a"\r\n'


def monitoring() -> Session:
    one = session(rules=OBSERVE)
    one.from_client(cmd("MONITOR"))
    one.from_upstream(b"+OK\r\n" + LINE)
    assert sent(one) == b"+OK\r\n" + LINE
    passed(one)
    return one


def test_lines_of_monitor_come_between_replies() -> None:
    one = monitoring()
    one.from_client(cmd("PING") + cmd("AUTH", "master", "pw") + ADMITTED)
    stream = LINE + b"+PONG\r\n" + LINE + LINE + b"+OK\r\n" + LINE + b"*0\r\n" + LINE
    for at in range(len(stream)):
        one.from_upstream(stream[at : at + 1])
    assert sent(one) == stream
    assert one.service == "CubeMaster"
    assert one.outstanding == 0


def test_a_second_monitor_gets_no_answer() -> None:
    one = monitoring()
    one.from_client(cmd("MONITOR"))
    assert passed(one) == cmd("MONITOR")
    assert one.outstanding == 0


def test_reset_ends_monitor() -> None:
    one = monitoring()
    one.from_client(cmd("RESET"))
    one.from_upstream(LINE + b"+RESET\r\n")
    sent(one)
    one.from_upstream(LINE)
    assert one.closing == "upstream sent a reply that nothing asked for"


def test_lines_of_monitor_are_switched_off_with_the_replies() -> None:
    one = monitoring()
    one.from_client(cmd("CLIENT REPLY OFF"))
    one.from_upstream(LINE + b"+OK\r\n" + LINE)
    assert sent(one) == LINE
    one.from_client(REPLY_ON)
    one.from_upstream(LINE + b"+OK\r\n" + LINE)
    assert sent(one) == LINE + b"+OK\r\n" + LINE


def test_monitor_inside_multi_is_queued_and_never_begins() -> None:
    one = in_multi(observed())
    one.from_client(cmd("MONITOR") + cmd("EXEC"))
    assert passed(one) == cmd("MONITOR") + cmd("EXEC")
    one.from_upstream(b"+QUEUED\r\n*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n")
    assert not one.answers.monitoring


# -- requests too large to be held


def large(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Session:
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(ROOM, "shared_request", 50)
    return session(**options)


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


def test_a_key_too_long_to_be_held_can_not_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    data = cmd("GET", b"cube:v1:shared:sandbox:proxy:" + b"x" * 500)
    one = large(monkeypatch, rules=[ModeRule("enforce", "session.opaque"), ModeRule("observe")])
    in_pieces(one, data, 200)
    assert one.reopen
    assert is_refusal(sent(one), "session.opaque")
    one = large(monkeypatch, rules=OBSERVE)
    in_pieces(one, data, 200)
    assert one.opaque
    assert passed(one) == data


def test_who_loses_the_upstream_in_the_midst_of_a_large_request_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = large(monkeypatch, service="CubeMaster", rules=OBSERVE)
    in_pieces(one, BIG[:3000])
    one.upstream_refused("upstream x is unreachable")
    assert sent(one) == b"-ERR keyfence: upstream x is unreachable\r\n"
    assert one.closing


# -- sharing a connection


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
def test_other_commands_wait_for_what_is_due_and_then_go_on_a_connection_of_their_own(words: str) -> None:
    told = Told()
    one = shared(rules=OBSERVE, told=told)
    one.from_client(ADMITTED + cmd(words) + ADMITTED)
    assert (passed(one), one.counts) == (ADMITTED, [1])
    one.from_shared(b"*0\r\n", 1, True)
    assert not one.route.is_shared
    assert passed(one).startswith(cmd(words))
    assert len(told.commands) >= 2
    assert [name for _, name, _ in told.commands].count("HGETALL") <= 2


def test_greetings_don_t_keep_a_client_from_sharing() -> None:
    one = shared(rules=OBSERVE)
    one.from_client(cmd("HELLO 3") + cmd("CLIENT SETNAME me"))
    assert passed(one) == cmd("HELLO 3") + cmd("CLIENT SETNAME me")
    one.from_upstream(b"%1\r\n+proto\r\n:3\r\n+OK\r\n")
    one.from_client(ADMITTED)
    assert one.route.is_shared
    assert one.profile == Profile(resp=3, name=b"me")
    assert one.route.knows_id


def test_who_blocks_stays_on_his_own_connection_for_a_while() -> None:
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
def test_what_leaves_something_behind_keeps_its_client_for_good(words: str) -> None:
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
def test_a_state_that_ends_is_waited_for(words: str, answers: bytes) -> None:
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


def test_wait_is_about_what_was_written_elsewhere() -> None:
    """Any command brings its connection up to the newest write; nothing is needed once one was sent there."""
    one = shared(rules=OBSERVE)
    one.from_client(cmd("WAIT", 1, 0) * 2)
    assert passed(one) == cmd("PING") + cmd("WAIT", 1, 0) * 2
    one.from_upstream(b"+PONG\r\n:1\r\n:1\r\n")
    assert sent(one) == b":1\r\n:1\r\n"


def test_quit_doesn_t_end_a_shared_connection() -> None:
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


def test_who_gets_large_replies_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROOM, "shared_reply", 100)
    one = shared()
    one.from_client(ADMITTED * 2)
    one.from_shared(b"*1\r\n$500\r\n" + b"x" * 150, 0, False)
    one.from_client(ADMITTED)
    one.from_shared(b"x" * 350 + b"\r\n*0\r\n", 2, True)
    assert not one.route.is_shared
    assert passed(one) == ADMITTED * 3


def test_a_large_request_moves_its_client_too(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch, service="CubeMaster", rules=OBSERVE, sharing=True)
    one.from_client(BIG[:60])
    assert not one.route.is_shared
    in_pieces(one, BIG[60:])
    assert passed(one) == BIG


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
    for still_to_be_tried in (cmd("AUTH", "u", "p"), ADMITTED):
        assert passed(one) == still_to_be_tried
        one.upstream_refused("again")
        assert sent(one) == b"-ERR keyfence: again\r\n"
    one.from_client(ADMITTED)
    assert passed(one) == ADMITTED


def test_a_transaction_whose_multi_failed_is_not_carried_out_in_part() -> None:
    """What comes next from such a client would run outside of the transaction."""
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
def test_a_session_that_is_not_read_gets_one_error_and_ends_without_an_upstream(before: bytes) -> None:
    one = observed()
    one.from_client(before + cmd("SYNC"))
    one.upstream_refused("upstream x is unreachable")
    assert sent(one) == b"-ERR keyfence: upstream x is unreachable\r\n" * (2 if before else 1)
    assert one.closing.startswith("upstream")


def test_quit_is_answered_and_done_without_an_upstream() -> None:
    one = session()
    one.from_client(cmd("QUIT"))
    one.upstream_refused("upstream x is unreachable")
    assert len(replies(sent(one))) == 1
    assert one.closing == "QUIT"


def test_who_awaits_a_reply_is_closed_without_a_word_when_the_upstream_goes() -> None:
    one = session()
    one.from_client(ADMITTED + REFUSED + ADMITTED)
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing == "upstream x is gone"


@pytest.mark.parametrize(
    "part", [b"$10\r\nabc", b"*2\r\n:1\r\n", b"+O", b"$", b"|1\r\n+a\r\n:1\r\n", PUSH[:9]]
)
def test_nothing_is_said_in_the_midst_of_a_reply_when_the_upstream_goes(part: bytes) -> None:
    one = session()
    one.from_client(ADMITTED + ADMITTED)
    one.from_upstream(part)
    assert sent(one) == part
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing


def test_half_a_reply_to_auth_is_not_an_identity() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    one.from_upstream(b"+OK\r")
    one.upstream_lost("upstream x is gone")
    assert one.service == "CubeProxy"
    assert sent(one) == b""


def test_an_idle_session_ends_with_its_upstream_without_a_word() -> None:
    one = session()
    one.from_client(ADMITTED)
    one.from_upstream(b"*0\r\n")
    sent(one)
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing


# -- limits


def test_too_many_answers_that_wait_stop_the_reading_until_replies_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ROOM, "slots", 20_000)
    monkeypatch.setattr(ROOM, "backlog", 1_000)
    told = Told()
    one = session(told=told)
    one.from_client(REFUSED)
    flood = REFUSED * (20_000 // len(sent(one)) * 3)
    one.from_client(ADMITTED)
    one.from_client(flood)
    assert len(told.commands) < len(flood) // len(REFUSED) / 2
    assert not one.wants_input()
    assert one.holds_back
    one.from_upstream(b"*0\r\n")
    assert one.wants_input()
    assert len(told.commands) == len(flood) // len(REFUSED) + 2
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
    assert one.answers.slots.held_bytes <= ROOM.slots + 1024
    assert one.backlog() <= ROOM.backlog + 100 * len(cmd(words))


def test_a_transaction_keeps_only_so_many_commands_that_change_the_session() -> None:
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
    """Only who reads on notices that the client has gone; the rest stays in its socket."""
    one = session()
    one.from_client(cmd("AUTH", "master", "pw"))
    assert one.wants_input()
    one.from_client(ADMITTED * (ROOM.backlog // len(ADMITTED) + 1))
    assert not one.wants_input()
    one.from_upstream(b"+OK\r\n")
    assert one.wants_input()


def test_the_time_of_a_decision_is_told_for_a_sample() -> None:
    class Timed(Told):
        times = 0

        def decided(self, _seconds: float) -> None:
            self.times += 1

    told = Timed()
    session(told=told).from_client(ADMITTED * 129)
    assert told.times == 3


# -- users that keyfence knows by itself


def with_passwords(told: Told | None = None, sharing: bool = False) -> Session:
    digest = hashlib.sha256(b"right").digest()
    known = dataclasses.replace(identities(), passwords={"mine": Password([digest], "CubeMaster")})
    fixed = judge()
    return Session(InForce(fixed), known, "CubeProxy", "10.0.0.9:5", told or Told(), sharing=sharing)


@pytest.mark.parametrize("sharing", [False, True])
def test_redis_never_sees_the_password_of_a_user_that_keyfence_checks(sharing: bool) -> None:
    one = with_passwords(sharing=sharing)
    one.from_client(ADMITTED + cmd("AUTH mine right") + REFUSED)
    assert passed(one) == ADMITTED + REFUSED
    assert one.service == "CubeMaster"
    if sharing:
        one.from_shared(b"*0\r\n", 1, True)
        one.from_shared(b":1\r\n", 1, True)
    else:
        one.from_upstream(b"*0\r\n:1\r\n")
    assert sent(one) == b"*0\r\n+OK\r\n:1\r\n"


def test_a_wrong_password_changes_nothing_and_is_counted() -> None:
    told = Told()
    one = with_passwords(told)
    one.from_client(cmd("AUTH mine wrong") + REFUSED)
    wrong, refused = replies(sent(one))
    assert wrong == b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    assert is_refusal(refused, "scope.write")
    assert told.logins_failed == 1


def test_hello_goes_to_redis_without_the_password_that_keyfence_has_checked() -> None:
    one = with_passwords()
    one.from_client(cmd("HELLO 3 AUTH mine right SETNAME x") + REFUSED)
    assert passed(one) == cmd("HELLO 3 SETNAME x")
    one.from_upstream(b"%1\r\n+proto\r\n:3\r\n")
    assert one.service == "CubeMaster"
    assert one.profile == Profile(resp=3, name=b"x")
    assert passed(one) == REFUSED


@pytest.mark.parametrize("words", ["HELLO 3 AUTH mine wrong", "HELLO 3 AUTH mine right AUTH other x"])
def test_a_hello_with_a_wrong_password_never_reaches_redis(words: str) -> None:
    one = with_passwords()
    one.from_client(cmd(words))
    assert passed(one) == b""
    assert sent(one).startswith(b"-WRONGPASS")
    assert one.service == "CubeProxy"


def test_a_protocol_that_redis_does_not_speak_comes_before_the_password() -> None:
    one = with_passwords()
    one.from_client(cmd("HELLO 9 AUTH mine right"))
    assert passed(one) == cmd("HELLO 9")
    one.from_upstream(b"-NOPROTO unsupported protocol version\r\n")
    assert one.service == "CubeProxy"


def test_a_database_that_needs_a_login_is_selected_behind_it() -> None:
    fixed = judge()
    select = cmd("SELECT", 2)
    one = Session(
        InForce(fixed),
        identities(),
        "CubeProxy",
        "10.0.0.9:5",
        Told(),
        greeting=[select],
        database=2,
        selects_later=True,
    )
    one.from_client(cmd("AUTH master pw") + ADMITTED)
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == cmd("AUTH master pw") + select + ADMITTED
    one.from_upstream(b"+OK\r\n*0\r\n")
    assert sent(one) == b"+OK\r\n*0\r\n"
    one.from_client(cmd("RESET"))
    one.from_upstream(b"+RESET\r\n-NOAUTH Authentication required.\r\n")
    assert sent(one) == b"+RESET\r\n"
    assert not one.closing


def test_what_each_command_of_a_kind_breaks_is_told_for_each_of_them() -> None:
    told = Told()
    it = observed("CubeProxy", told)
    good, bad = cmd("HSET", ROUTE, "HostIP", "10.0.0.1"), cmd("HSET", ROUTE, "HostIP", "nowhere")
    it.from_client(good * 3 + bad + good * 2 + ADMITTED + good)
    write = ("CubeProxy", "HSET", "scope.write", "observed")
    value = ("CubeProxy", "HSET", "value.invalid", "observed")
    assert sorted(told.found) == [write] * 7 + [value]
    assert told.commands.count(("CubeProxy", "HSET", "forwarded")) == 7


def test_what_is_enforced_is_never_only_repeated() -> None:
    told = Told()
    it = session("CubeProxy", told=told)
    it.from_client(cmd("HSET", ROUTE, "HostIP", "10.0.0.1") * 3)
    assert it.to_upstream == []
    assert told.commands == [("CubeProxy", "HSET", "refused")] * 3
