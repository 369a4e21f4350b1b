"""Sessions that cannot be followed any more."""

from __future__ import annotations

import re

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.observer import OPAQUE_REASONS
from tests.servers import PROJECT
from tests.session.sessions import (
    ADMITTED,
    PUSH,
    REFUSED,
    RecordingObserver,
    Session,
    cmd,
    in_multi,
    is_refusal,
    observed,
    passed,
    sent,
    session,
)

OPAQUE = [
    "PSYNC ? -1",
    "SYNC",
    "replconf ack 1",
    "SCRIPT DEBUG YES",
    "script debug sync",
]


@pytest.mark.parametrize("words", OPAQUE)
def test_a_session_that_cannot_be_followed_passes_unread_in_observe(words: str) -> None:
    observer = RecordingObserver()
    one = observed(observer=observer)
    one.from_client(cmd(words) + REFUSED)
    assert one.is_opaque
    assert passed(one) == cmd(words) + REFUSED
    one.from_upstream(b"anything")
    one.from_client(b"at all")
    assert sent(one) == b"anything"
    assert passed(one) == b"at all"
    assert "session.opaque" in [rule for _, _, rule, _ in observer.found]
    assert len(observer.sessions) == 1


@pytest.mark.parametrize("words", OPAQUE)
def test_a_command_that_cannot_be_followed_is_refused_in_enforce(words: str) -> None:
    one = session(rules=[ModeRule("enforce", "session.opaque"), ModeRule("observe")])
    one.from_client(cmd(words) + ADMITTED)
    assert is_refusal(sent(one), "session.opaque")
    assert passed(one) == ADMITTED
    assert not one.is_opaque


def test_a_script_debugger_that_is_refused_leaves_the_session_as_it_is() -> None:
    one = in_multi(observed())
    one.from_client(cmd("SCRIPT DEBUG YES") + cmd("EXEC") + ADMITTED)
    one.from_upstream(b"+QUEUED\r\n*1\r\n-ERR SCRIPT DEBUG must be called outside a pipeline\r\n")
    assert not one.is_opaque
    one = observed()
    one.from_client(cmd("SCRIPT DEBUG NO") + cmd("SCRIPT DEBUG") + ADMITTED)
    assert not one.is_opaque


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
    assert one.is_opaque


def silent(mode: str) -> Session:
    one = observed()
    one.from_client(cmd(f"CLIENT REPLY {mode}"))
    one.from_upstream(b"+OK\r\n")
    passed(one)
    return one


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_redis_is_told_that_replies_are_off_before_a_session_passes_unread(mode: str) -> None:
    """Until then Redis replies, and keyfence drops what the client has switched off."""
    one = silent(mode)
    one.from_client(cmd("SYNC") + ADMITTED)
    assert one.is_opaque
    assert passed(one) == cmd(f"CLIENT REPLY {mode}") + cmd("SYNC") + ADMITTED
    assert not one.closing


@pytest.mark.parametrize("words", ["CLIENT REPLY SKIP", "CLIENT REPLY ON", "SUBSCRIBE c"])
def test_a_session_whose_replies_are_off_does_not_pass_unread_inside_multi(words: str) -> None:
    """Redis would queue CLIENT REPLY OFF there."""
    one = silent("OFF")
    one.from_client(cmd("MULTI") + ADMITTED + cmd(words) + cmd("EXEC"))
    assert passed(one) == cmd("MULTI") + ADMITTED
    one.from_upstream(b"+OK\r\n+QUEUED\r\n")
    assert passed(one) == b""
    assert sent(one) == b""
    assert one.closing == "replies are off, and Redis cannot be told so inside MULTI or inside a request"


def test_a_session_whose_replies_are_off_passes_no_rest_of_a_request_unread() -> None:
    one = silent("OFF")
    request = cmd("SUBSCRIBE", *(b"c" * 1_000 for _ in range(3_000)))
    one.from_client(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    passed(one)
    for at in range(0, len(request), 65_536):
        one.from_client(request[at : at + 65_536])
    while one.wants_turn:
        one.take_turn()
    assert not one.is_opaque
    assert one.closing


def test_the_reasons_are_those_of_the_closed_set() -> None:
    sources = (PROJECT / "proxy" / "keyfence" / "session").rglob("*.py")
    given = re.compile(r'_opaque\(\s*"([^"]+)"')
    assert {reason for path in sources for reason in given.findall(path.read_text())} == set(OPAQUE_REASONS)


def test_a_large_request_passes_unread_as_it_was_received() -> None:
    """It is not one object of bytes, but what was received, which nobody copies."""
    one = in_multi(observed())
    request = cmd("SUBSCRIBE", *(b"c" * 1_000 for _ in range(3_000)))
    for at in range(0, len(request), 65_536):
        one.from_client(request[at : at + 65_536])
    while one.wants_turn:
        one.take_turn()
    assert one.is_opaque
    assert b"".join(one.to_upstream) == request
