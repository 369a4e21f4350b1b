"""Findings are counted under the shape that is known when a report is made."""

from __future__ import annotations

from typing import Any

import pytest

from keyfence.policy.verdict import Finding
from keyfence.telemetry import Telemetry, unsettled
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.tally import Tally
from tests.telemetry.violations import violation


def tell(telemetry: Telemetry, key: str, action: Any = "observed") -> None:
    found = violation(key.encode(), rule="key.unregistered", entry="", shape="")
    telemetry.violations("one", "10.0.0.7:1", "GET", (Finding(found, action),), "r1")


def shown(tally: Tally) -> dict[str, int]:
    return {row["shape"]: row["count"] for row in tally.snapshot()}


def test_the_first_key_of_a_kind_is_counted_with_the_next_ones() -> None:
    telemetry = Telemetry(mask_keys=True)
    tell(telemetry, "ac:stg:session:1")
    assert shown(telemetry.tally) == {"<*>:<*>:<*>:<int>": 1}
    tell(telemetry, "ac:stg:session:2")
    assert shown(telemetry.tally) == {"ac:stg:session:<int>": 2}
    tell(telemetry, "ac:dev:session:3")
    tell(telemetry, "ac:dev:session:4", "refused")
    assert shown(telemetry.tally) == {"ac:stg:session:<int>": 2, "ac:dev:session:<int>": 2}
    rows = {row["shape"]: row["actions"] for row in telemetry.tally.snapshot()}
    assert rows["ac:dev:session:<int>"] == {"observed": 1, "refused": 1}


def test_moved_counts_reach_the_parent() -> None:
    telemetry, parent = Telemetry(mask_keys=True), Tally()
    deltas = Increments(telemetry)
    for number in range(40):
        tell(telemetry, f"ac:{'stg' if number % 3 else 'dev'}:{number}")
        if number % 2:
            parent.absorb(deltas.take()["tally"])
    parent.absorb(deltas.take()["tally"])
    assert shown(parent) == shown(telemetry.tally) == {"ac:stg:<int>": 26, "ac:dev:<int>": 14}


def test_a_row_that_lost_its_counts_can_gain_new_ones() -> None:
    telemetry = Telemetry(mask_keys=True)
    for key in ("ac:a:1", "ac:a:2", "ac:b:1"):
        tell(telemetry, key)
    assert shown(telemetry.tally) == {"ac:a:<int>": 2, "ac:<*>:<int>": 1}
    tell(telemetry, "ac:b:2")
    tell(telemetry, "ac:c:1")
    assert shown(telemetry.tally) == {"ac:a:<int>": 2, "ac:b:<int>": 2, "ac:<*>:<int>": 1}


def test_the_number_of_held_keys_is_bounded_and_the_sum_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsettled, "MAX_HELD", 2)
    telemetry = Telemetry(mask_keys=True)
    for word in ("aa", "bb", "cc", "dd"):
        tell(telemetry, f"{word}:1")
    for word in ("aa", "bb", "cc", "dd"):
        tell(telemetry, f"{word}:2")
    found = shown(telemetry.tally)
    assert sum(found.values()) == 8
    assert found["<*>:<int>"] == 2
