from __future__ import annotations

import pytest

from keyfence.findings.filter import states
from keyfence.findings.finding import State


def test_states_are_separated_by_commas() -> None:
    assert states("") == ()
    assert states("quiet, new,quiet") == (State.QUIET, State.NEW)


def test_active_stands_for_what_somebody_must_do_something_about() -> None:
    assert states("active") == (State.NEW, State.OPEN, State.REOPENED)


def test_a_misspelt_state_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'quite' is not a state; did you mean quiet\?"):
        states("quite")
