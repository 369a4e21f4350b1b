"""A client tries to be taken for another service, or to have commands carried out that were not evaluated."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from keyfence.identity.passwords import Password
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.resp import encode, requests
from keyfence.resp.profile import Profile
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.conversation import ABORT_MARKER, ROOM
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    RecordingObserver,
    Session,
    at_barrier,
    authorizer_with,
    cmd,
    granting,
    identities,
    in_multi,
    is_refusal,
    large,
    observed,
    passed,
    replies,
    sent,
    session,
)

OBSERVE = [ModeRule("observe")]
AUTH = cmd("AUTH", "master", "wrong")


# -- transactions that Redis and keyfence might see differently


@pytest.mark.parametrize(
    ("end", "refusal"),
    [
        ("DISCARD", b"-NOPERM this user has no permissions to run the 'discard' command\r\n"),
        ("RESET", b"-ERR unknown command 'RESET'\r\n"),  # before Redis 6.2, or renamed
    ],
)
def test_a_queued_auth_authenticates_nobody_inside_the_transaction(end: str, refusal: bytes) -> None:
    one = in_multi(session())
    one.from_client(cmd(end) + AUTH + REFUSED)
    one.from_upstream(refusal)
    assert one.in_transaction
    one.from_upstream(b"+QUEUED\r\n")
    assert one.service == "CubeProxy"
    assert passed(one) == cmd(end) + AUTH + ABORT_MARKER


@pytest.mark.parametrize("words", ["AUTH master wrong", "HELLO 3 AUTH master wrong"])
def test_only_the_reply_ok_is_a_login(words: str) -> None:
    one = session()
    one.from_client(cmd(words))
    one.from_upstream(b"+QUEUED\r\n")
    assert one.service == "CubeProxy"
    assert one.profile == Profile()


def test_an_exec_of_wrong_arity_ends_the_transaction_where_redis_says_so() -> None:
    one = in_multi(session())
    one.from_client(cmd("EXEC x") + cmd("AUTH", "master", "pw") + REFUSED)
    assert passed(one) == cmd("EXEC x")
    one.from_upstream(b"-EXECABORT Transaction discarded because of: wrong number of arguments\r\n")
    assert not one.in_transaction
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"
    assert passed(one) == REFUSED


def test_auth_behind_a_refused_multi_authenticates() -> None:
    """In one packet: only the reply to MULTI shows whether AUTH is queued."""
    one = session()
    one.from_client(cmd("MULTI") + cmd("AUTH", "master", "pw") + REFUSED)
    one.from_upstream(b"-NOAUTH Authentication required.\r\n")
    assert passed(one) == cmd("MULTI") + cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"
    assert passed(one) == REFUSED


def test_select_behind_a_refused_multi_selects() -> None:
    one = observed()
    one.from_client(cmd("MULTI") + cmd("SELECT 3"))
    one.from_upstream(b"-NOPERM\r\n+OK\r\n")
    assert one.profile.database == 3


def test_a_second_multi_waits_for_the_reply_to_the_first() -> None:
    one = session()
    one.from_client(cmd("MULTI") + cmd("MULTI"))
    one.from_upstream(b"-NOPERM\r\n+OK\r\n")
    assert one.in_transaction


def test_every_queued_command_has_its_element_in_the_reply_to_exec() -> None:
    """Redis before 7.0 finds out about an unknown subcommand only when EXEC runs it."""
    named = granting(*OBSERVE, command="CLIENT MAINT_NOTIFICATIONS")
    one = in_multi(session(in_force=InForce(named)))
    one.from_client(cmd("CLIENT MAINT_NOTIFICATIONS ON") + cmd("SET k v") + AUTH + cmd("EXEC"))
    one.from_upstream(b"+QUEUED\r\n" * 3 + b"*3\r\n-ERR Unknown subcommand\r\n+OK\r\n-WRONGPASS no\r\n")
    assert one.service == "CubeProxy"


def test_a_key_behind_select_is_judged_in_the_database_that_was_selected() -> None:
    one = observed()
    one.from_client(cmd("SELECT 3") + ADMITTED)
    assert passed(one) == cmd("SELECT 3")
    one.from_upstream(b"+OK\r\n")
    assert (one.profile.database, passed(one)) == (3, ADMITTED)


# -- large requests that are not just sent on


def knowing_passwords(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(requests, "LARGE", 100)
    monkeypatch.setattr(ROOM, "shared_request", 50)
    known = dataclasses.replace(
        identities(), passwords={"mine": Password([hashlib.sha256(b"").digest()], "CubeMaster")}
    )
    context = SessionContext(InForce(authorizer_with()), known, RecordingObserver())
    return Session(context, ClientOrigin("CubeProxy", "10.0.0.9:5"))


def streamed(one: Session, request: bytes) -> bytes:
    """Send a request in pieces; what went upstream on the connection that has its beginning."""
    upstream = b""
    for at in range(0, len(request), 90):
        one.from_client(request[at : at + 90])
        if one.reopen:
            break
        upstream += passed(one)
    return upstream


SMUGGLED = b"\r\nSET cube:v1:master:secret x\r\n"
LONG = "x" * 500


@pytest.mark.parametrize(
    "words",
    [
        (b"AUTH", b"mine", LONG.encode()),
        (b"HELLO", b"3", b"AUTH", b"mine", LONG.encode()),
        (b"HELLO", b"3", b"AUTH", b"mine", b"", b"SETNAME", LONG.encode()),
        (b"SELECT", LONG.encode()),
    ],
)
def test_nothing_is_sent_in_place_of_the_rest_of_a_request_whose_beginning_was_sent(
    monkeypatch: pytest.MonkeyPatch, words: tuple[bytes, ...]
) -> None:
    """Redis does not look at the two bytes behind a bulk string: whatever came next would stand for them."""
    one = knowing_passwords(monkeypatch)
    request = encode.command(*words)
    assert request.startswith(streamed(one, request))
    assert one.reopen
    assert one.service == "CubeProxy"
    assert is_refusal(sent(one), "session.opaque")
    one.from_client(cmd("PING", SMUGGLED))
    assert passed(one) == cmd("PING", SMUGGLED)


def test_nothing_is_slipped_into_a_large_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    one = large(monkeypatch, rules=OBSERVE, sharing=True)
    request = encode.command(b"WAIT", LONG.encode(), SMUGGLED)
    assert streamed(one, request) == request


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("words", ["WATCH k", "CLIENT TRACKING ON", "NO.SUCH"])
def test_a_connection_with_a_state_is_never_replaced(
    monkeypatch: pytest.MonkeyPatch, words: str, sharing: bool
) -> None:
    """Redis would forget its watched keys, and run an EXEC that must fail."""
    refusing = [ModeRule("enforce", "scope.write"), ModeRule("observe")]
    one = large(monkeypatch, rules=refusing, sharing=sharing)
    one.from_client(cmd(words))
    one.from_upstream(b"+OK\r\n")
    passed(one), sent(one)
    streamed(one, cmd("HSET", "cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "1" * 500))
    assert not one.reopen
    assert is_refusal(sent(one), "scope.write")
    assert one.closing


def test_a_request_refused_inside_a_transaction_that_watches_aborts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = large(monkeypatch)
    one.from_client(cmd("WATCH", "cube:v1:shared:sandbox:proxy:7c8f"))
    one.from_upstream(b"+OK\r\n")
    sent(one), passed(one)
    in_multi(one)
    streamed(one, cmd("HSET", "cube:v1:shared:sandbox:proxy:7c8f", "HostIP", "1" * 500))
    assert one.reopen
    assert passed(one) == cmd("MULTI") + ABORT_MARKER


def test_a_refused_large_request_leaves_no_part_of_it_for_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upstream turns out to be unreachable while the end of the request waits to be refused."""
    one = large(monkeypatch)
    one.from_client(ADMITTED)
    request = encode.command(b"UNSUBSCRIBE", LONG.encode(), SMUGGLED)
    one.from_client(request[:90])
    one.from_client(request[90:])
    passed(one)
    one.upstream_refused("upstream x is unreachable")
    assert SMUGGLED not in passed(one)


