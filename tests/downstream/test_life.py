"""The table of a connection's life."""

from __future__ import annotations

import pytest

from keyfence.downstream.life import ADMITS, TRANSITIONS, Event, Life, next_state, states_where


def test_every_state_has_its_rows() -> None:
    assert set(ADMITS) == set(TRANSITIONS) == set(Life)


@pytest.mark.parametrize("state", Life)
@pytest.mark.parametrize("event", Event)
def test_an_event_that_a_row_does_not_list_changes_nothing(state: Life, event: Event) -> None:
    assert next_state(state, event) == TRANSITIONS[state].get(event, state)


@pytest.mark.parametrize("state", Life)
def test_every_state_ends_with_the_transport(state: Life) -> None:
    assert next_state(state, Event.LOSE) == Life.GONE


@pytest.mark.parametrize("state", Life)
def test_only_an_identified_client_within_the_quota_gets_replies(state: Life) -> None:
    admits = ADMITS[state]
    assert admits.requests <= admits.replies <= admits.is_client
    reached_by = {event for row in TRANSITIONS.values() for event, after in row.items() if after == state}
    assert (Event.SERVE in reached_by) == (state == Life.OPEN)


def test_what_was_rejected_or_dismissed_stays_so_until_it_is_gone() -> None:
    for state in (Life.REJECTED, Life.DISMISSED):
        left = {next_state(state, event) for event in Event}
        assert left == {state, Life.GONE}


def test_states_are_bits() -> None:
    assert states_where(lambda admits: admits.requests) == 1 << Life.OPEN
    assert states_where(lambda admits: admits.replies) == 1 << Life.OPEN | 1 << Life.HALF_CLOSED
