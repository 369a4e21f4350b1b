"""Random sessions get the same replies. This is a short run; `make soak` runs it for long."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.pairs import LONG, Pair
from tests.differential.random_sessions import Sessions
from tests.differential.sides import Step


@pytest.mark.hypothesis
@pytest.mark.timeout(7200 if LONG else 300)
def test_random_sessions_get_the_same_replies(plain_pair: Pair) -> None:
    def play(steps: list[Step], resp: int) -> None:
        plain_pair.speaking(resp).same(*steps)

    machine = type("TheseSessions", (Sessions,), {"play": staticmethod(play)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=1500 if LONG else 15,
            stateful_step_count=20,
            derandomize=not LONG,  # new ones are for `make soak`
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # No shrinking: each attempt of a differing session waits for replies that do not come.
            phases=[Phase.explicit, Phase.generate],
            print_blob=False,
        ),
    )