# -- every position


def answer(one: Session, reply: bytes) -> None:
    if one.route.is_shared:
        one.from_shared(reply, 1, True)
    else:
        one.from_upstream(reply)


@pytest.mark.parametrize("sharing", [False, True])
def test_two_logins_in_one_packet_hold_for_the_commands_behind_them_wherever_it_is_split(
    sharing: bool,
) -> None:
    """AUTH, HELLO and RESET among commands, cut at every byte: each command is evaluated for the user of that
    moment."""
    script = [
        (REFUSED, None),
        (cmd("AUTH", "master", "pw"), b"+OK\r\n"),
        (REFUSED, b":1\r\n"),
        (cmd("RESET"), b"+RESET\r\n"),
        (REFUSED, None),
        (cmd("HELLO", "3", "AUTH", "master", "pw"), b"%0\r\n"),
        (REFUSED, b":2\r\n"),
        (cmd("AUTH", "proxy", "pw"), b"+OK\r\n"),
        (REFUSED, None),
    ]
    packet = b"".join(request for request, _ in script)
    expected = b"".join(request for request, reply in script if reply)
    for cut in range(len(packet)):
        one = session(sharing=sharing, clock=lambda: 0.0)
        one.from_client(packet[:cut])
        due = [reply for _, reply in script if reply]
        upstream = b""
        fed = False
        while True:
            new = at_barrier(one)
            new += passed(one)
            upstream += new
            one.counts.clear()
            if new:
                for _ in range(sum(map(new.count, (b"\r\npw\r\n", b"RESET", b"HSET")))):
                    answer(one, due.pop(0))
            elif fed:
                break
            else:
                one.from_client(packet[cut:])
                fed = True
        assert upstream == expected
        got = replies(sent(one))
        assert [is_refusal(reply, "scope.write") for reply in got] == [not reply for _, reply in script]


