"""AUTH, HELLO and RESET: who the client is, and from when on."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from keyfence.identity.passwords import Password
from keyfence.policy.enforcement.modes import ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.resp.profile import Profile
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    REFUSED,
    ROUTE,
    RecordingObserver,
    Session,
    at_barrier,
    authorizer_with,
    cmd,
    identities,
    in_multi,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

# -- who it is


def test_a_command_behind_auth_is_evaluated_for_the_new_service() -> None:
    one = session()
    one.from_client(cmd("AUTH", "master", "pw") + REFUSED)
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+O")
    assert passed(one) == sent(one) == b""
    one.from_upstream(b"K\r\n")
    assert sent(one) == b"+OK\r\n"
    assert passed(one) == REFUSED  # CubeMaster may


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (b"%2\r\n$2\r\nid\r\n:7\r\n$4\r\nrole\r\n$6\r\nmaster\r\n", ["master"]),
        (b"*4\r\n$2\r\nid\r\n:7\r\n$4\r\nrole\r\n$7\r\nreplica\r\n", ["replica"]),
        (b"%1\r\n$2\r\nid\r\n:7\r\n", []),
        (b"-WRONGPASS $4\\r\\nrole\\r\\n$6\\r\\nmaster\\r\\n\r\n", []),
    ],
)
@pytest.mark.parametrize("words", ["HELLO 3 AUTH master pw", "HELLO 3"])
def test_the_reply_to_a_hello_shows_whether_redis_is_a_primary(
    words: str, reply: bytes, shown: list[str]
) -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    one.from_client(cmd(words))
    one.from_upstream(reply)
    assert sent(one) == reply
    assert observer.upstream_showed == shown


def test_a_command_behind_a_failed_auth_is_evaluated_for_the_old_service() -> None:
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


def test_the_reply_to_multi_releases_nothing_that_waits_for_auth() -> None:
    one = session("CubeMaster")
    one.from_client(cmd("MULTI") + cmd("EXEC") + cmd("AUTH", "proxy", "pw") + REFUSED)
    one.from_upstream(b"+OK\r\n*0\r\n")
    assert at_barrier(one) + passed(one) == cmd("MULTI") + cmd("EXEC") + cmd("AUTH", "proxy", "pw")
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
    ("user", "service"),
    [
        (b"$5\r\nproxy\r\n", "CubeProxy"),  # Redis 6.2 and 7.0 take one option after the other
        (b"$7\r\ndefault\r\n", "CubeMaster"),  # later ones look at all of them first
        (b"-NOAUTH Authentication required.\r\n", "CubeMaster"),
        (b"-NOPERM no permissions\r\n", None),
    ],
)
def test_after_a_hello_that_may_have_authenticated_redis_is_asked_who_the_client_is(
    hello: str, reply: bytes, user: bytes, service: str | None
) -> None:
    one = session("CubeMaster")
    one.from_client(cmd(hello) + ADMITTED)
    assert passed(one) == cmd(hello)
    one.from_upstream(reply)
    assert sent(one) == reply
    assert passed(one) == cmd("ACL", "WHOAMI")
    one.from_upstream(user)
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


def test_reset_makes_the_client_the_service_that_connected() -> None:
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


def test_a_client_that_authenticates_may_send_more_in_the_same_packet() -> None:
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


def test_a_login_inside_multi_counts_once_exec_has_confirmed_it() -> None:
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
def test_a_failed_login_inside_multi_changes_nothing(answer: bytes) -> None:
    one = in_multi(session())
    one.from_client(cmd("PING") + cmd("AUTH", "master", "pw") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n" * 2 + answer)
    assert at_barrier(one)
    assert one.service == "CubeProxy"
    assert passed(one) == ADMITTED


def test_a_reply_to_exec_that_lacks_the_failed_login_ends_the_session() -> None:
    """Redis 8.0 and Valkey 8.1 do so (redis/redis#15640): the next reply would fill the gap."""
    one = in_multi(session())
    one.from_client(cmd("AUTH", "master", "wrong") * 2 + cmd("PING") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n" * 3 + b"*3\r\n+PONG\r\n")
    at_barrier(one)
    assert one.closing.startswith("identity")
    assert passed(one) == b""


# -- users that keyfence knows by itself


def with_passwords(observer: RecordingObserver | None = None, sharing: bool = False) -> Session:
    digest = hashlib.sha256(b"right").digest()
    known = dataclasses.replace(identities(), passwords={"mine": Password([digest], "CubeMaster")})
    observer = observer or RecordingObserver()
    context = SessionContext(InForce(authorizer_with()), known, observer, sharing=sharing)
    return Session(context, ClientOrigin("CubeProxy", "10.0.0.9:5"))


@pytest.mark.parametrize("sharing", [False, True])
def test_redis_never_sees_the_password_of_a_user_that_keyfence_checks(sharing: bool) -> None:
    one = with_passwords(sharing=sharing)
    one.from_client(ADMITTED + cmd("AUTH mine right") + REFUSED)
    assert passed(one) == ADMITTED
    if sharing:
        one.from_shared(b"*0\r\n", 1, True)
        assert passed(one) == REFUSED
        one.from_shared(b":1\r\n", 1, True)
    else:
        one.from_upstream(b"*0\r\n")
        assert passed(one) == REFUSED
        one.from_upstream(b":1\r\n")
    assert one.service == "CubeMaster"
    assert sent(one) == b"*0\r\n+OK\r\n:1\r\n"


def test_a_wrong_password_changes_nothing_and_is_counted() -> None:
    observer = RecordingObserver()
    one = with_passwords(observer)
    one.from_client(cmd("AUTH mine wrong") + REFUSED)
    wrong, refused = replies(sent(one))
    assert wrong == b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    assert is_refusal(refused, "scope.write")
    assert observer.logins_failed == 1


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


def test_an_unknown_protocol_is_refused_before_the_password_is_checked() -> None:
    one = with_passwords()
    one.from_client(cmd("HELLO 9 AUTH mine right"))
    assert passed(one) == cmd("HELLO 9")
    one.from_upstream(b"-NOPROTO unsupported protocol version\r\n")
    assert one.service == "CubeProxy"


def test_a_database_that_needs_a_login_is_selected_behind_it() -> None:
    select = cmd("SELECT", 2)
    context = SessionContext(
        InForce(authorizer_with()),
        identities(),
        RecordingObserver(),
        greeting=lambda: [select],
        database=2,
        selects_later=True,
    )
    one = Session(context, ClientOrigin("CubeProxy", "10.0.0.9:5"))
    one.from_client(cmd("AUTH master pw") + ADMITTED)
    one.from_upstream(b"+OK\r\n")
    assert passed(one) == cmd("AUTH master pw") + select + ADMITTED
    one.from_upstream(b"+OK\r\n*0\r\n")
    assert sent(one) == b"+OK\r\n*0\r\n"
    one.from_client(cmd("RESET"))
    one.from_upstream(b"+RESET\r\n-NOAUTH Authentication required.\r\n")
    assert sent(one) == b"+RESET\r\n"
    assert not one.closing


@pytest.mark.parametrize("sharing", [False, True])
def test_a_login_that_keyfence_checks_waits_for_due_replies(sharing: bool) -> None:
    """The new service may use other connections than those on which they are due."""
    one = with_passwords(sharing=sharing)
    one.from_client(ADMITTED + cmd("AUTH mine right") + REFUSED)
    assert one.service == "CubeProxy"
    (one.from_shared if sharing else one.from_upstream)(*((b"*0\r\n", 1, True) if sharing else (b"*0\r\n",)))
    assert one.service == "CubeMaster"
    assert sent(one) == b"*0\r\n+OK\r\n"


def test_a_login_behind_a_refused_multi_is_proved_if_a_script_ran_meanwhile() -> None:
    """Redis has run the script at once, so its text may have shaped what looks like the reply to AUTH."""
    one = session(rules=[ModeRule("observe")])
    one.from_client(cmd("MULTI") + cmd("EVAL", "return 1", "0") + cmd("AUTH", "master", "wrong"))
    passed(one)
    one.from_upstream(b"-NOPERM this user has no permissions to run the 'multi' command\r\n")
    one.from_upstream(b"-ERR Unknown lua shebang option: x\r\n+OK\r\n")
    assert one.service == "CubeProxy"
    assert "out of step" in one.closing
