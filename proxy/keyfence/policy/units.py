"""Durations and sizes as people write them, `60s`, `1h`, `64mb`; times and numbers as texts show them.

Rule: a duration needs a unit, because a bare number could mean seconds or milliseconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_DURATION = re.compile(r"(\d{1,12})(ms|s|m|h|d|w)", re.ASCII)
_BYTES = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_NAMED = 3  # names in a sentence
_SIZE = re.compile(r"(\d{1,12})\s*([a-z]*)", re.ASCII)


def milliseconds(text: str) -> int:
    """Returns a duration such as `90s`, `1h30m` or `7d` in milliseconds. Raises ValueError."""
    total, end = 0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            break
        total += int(match[1]) * _MILLISECONDS[match[2]]
        end = match.end()
    if end == 0 or end != len(text):
        raise ValueError(
            f"{text!r} is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d"
        )
    return total


def duration_text(ms: int) -> str:
    """Returns the shortest exact text of a duration: 3600000 is `1h`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _MILLISECONDS[unit] == 0:
            return f"{ms // _MILLISECONDS[unit]}{unit}"
    return f"{ms}ms"


def clock_text(at: float) -> str:
    """Returns Unix seconds as a time in UTC, for tables."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def size_text(count: int) -> str:
    """Returns the shortest exact text of a size: 65536 is `64kb`."""
    for unit in ("gb", "mb", "kb"):
        if count and count % _BYTES[unit] == 0:
            return f"{count // _BYTES[unit]}{unit}"
    return counted(count, "byte")


def plural(number: int, one: str, many: str = "") -> str:
    """Returns the form of a noun after a number. `many` is the plural, if it is not `one` with an s."""
    return one if number == 1 else many or f"{one}s"


def named(names: Sequence[str]) -> str:
    """Returns names as a part of a sentence: `a, b and c`, or the first three and how many follow."""
    more = len(names) - _NAMED
    if more > 1:
        return f"{', '.join(names[:_NAMED])} and {more} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun: `1 finding`, `1,200 findings`."""
    return f"{number:,} {plural(number, one, many)}"


def size_bytes(text: str) -> int:
    """Returns a size such as `64mb`, `16 kb` or `512` in bytes (1 kb is 1024, as in redis.conf).

    Raises ValueError.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a size; write a number and its unit, as 512b, 16kb, 64mb or 1gb")
    return int(match[1]) * _BYTES[match[2]]
