"""The services' traffic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.telemetry.counters import BOUNDS, Counters
from keyfence.telemetry.reports.services import quantile, service_rows

UPSTREAM = BOUNDS["upstream"]


def test_a_service_has_one_row_with_all_its_listeners_and_commands() -> None:
    counters = Counters()
    counters.connections_open |= {("shop", "a:1"): 2, ("shop", "b:2"): 3, ("billing", "a:1"): 1}
    counters.commands |= {
        ("shop", "GET", "forwarded"): 10,
        ("shop", "SET", "forwarded"): 5,
        ("shop", "SET", "refused"): 2,
        ("shop", "PING", "local"): 1,
        ("late", "GET", "forwarded"): 7,
    }
    counters.traffic |= {("shop", "client_in"): 100, ("shop", "client_out"): 50, ("shop", "upstream_in"): 9}
    billing, late, shop = service_rows(counters)
    assert [one["service"] for one in (billing, late, shop)] == ["billing", "late", "shop"]
    assert (shop["clients"], shop["forwarded"], shop["refused"], shop["local"]) == (5, 15, 2, 1)
    assert (shop["bytes_in"], shop["bytes_out"]) == (100, 50)
    assert (late["clients"], late["forwarded"], billing["forwarded"]) == (0, 7, 0)


def test_times_are_counted_by_bucket() -> None:
    counters = Counters()
    for seconds in (1e-6, 1e-5, 2e-5, 99.0):
        counters.took("upstream", "shop", seconds)
    counters.took("decision", "shop", 1e-6)
    (row,) = service_rows(counters)
    assert (row["upstream"][0], row["upstream"][1], row["upstream"][-1]) == (2, 1, 1)
    assert sum(row["upstream"]) == 4
    assert sum(row["request"]) == 0


def test_nothing_counted_is_no_row_and_no_quantile() -> None:
    assert service_rows(Counters()) == []
    assert quantile("upstream", [0] * (len(UPSTREAM) + 1), 0.5) is None


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({0: 1}, 0.5, UPSTREAM[0]),
        ({0: 1, 3: 1}, 0.5, UPSTREAM[0]),
        ({0: 1, 3: 1}, 0.51, UPSTREAM[3]),
        ({0: 99, 5: 1}, 0.99, UPSTREAM[0]),
        ({0: 98, 5: 2}, 0.99, UPSTREAM[5]),
        ({0: 1, len(UPSTREAM): 99}, 0.99, math.inf),
    ],
)
def test_a_quantile_is_the_upper_bound_of_its_bucket(
    counts: dict[int, int], share: float, seconds: float
) -> None:
    buckets = [counts.get(number, 0) for number in range(len(UPSTREAM) + 1)]
    assert quantile("upstream", buckets, share) == seconds


@given(st.lists(st.floats(1e-6, 1.9), min_size=1, max_size=50), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_never_too_low(times: list[float], share: float) -> None:
    counters = Counters()
    for seconds in times:
        counters.took("request", "shop", seconds)
    (row,) = service_rows(counters)
    found = quantile("request", row["request"], share)
    assert found is not None
    assert sum(seconds <= found for seconds in times) >= share * len(times)
