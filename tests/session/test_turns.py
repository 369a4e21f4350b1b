"""A long evaluation gives other clients their turn, and every reply stays in its place meanwhile."""

from __future__ import annotations

import pytest

from keyfence.commands.model import MANY
from keyfence.policy.enforcement.modes import BreakGlass, ModeRule
from keyfence.policy.engine.authorizer import InForce
from keyfence.session.conversation import conversation
from keyfence.session.conversation.conversation import ABORT_MARKER
from keyfence.session.fastpath import TIMED_EACH
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    ROUTE,
    RecordingObserver,
    Session,
    authorizer_with,
    cmd,
    is_refusal,
    passed,
    replies,
    sent,
    session,
)

COUNT = 4 * MANY
UNKNOWN_KEYS = cmd("EXISTS", *[b"nobody:%d" % number for number in range(COUNT)])


pytestmark = pytest.mark.usefixtures("shortest_turns")


def turns(one: Session) -> int:
    """Give the session its turns until it wants no more. Returns how many there were."""
    count = 0
    while one.wants_turn:
        one.take_turn()
        count += 1
    return count


def test_requests_behind_a_long_evaluation_wait_for_it() -> None:
    observer = RecordingObserver()
    one = session(
        rules=[ModeRule("observe", rule="key.unregistered"), ModeRule("enforce")], observer=observer
    )
    one.from_client(ADMITTED + UNKNOWN_KEYS + ADMITTED)
    assert passed(one) == ADMITTED
    assert one.wants_turn
    assert one.holds_back
    one.from_client(REFUSED)
    assert (passed(one), sent(one)) == (b"", b"")
    assert turns(one) > 2
    assert passed(one) == UNKNOWN_KEYS + ADMITTED
    one.from_upstream(b"*0\r\n:4000\r\n*0\r\n")
    answers = replies(sent(one))
    assert answers[:3] == [b"*0\r\n", b":4000\r\n", b"*0\r\n"]
    assert is_refusal(answers[3], "scope.write")
    assert [name for _, name, outcome in observer.commands if outcome == "forwarded"].count("EXISTS") == 1


def test_very_many_keys_are_evaluated_in_turns_though_nothing_is_wrong_with_them() -> None:
    request = cmd("EXISTS", *[ROUTE[:-4] + b"%d" % number for number in range(17 * MANY)])
    one = session()
    one.from_client(request)
    assert one.wants_turn
    assert turns(one) > 10
    assert passed(one) == request


def test_a_refusal_of_a_long_command_takes_its_place() -> None:
    observer = RecordingObserver()
    one = session(observer=observer)
    one.from_client(ADMITTED + UNKNOWN_KEYS + ADMITTED)
    turns(one)
    assert passed(one) == ADMITTED + ADMITTED
    one.from_upstream(b"*0\r\n*0\r\n")
    first, second, third = replies(sent(one))
    assert (first, third) == (b"*0\r\n", b"*0\r\n")
    assert is_refusal(second, "key.unregistered")
    assert [rule for _, _, rule, _ in observer.found] == ["key.unregistered"] * 8


def test_within_a_transaction_a_long_command_is_refused_as_any_other() -> None:
    one = session()
    one.from_client(cmd("MULTI") + UNKNOWN_KEYS + ADMITTED + cmd("EXEC"))
    one.from_upstream(b"+OK\r\n")
    turns(one)
    assert passed(one) == cmd("MULTI") + ABORT_MARKER + ADMITTED + cmd("EXEC")


def test_a_transaction_with_a_long_command_is_not_evaluated_in_one_piece() -> None:
    short = cmd("EXISTS", *[b"a"] * (2 * MANY))
    one = session(sharing=True)
    one.from_client(cmd("MULTI") + short + cmd("EXEC"))
    turns(one)
    sent_first = passed(one)
    assert sent_first.startswith(cmd("MULTI"))
    one.from_upstream(b"+OK\r\n")
    turns(one)
    assert sent_first + passed(one) == cmd("MULTI") + ABORT_MARKER + cmd("EXEC")


def test_a_reload_in_the_middle_leaves_the_evaluation_to_the_authorizer_that_began_it() -> None:
    in_force = InForce(authorizer_with(ModeRule("observe")))
    one = session(in_force=in_force)
    one.from_client(UNKNOWN_KEYS + REFUSED)
    assert one.wants_turn
    in_force.authorizer = authorizer_with(ModeRule("enforce"))
    turns(one)
    assert passed(one) == UNKNOWN_KEYS
    one.from_upstream(b":0\r\n")
    assert is_refusal(replies(sent(one))[1], "scope.write")


