"""The default limits are those of Redis, and values out of range are refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from keyfence.resp.limits import IDENTIFIED, UNIDENTIFIED, ProtocolError, RequestLimits, RequestTooLarge


def test_limits_before_a_client_is_identified_are_those_of_redis() -> None:
    assert (UNIDENTIFIED.max_arguments, UNIDENTIFIED.max_bulk) == (10, 16384)
    assert not UNIDENTIFIED.authenticated


def test_limits_of_an_identified_client_are_redis_defaults() -> None:
    assert RequestLimits() == IDENTIFIED
    assert (IDENTIFIED.max_arguments, IDENTIFIED.max_bulk) == (1048576, 536870912)
    assert (IDENTIFIED.max_inline, IDENTIFIED.max_request, IDENTIFIED.max_held) == (65536, 2**30, 67108864)


@pytest.mark.parametrize("name", ["max_arguments", "max_bulk", "max_inline", "max_request", "max_held"])
@pytest.mark.parametrize("value", [0, -1, 2**40 + 1])
def test_a_limit_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        replace(IDENTIFIED, **{name: value})  # type: ignore[arg-type]


def test_limits_cannot_be_changed_in_place() -> None:
    with pytest.raises(FrozenInstanceError):
        IDENTIFIED.max_bulk = 1  # type: ignore[misc]


def test_request_too_large_is_a_protocol_error() -> None:
    assert issubclass(RequestTooLarge, ProtocolError)