# -- words that Redis ends at a NUL byte


SPECIAL_NAMES = [
    b"MULTI\0",
    b"multi\0x",
    b"AUTH\0",
    b"SUBSCRIBE\0",
    b"QUIT\0x",
    b"EXEC\0",
    b"MULTI\0" + b"x" * 400,
]


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_behind_a_name_that_only_redis_can_read_an_observed_session_passes_unread(name: bytes) -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(cmd(name, "x") + REFUSED)
    assert one.is_opaque
    assert passed(one) == cmd(name, "x") + REFUSED
    assert observer.sessions == [("CubeProxy", "only Redis knows which command it is")]


@pytest.mark.parametrize("name", SPECIAL_NAMES)
def test_a_name_that_only_redis_can_read_is_refused_where_the_session_must_be_followed(name: bytes) -> None:
    one = session(rules=[ModeRule("enforce", rule="session.opaque"), ModeRule("observe")])
    one.from_client(cmd(name, "x"))
    assert passed(one) == b""
    assert is_refusal(sent(one), "session.opaque")


def test_a_transaction_in_hand_does_not_end_at_a_name_that_only_redis_can_read() -> None:
    one = session(sharing=True)
    one.from_client(cmd("MULTI") + ADMITTED + cmd(b"EXEC\0") + AUTH + cmd("EXEC"))
    assert passed(one) == cmd("MULTI") + ADMITTED + ABORT_MARKER
    assert one.in_transaction


@pytest.mark.parametrize("subcommand", [b"REPLY", b"reply\0x"])
def test_redis_says_whether_it_knows_client_reply_as_the_client_writes_it(subcommand: bytes) -> None:
    one = session()
    one.from_client(cmd(b"CLIENT", subcommand, b"off\0"))
    assert passed(one) == cmd(b"CLIENT", subcommand, b"ON")
    one.from_upstream(b"-ERR unknown subcommand\r\n")
    one.from_client(ADMITTED)
    one.from_upstream(b"*0\r\n")
    assert sent(one) == b"-ERR unknown subcommand\r\n*0\r\n"


def test_a_request_of_nothing_but_a_large_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LARGE", 1000)
    monkeypatch.setattr(ROOM, "shared_request", 500)
    one = session()
    request = cmd(b"MULTI\0" + b"x" * 2000)
    for at in range(0, len(request), 300):
        one.from_client(request[at : at + 300])
    assert is_refusal(sent(one), "command.unknown")
