"""Each state of a session admits what the table says, and each transition of the table happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.states import ADMITS, TRANSITIONS, Event, Input, State, next_state
from tests.session.sessions import ADMITTED, Session, cmd, passed, session

OBSERVE = [ModeRule("observe")]
AUTH = cmd("AUTH master secret")


def reading() -> Session:
    return session(rules=OBSERVE)


def awaiting_reply() -> Session:
    one = session(rules=OBSERVE)
    one.from_client(AUTH)
    return one


def awaiting_all() -> Session:
    """BLPOP needs a connection of its own, and a reply is due on the shared one."""
    one = session(rules=OBSERVE, sharing=True)
    one.from_client(ADMITTED + cmd("BLPOP cube:v1:shared:x 0"))
    return one


def becoming_opaque() -> Session:
    one = session(rules=OBSERVE)
    one.from_client(ADMITTED + cmd("SYNC"))
    return one


def opaque() -> Session:
    one = session(rules=OBSERVE)
    one.from_client(cmd("SYNC"))
    return one


def closing() -> Session:
    one = session(rules=OBSERVE)
    one.from_client(cmd("QUIT"))
    return one


IN: dict[State, Callable[[], Session]] = {
    State.READING: reading,
    State.AWAITING_REPLY: awaiting_reply,
    State.AWAITING_ALL: awaiting_all,
    State.BECOMING_OPAQUE: becoming_opaque,
    State.OPAQUE: opaque,
    State.CLOSING: closing,
}


def in_state(state: State) -> Session:
    one = IN[state]()
    assert one.state == state
    passed(one)
    return one


def test_every_state_is_in_both_tables() -> None:
    assert ADMITS.keys() == TRANSITIONS.keys() == IN.keys() == set(State)


@pytest.mark.parametrize("state", State)
def test_bytes_of_the_client_go_where_the_state_says(state: State) -> None:
    one = in_state(state)
    before = one.backlog()
    one.from_client(ADMITTED[:10])
    kept = one.backlog() - before
    part = passed(one)
    one.from_client(ADMITTED[10:])
    found = part, kept, passed(one), one.backlog() - before
    size = len(ADMITTED)
    assert (
        found
        == {
            Input.EVALUATE: (b"", 10, ADMITTED, 0),
            Input.KEEP: (b"", 10, b"", size),
            Input.PASS: (ADMITTED[:10], 0, ADMITTED[10:], 0),
            Input.DROP: (b"", 0, b"", 0),
        }[ADMITS[state].input]
    )


@pytest.mark.parametrize("state", State)
def test_a_session_evaluates_in_one_state_only(state: State) -> None:
    assert in_state(state).may_evaluate() == (ADMITS[state].input is Input.EVALUATE)


@pytest.mark.parametrize("state", State)
def test_a_session_holds_requests_back_where_it_keeps_its_input(state: State) -> None:
    assert in_state(state).holds_back == (ADMITS[state].input is Input.KEEP)


@pytest.mark.parametrize("state", State)
def test_a_session_that_keeps_its_input_reads_only_so_much(state: State) -> None:
    one = in_state(state)
    assert one.wants_input()
    one.from_client(cmd("SET", "cube:v1:shared:x", "x" * one.talk.room.backlog))
    assert one.wants_input() == ADMITS[state].reads


@pytest.mark.parametrize("state", State)
def test_a_session_awaits_more_where_the_state_says_or_a_reply_is_due(state: State) -> None:
    one = in_state(state)
    assert one.awaits_more == (ADMITS[state].awaits_more or one.outstanding > 0)


@pytest.mark.parametrize("state", State)
def test_only_a_session_that_reads_may_leave_its_own_connection(state: State) -> None:
    one = in_state(state)
    assert not one.talk.may_leave_own() or state is State.READING


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_an_event_leads_where_the_table_says_and_else_changes_nothing(state: State, event: Event) -> None:
    one = in_state(state)
    one.talk.enter(event)
    assert one.state == TRANSITIONS[state].get(event, state) == next_state(state, event)


@pytest.mark.parametrize("state", [State.CLOSING, State.OPAQUE])
def test_nothing_leads_out_of_an_end(state: State) -> None:
    assert TRANSITIONS[state] == {}


@pytest.mark.parametrize(
    ("before", "reply", "after"),
    [
        (State.AWAITING_REPLY, b"+OK\r\n", State.READING),
        (State.AWAITING_REPLY, b"-WRONGPASS\r\n", State.READING),
        (State.BECOMING_OPAQUE, b"*0\r\n", State.OPAQUE),
        (State.CLOSING, b"+OK\r\n", State.CLOSING),
    ],
)
def test_a_reply_leads_from_one_state_to_the_next(before: State, reply: bytes, after: State) -> None:
    one = in_state(before)
    one.from_upstream(reply)
    assert one.state == after


def test_the_request_in_hand_is_carried_out_once_every_reply_is_in() -> None:
    one = in_state(State.AWAITING_ALL)
    one.from_shared(b"*0\r\n", 1, True)
    assert one.state == State.READING
    assert passed(one) == cmd("BLPOP cube:v1:shared:x 0")


@pytest.mark.parametrize("state", State)
def test_a_session_that_stays_without_an_upstream_reads_on(state: State) -> None:
    one = in_state(state)
    one.upstream_refused("gone")
    assert bool(one.closing) == (state in (State.BECOMING_OPAQUE, State.OPAQUE, State.CLOSING))
    assert one.closing or one.state == State.READING
