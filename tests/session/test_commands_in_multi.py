"""Commands inside a transaction that has been opened on the client's own connection."""

from __future__ import annotations

import pytest

from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.session.conversation.conversation import ABORT_MARKER
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    ROUTE,
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

# -- transactions


def test_the_keys_of_a_transaction_share_a_hash_slot_where_the_policy_says_so() -> None:
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


def test_a_refusal_in_a_transaction_aborts_it() -> None:
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


def test_an_end_that_redis_refuses_does_not_end_the_transaction() -> None:
    one = in_multi(session())
    one.from_client(cmd("discard x y") + REFUSED)
    assert passed(one) == cmd("discard x y") + ABORT_MARKER


@pytest.mark.parametrize("end", ["EXEC", "exec", "DisCard", "RESET"])
def test_exec_discard_and_reset_end_a_transaction_in_upper_and_lower_case(end: str) -> None:
    one = in_multi(session())
    one.from_client(cmd(end))
    passed(one)
    one.from_upstream(b"+RESET\r\n" if end == "RESET" else b"+OK\r\n")
    sent(one)
    one.from_client(REFUSED)
    assert is_refusal(sent(one), "scope.write")
    assert passed(one) == b""


def test_a_multi_that_redis_refuses_opens_no_transaction() -> None:
    one = session()
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"-NOAUTH Authentication required.\r\n")
    passed(one)
    one.from_client(cmd("AUTH", "master", "pw"))
    assert passed(one) == cmd("AUTH", "master", "pw")
    one.from_upstream(b"+OK\r\n")
    assert one.service == "CubeMaster"


def test_the_reply_to_an_earlier_multi_does_not_end_a_later_transaction() -> None:
    one = session()
    one.from_client(cmd("MULTI") + cmd("EXEC") + cmd("MULTI"))
    one.from_upstream(b"-NOPERM\r\n-ERR EXEC without MULTI\r\n")
    passed(one)
    one.from_client(REFUSED)
    assert passed(one) == ABORT_MARKER


def test_a_transaction_keeps_the_policy_that_it_began_with() -> None:
    """Trap 5: a reload between queueing and EXEC."""
    in_force = InForce(authorizer_with(ModeRule("observe")))
    one = session(in_force=in_force)
    in_multi(one)
    in_force.authorizer = authorizer_with()
    one.from_client(REFUSED)
    assert passed(one) == REFUSED
    one.from_client(cmd("EXEC") + REFUSED)
    assert passed(one) == cmd("EXEC")
    one.from_upstream(b"+QUEUED\r\n*1\r\n:1\r\n")
    assert is_refusal(replies(sent(one))[-1], "scope.write")


def test_a_command_answered_at_once_inside_multi_has_no_element_in_the_reply_to_exec() -> None:
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
