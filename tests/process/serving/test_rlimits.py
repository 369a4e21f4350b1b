"""The number of clients that file descriptors allow."""

from __future__ import annotations

import resource

import pytest

from keyfence.process.serving import rlimits
from keyfence.process.serving.rlimits import PER_CLIENT, RESERVED, room_for

INFINITY = resource.RLIM_INFINITY


class Limits:
    def __init__(self, soft: int, hard: int, *, fixed: bool = False) -> None:
        self.now = (soft, hard)
        self._fixed = fixed

    def get(self, _: int) -> tuple[int, int]:
        return self.now

    def set(self, _: int, limits: tuple[int, int]) -> None:
        if self._fixed:
            raise ValueError("not allowed to raise maximum limit")
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "room", "left"),
    [
        (20_064, 50_000, 10_000, 10_000, 20_064),
        (1024, 50_000, 10_000, 10_000, 20_064),
        (1024, INFINITY, 10_000, 10_000, 20_064),
        (1024, 4064, 10_000, 2000, 4064),
        (1024, 1024, 10_000, 480, 1024),
        (INFINITY, INFINITY, 10_000, 10_000, INFINITY),
        (32, 32, 10_000, 1, 32),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_possible(
    soft: int, hard: int, asked: int, room: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(rlimits.resource, "getrlimit", limits.get)
    monkeypatch.setattr(rlimits.resource, "setrlimit", limits.set)
    assert room_for(asked) == room
    assert limits.now == (left, hard)
    assert left in (INFINITY, 32) or room * PER_CLIENT + RESERVED <= left


def test_if_the_limit_cannot_be_raised_the_present_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(1064, 50_000, fixed=True)
    monkeypatch.setattr(rlimits.resource, "getrlimit", limits.get)
    monkeypatch.setattr(rlimits.resource, "setrlimit", limits.set)
    assert room_for(10_000) == 500