def test_break_glass_that_opens_in_the_middle_holds() -> None:
    one = session(in_force=(in_force := InForce(authorizer_with())))
    one.from_client(UNKNOWN_KEYS)
    assert one.wants_turn
    in_force.authorizer.glass.append(BreakGlass(2e9))
    turns(one)
    assert passed(one) == UNKNOWN_KEYS


def test_a_lost_upstream_ends_the_evaluation_with_the_client() -> None:
    one = session()
    one.from_client(ADMITTED + UNKNOWN_KEYS)
    one.upstream_lost("upstream lost")
    turns(one)
    assert one.closing == "upstream lost"
    assert sent(one) == b""
    assert passed(one) == ADMITTED


def test_an_evaluation_goes_on_without_a_connection() -> None:
    one = session()
    one.from_client(ADMITTED + UNKNOWN_KEYS + REFUSED)
    one.upstream_refused("upstream unreachable")
    turns(one)
    first, second, third = replies(sent(one))
    assert first.startswith(b"-")
    assert is_refusal(second, "key.unregistered")
    assert is_refusal(third, "scope.write")
    assert not one.closing


def test_two_long_evaluations_of_one_authorizer_do_not_mix() -> None:
    in_force = InForce(authorizer_with())
    one, other = session(in_force=in_force), session("CubeMaster", in_force=in_force)
    writes = cmd("DEL", *[ROUTE[:-4] + b"%d" % number for number in range(COUNT)])
    one.from_client(writes)
    other.from_client(writes)
    while one.wants_turn or other.wants_turn:
        one.take_turn()
        other.take_turn()
    assert is_refusal(sent(one), "scope.write")
    assert passed(other) == writes


def test_a_large_request_with_a_streamed_argument_may_take_several_turns() -> None:
    keys = [word for number in range(COUNT) for word in (ROUTE + b"%d" % number, b"v")]
    request = cmd("MSET", *keys, b"nobody:1", b"x" * (1 << 20))
    one = session()
    for at in range(0, len(request), 1 << 16):
        one.from_client(request[at : at + (1 << 16)])
    turns(one)
    refusal = replies(sent(one))
    assert len(refusal) == 1
    assert refusal[0].startswith(b"-NOPERM")
    assert one.reopen or not passed(one)


SCAN = cmd("SCAN", "0", "MATCH", "cube:v1:master:*")


def without_cache() -> RecordingObserver:
    """Has each command evaluated."""
    observer = RecordingObserver()
    observer.recorder = lambda *_: None
    return observer


def test_a_pipeline_is_evaluated_in_turns() -> None:
    one = session("CubeMaster", observer=without_cache())
    one.from_client(SCAN * 3 + ADMITTED)
    assert passed(one) == SCAN
    for rest in (SCAN, SCAN, ADMITTED):
        assert one.wants_turn
        one.take_turn()
        assert passed(one) == rest
    assert not one.wants_turn


def test_a_transaction_is_opened_and_goes_on_in_turns() -> None:
    one = session("CubeMaster", sharing=True)
    one.from_client(cmd("MULTI") + SCAN * 3 + cmd("EXEC"))
    assert one.wants_turn
    assert passed(one) == cmd("MULTI") + SCAN
    assert one.in_transaction
    turns(one)
    one.from_upstream(b"+OK\r\n+QUEUED\r\n")
    turns(one)
    assert passed(one) == SCAN * 2 + cmd("EXEC")


@pytest.mark.parametrize("before", [0, 1, 30, 61, 62, 63])
def test_a_turn_that_ends_among_commands_of_a_whole_transaction_leaves_none_half_sent(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "TURN_SECONDS", 3600.0)
    one = session(sharing=True)
    one.from_client(ADMITTED * (TIMED_EACH + before))
    turns(one)
    one.from_shared(b"*0\r\n" * (TIMED_EACH + before), TIMED_EACH + before, True)
    assert (len(passed(one)), one.outstanding) == (len(ADMITTED) * (TIMED_EACH + before), 0)
    monkeypatch.setattr(conversation, "TURN_SECONDS", 0.0)
    one.turn_ends = 0.0
    whole = cmd("MULTI") + ADMITTED * 100 + cmd("EXEC")
    one.from_client(whole)
    begun = passed(one)
    assert begun in {b"", whole} or not one.route.is_shared  # other clients' commands never come into it
    turns(one)
    one.from_upstream(b"+OK\r\n" + b"+QUEUED\r\n" * 100)
    turns(one)
    assert begun + passed(one) == whole
    assert not one.in_transaction
    assert one.outstanding == 1  # EXEC's answer
