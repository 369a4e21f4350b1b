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
