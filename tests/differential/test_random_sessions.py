"""Random sessions are answered alike. A short run here; `make soak` makes it a long one."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.differential.pairs import LONG, Pair
from tests.differential.random_sessions import Sessions
from tests.differential.sides import Step


@pytest.mark.hypothesis
@pytest.mark.timeout(7200 if LONG else 300)
def test_random_sessions_are_answered_alike(plain_pair: Pair) -> None:
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
            # Not made smaller: each attempt of a session that differs waits for what doesn't come.
            phases=[Phase.explicit, Phase.generate],
            print_blob=False,
        ),
    )
