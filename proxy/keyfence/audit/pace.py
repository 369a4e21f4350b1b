"""Pacing and sampling: how fast keys are looked at, and which of them.

Rule: a pace never catches up: after a pause it goes on at its rate, so Redis never gets a burst. Whether a
key belongs to a sample depends on the key only, so a resumed audit looks at the same keys.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable

_RATE = re.compile(r"(\d{1,9})(?:/s)?", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%", re.ASCII)


def parse_rate(text: str) -> int:
    """Keys a second: `5000/s`, `5000`, or `none` (0: as fast as Redis answers). Raises ValueError."""
    if text == "none":
        return 0
    found = _RATE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a rate; write keys a second, as 5000/s, or none")
    return int(found[1])


def parse_sample(text: str) -> float:
    """The part of the keys to look at: `1%` is 0.01. Raises ValueError."""
    found = _PERCENT.fullmatch(text)
    part = float(found[1]) / 100 if found is not None else 0.0
    if not 0 < part <= 1:
        raise ValueError(f"{text!r} is not a sample; write a part of the keys, as 1% or 0.5%")
    return part


def in_sample(key: bytes, part: float) -> bool:
    """Whether a key belongs to a sample of this part of all keys."""
    return part >= 1 or zlib.crc32(key) < part * 2**32


class Pace:
    """Waits so that no more than `rate` keys a second pass; 0: never waits."""

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    def batch(self, most: int) -> int:
        """How many keys to take at once: a fiftieth of a second's, from 10 to `most`."""
        return most if not self.rate else max(10, min(most, self.rate // 50))

    def wait(self, keys: int) -> None:
        """Returns when the next keys may follow these."""
        if not self.rate:
            return
        now = self._clock()
        if self._next > now:
            self._sleep(self._next - now)
        self._next = max(self._next, now) + keys / self.rate
