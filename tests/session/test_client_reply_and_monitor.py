"""CLIENT REPLY and MONITOR: replies that are switched off, and lines that come between them."""

from __future__ import annotations

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.conversation import ABORT_MARKER
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    REFUSED,
    Session,
    at_barrier,
    cmd,
    in_multi,
    observed,
    passed,
    replies,
    sent,
    session,
)

OBSERVE = [ModeRule("observe")]


# -- CLIENT REPLY


REPLY_ON = cmd("CLIENT", "REPLY", "ON")


def switched(mode: str) -> Session:
    one = session()
    one.from_client(cmd("CLIENT", "REPLY", mode))
    assert passed(one) == REPLY_ON
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b""
    return one


def test_with_replies_off_nothing_is_answered_but_everything_is_evaluated() -> None:
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


def test_nothing_is_evaluated_until_redis_lets_replies_be_switched_off() -> None:
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
    before, behind = LINE + b"+PONG\r\n" + LINE + LINE, b"+OK\r\n" + LINE + b"*0\r\n" + LINE
    for at in range(len(before)):
        one.from_upstream(before[at : at + 1])
    at_barrier(one)
    for at in range(len(behind)):
        one.from_upstream(behind[at : at + 1])
    assert sent(one) == before + behind
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
    assert one.closing == "upstream sent a reply that no request asked for"


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
    assert not one.replies.monitoring
