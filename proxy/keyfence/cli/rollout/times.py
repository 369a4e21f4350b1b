"""Times as these commands take and print them.

Rule: a time is given as a duration back from now, a date, or RFC 3339; it is printed in UTC.
"""

from __future__ import annotations

import datetime
import time

from keyfence.policy.units import milliseconds


def seconds_of(text: str) -> float:
    """A duration such as 7d, in seconds. Raises ValueError."""
    return milliseconds(text) / 1000


def since_time(text: str) -> float:
    """The time that a text means, in Unix seconds: `24h` (ago), `2026-03-01`, or RFC 3339. Raises
    ValueError."""
    if not text:
        return 0.0
    try:
        return time.time() - seconds_of(text)
    except ValueError:
        pass
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write a duration (24h, 7d), a date (2026-03-01) or RFC 3339"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return moment.timestamp()


def ago(at: float, now: float) -> str:
    """How long ago a time was, for people: `3m ago`."""
    seconds = max(0, int(now - at))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
