"""The functions that the RQ worker runs."""

from __future__ import annotations


def add(x: int, y: int) -> int:
    return x + y


def fail() -> None:
    raise ValueError("as it should")
