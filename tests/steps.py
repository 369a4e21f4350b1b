"""Counts the work of a call in steps, without a clock.

A step is a line that the interpreter runs, or one more round of a loop within a line. So no loop in Python
escapes the count, whatever the code under test counts itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class TooMany(AssertionError):
    """The call took more steps than allowed."""


def steps_of(act: Callable[[], object], most: int = sys.maxsize) -> int:
    """Returns the steps that a call takes. Raises TooMany as soon as it has taken more than `most`."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count > most:
                raise TooMany(f"more than {most} steps")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count
