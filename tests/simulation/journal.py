"""What has happened in a schedule, in plain words, and what must not have happened."""

from __future__ import annotations

from typing import Any

from tests.simulation.loop import BEGIN, VirtualLoop


class Broken(AssertionError):
    """An invariant does not hold. `str` says which one, and how."""


class Journal:
    """The events of one schedule, in their order. The words are put together only if somebody reads them."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._events: list[tuple[float, str, tuple[Any, ...]]] = []
        self.broken: list[str] = []  # invariants that do not hold, the first one first

    def add(self, text: str, *values: Any) -> None:
        self._events.append((self._loop.now, text, values))

    def breaks(self, text: str) -> None:
        """An invariant does not hold."""
        self.broken.append(text)
        self.add("BROKEN: %s", text)

    def lines(self) -> list[str]:
        return [f"{at - BEGIN:9.4f}  {text % values}" for at, text, values in self._events]
