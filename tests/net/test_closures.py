from __future__ import annotations

import re

import pytest

from keyfence.net import closures
from keyfence.net.closures import CLOSURES, STAYS_OPEN, UPSTREAM_LOST, UPSTREAM_PROTOCOL, lost
from tests.servers import PROJECT


def test_the_labels_differ() -> None:
    assert len({one.label for one in CLOSURES}) == len(CLOSURES) == 15
    assert closures.QUIT in CLOSURES


def test_the_documentation_lists_every_label() -> None:
    text = (PROJECT / "docs" / "configuration.md").read_text()
    [row] = re.findall(r"\| `keyfence_closures_total`.*", text)
    assert {one.label for one in CLOSURES} <= set(re.findall(r"`([a-z_]+)`", row))


@pytest.mark.parametrize("closure", CLOSURES, ids=lambda one: one.label)
def test_a_reason_is_a_text_that_carries_its_label(closure: closures.Closure) -> None:
    reason = closure.because("upstream sent nonsense")
    assert reason == "upstream sent nonsense"
    assert reason.closure is closure


def test_no_reason_ends_nothing() -> None:
    assert not STAYS_OPEN
    assert STAYS_OPEN.closure is None


def test_a_text_without_a_label_says_that_redis_is_lost() -> None:
    assert lost("upstream sent nonsense").closure is UPSTREAM_LOST
    reason = UPSTREAM_PROTOCOL.because("upstream sent nonsense")
    assert lost(reason) is reason
