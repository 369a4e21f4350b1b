"""A reply that the client may have shaped stays in doubt until a barrier is passed or its connection is given
up."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.resp import requests
from keyfence.session.conversation.conversation import ROOM, Doubt
from keyfence.session.conversation.routing import STAY
from keyfence.session.conversation.states import State
from tests.session.sessions import (
    ADMITTED,
    ROUTE,
    Session,
    at_barrier,
    authorizer_with,
    cmd,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

DIGITS = "a" * 40
SHARED = cmd("EVALSHA", DIGITS, "0")
OTHER = cmd("EVALSHA", "b" * 40, "0")
PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"
UNREACHABLE = b"-ERR keyfence: gone\r\n"


def sharing_scripts() -> InForce:
    """Everything is observed, and one script may go on a shared connection."""
    text = "policy: p\nowner: {team: t, contact: c}\nservices: [CubeProxy]\nclaims: ['a:']\n"
    text += f"scripts: {{one: {{sha1: {DIGITS}, keys: 0, shared: yes}}}}\n"
    policy = parse_policy(text)
    return InForce(Authorizer(policy, Modes([ModeRule("observe")], policy.services)))


@pytest.mark.parametrize("behind", [OTHER, cmd("AUTH u p"), cmd("CLIENT ID"), ADMITTED + OTHER])
def test_a_shared_script_stays_in_doubt_whatever_comes_behind_it(behind: bytes) -> None:
    one = session(in_force=sharing_scripts(), sharing=True)
    one.from_client(SHARED + behind)
    assert passed(one) in (SHARED, SHARED + ADMITTED)
    assert one.route.is_shared
    assert one.shapeable


ANSWERED_TWICE = [
    "SET s:t:a v IFDEQ zz GET",
    "set s:t:a v get ifdne zz",
    "SET s:t:a v EX 60 GET IFDEQ 0123456789abcdefa",
    "SET s:t:a v IFDNE 0123456789abcdeg GET",
    "SET s:t:a v IFDEQ GET GET",
]
ANSWERED_ONCE = [
    "SET s:t:a v IFDEQ 0123456789abcdEF GET",
    "SET s:t:a v IFDNE zz",
    "SET s:t:a v IFEQ zz GET",
    "SET s:t:a IFDEQ GET",
]
READ = cmd("GET s:t:a")
ANY_STRING = """policy: p
owner: {team: t, contact: c}
services: [app]
claims: ["s:"]
scopes: {s: {prefix: "s:", writers: [app], unregistered: allow}}
"""


def sharing_app(clock: Callable[[], float] = time.monotonic) -> Session:
    policy = parse_policy(ANY_STRING)
    held = InForce(Authorizer(policy, Modes([ModeRule("enforce")], policy.services)))
    return session("app", in_force=held, sharing=True, clock=clock)


@pytest.mark.parametrize("text", ANSWERED_TWICE)
def test_a_command_that_redis_answers_twice_never_takes_a_shared_connection(text: str) -> None:
    now = [0.0]
    one = sharing_app(lambda: now[0])
    for _ in range(3):  # the decision cache learns nothing of it
        one.from_client(READ + cmd(text))
        assert passed(one) == READ
        one.from_shared(b"$-1\r\n", 1, True)
        assert passed(one) == cmd(text)
        assert not one.route.is_shared
        assert not one.route.pinned
        assert one.talk.doubt == Doubt.OPEN
        one.from_upstream(b"$-1\r\n")
        now[0] += STAY + 1
        one.settle()
        assert one.reopen


@pytest.mark.parametrize("text", ANSWERED_ONCE)
def test_its_like_with_one_reply_may_share_a_connection(text: str) -> None:
    one = sharing_app()
    for _ in range(3):
        one.from_client(cmd(text))
        assert passed(one) == cmd(text)
        assert one.route.is_shared
        assert not one.shapeable


def test_a_whole_transaction_with_such_a_command_takes_the_client_s_own_connection() -> None:
    one = sharing_app()
    transaction = cmd("MULTI") + cmd(ANSWERED_TWICE[0]) + cmd("EXEC")
    one.from_client(transaction)
    assert not one.route.is_shared
    assert passed(one) == transaction
    assert one.talk.doubt == Doubt.OPEN


LOGINS = [cmd("AUTH master pw"), cmd("HELLO 3 AUTH master pw")]


@pytest.mark.parametrize("login", LOGINS)
def test_a_second_reply_of_which_keyfence_does_not_know_is_not_taken_for_a_login(login: bytes) -> None:
    one = session()
    one.from_client(ADMITTED * 2 + login)
    assert passed(one) == ADMITTED * 2
    one.from_upstream(b"*0\r\n-ERR and one more\r\n")
    assert login not in passed(one)
    one.from_upstream(b"*0\r\n")
    assert one.closing == "identity: the replies are out of step with the requests"
    assert one.service == "CubeProxy"


@pytest.mark.parametrize("login", LOGINS)
def test_a_login_behind_other_requests_waits_for_one_barrier(login: bytes) -> None:
    one = session()
    one.from_client(ADMITTED + login + login)
    one.from_upstream(b"*0\r\n")
    assert at_barrier(one) == ADMITTED
    assert passed(one) == login
    one.from_upstream(b"+OK\r\n" if login.startswith(b"*3") else b"%0\r\n")
    assert passed(one) == login  # nothing was sent between the two
    assert one.service == "CubeMaster"


@pytest.mark.parametrize(
    "greeting", ["AUTH master pw", "HELLO 3 AUTH master pw", "CLIENT SETINFO LIB-NAME x", "SELECT 0"]
)
def test_a_login_among_the_first_requests_of_a_client_needs_no_barrier(greeting: str) -> None:
    one = session()
    one.from_client(cmd(greeting) + LOGINS[0])
    assert passed(one).startswith(cmd(greeting))
    one.from_upstream(b"%0\r\n" if greeting.startswith("HELLO") else b"+OK\r\n")
    assert passed(one) in (LOGINS[0], b"")
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"


def test_a_doubt_ends_only_with_its_connection() -> None:
    now = [0.0]
    one = observed(sharing=True, clock=lambda: now[0])
    one.from_client(OTHER)
    assert passed(one) == OTHER
    one.from_upstream(b":1\r\n")
    assert one.talk.doubt == Doubt.OPEN
    now[0] = STAY + 1
    one.from_client(cmd("AUTH u p"))
    assert passed(one) == cmd("AUTH u p")  # without a barrier, since it goes on a new connection
    assert one.reopen
    assert not one.route.is_shared


def test_a_push_that_came_in_part_is_completed_when_sharing_ends() -> None:
    one = session(sharing=True)
    one.from_kept(PUSH[:9])
    one.from_client(ADMITTED)
    one.take_own(for_good=False)
    assert passed(one) == ADMITTED
    one.from_upstream(PUSH[9:] + b"*0\r\n")
    assert sent(one) == PUSH + b"*0\r\n"
    assert not one.closing


def test_an_exec_that_waits_for_a_barrier_gets_one_error_without_a_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large request was refused in the transaction, so the connection is replaced."""
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(ROOM, "shared_request", 50)
    one = session(in_force=InForce(authorizer_with(ModeRule("enforce", "scope.write"), ModeRule("observe"))))
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    one.from_client(cmd("SELECT 0") + OTHER)
    one.from_upstream(b"+QUEUED\r\n" * 2)
    large = cmd("HSET", ROUTE, "HostIP", "x" * 1000)
    for at in range(0, len(large), 64):
        one.from_client(large[at : at + 64])
    assert one.reopen
    passed(one)
    sent(one)
    one.from_client(cmd("EXEC"))
    one.upstream_refused("gone")
    refused, exec_ = replies(sent(one))
    assert is_refusal(refused, "scope.write")
    assert exec_ == UNREACHABLE


def test_a_request_that_waits_for_a_barrier_gets_its_error_without_a_connection() -> None:
    one = observed()
    one.talk.doubt_replies()
    one.from_client(cmd("AUTH u p"))
    assert b"HELLO" in passed(one)
    one.upstream_refused("gone")
    assert sent(one) == UNREACHABLE
    assert one.state == State.READING


def test_a_client_whose_request_waits_for_other_processes_awaits_more() -> None:
    """So a half-closed client and a process that ends wait for it too."""
    one = session()
    one.context.ids.is_all = False
    one.from_client(cmd("CLIENT TRACKING ON REDIRECT 5"))
    assert one.question is not None
    assert one.awaits_more
    assert one.holds_back
