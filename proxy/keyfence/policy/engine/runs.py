# cython: annotation_typing=False
"""Where the keys of a command stand, found in its bytes.

Rule: no object is made for an argument. A place that is not certain is no place.
"""

from __future__ import annotations

from array import array

from keyfence.commands.call_layouts import CallLayout
from keyfence.commands.families.streams import XREAD_OPTIONS
from keyfence.commands.table import KeySpec

_ZERO, _NINE = 48, 57  # as C integers, when compiled
_MOST_DIGITS = 5
_SMALL = 32  # the bit that only small letters have
_LONGEST_WORD = 7  # this many bytes fit a signed number


class Run:
    """A run of keys (or one channel) in commands of one layout."""

    def __init__(self, number: int, spec: KeySpec | None, at: int = 0) -> None:
        """Without a spec, it is the single argument `at`."""
        self.number = number
        self.is_channel = spec is None
        self.start = at if spec is None else spec.start
        self.last = 0 if spec is None else spec.last
        self.step = 1 if spec is None else spec.step
        self.limit = 1 if spec is None else max(spec.limit, 1)
        self.has_keyword = spec is not None and bool(spec.keyword)
        self.keyword = 0 if spec is None else _folded(spec.keyword, 0, len(spec.keyword))
        self.is_counted = spec is not None and spec.find == "keynum"
        self.count_at = 0 if spec is None else spec.start + spec.count_at
        self.first = 0 if spec is None else spec.start + spec.first
        self.at = self.stop = 0  # its place in the command that was placed last

    def place(self, data: bytes, places: array[int], count: int) -> bool:
        """Find the run in a command of `count` arguments. False: its place is unclear, or it is empty."""
        at = self.start
        if self.is_counted:
            if self.count_at >= count:
                return False
            at = self.first
            stop = at + self.step * _number(data, places[2 * self.count_at], places[2 * self.count_at + 1])
        else:
            if self.has_keyword:
                at = _after(data, places, count, self.keyword)
            if self.last >= 0:
                stop = at + self.last + 1
            else:
                if (count - at) % self.limit != 0:
                    return False
                stop = at + (count - at) // self.limit + self.last + 1
        if at < 1 or stop <= at or stop > count or (stop - at) % self.step != 0:
            return False
        self.at = at
        self.stop = stop
        return True


def runs_of(layout: CallLayout) -> list[Run]:
    """The runs of keys and the channel of a command."""
    runs = [Run(number, spec) for number, spec in enumerate(layout.keys)]
    return [*runs, Run(len(runs), None, layout.channel_at)] if layout.channel_at else runs


def _after(data: bytes, places: array[int], count: int, keyword: int) -> int:
    """The position after a keyword (`_folded`), before which only known options stand; -1: something else
    does."""
    at = 1
    while at < count:
        word = _folded(data, places[2 * at], places[2 * at + 1])
        if word == keyword:
            return at + 1 if word else -1
        taken = 0
        for number in range(len(_TAKES)):
            if _OPTIONS[number] == word:
                taken = _TAKES[number]
        if taken == 0:
            return -1
        at += taken
    return -1


def _number(data: bytes, start: int, end: int) -> int:
    """A plain decimal number; -1 for anything else."""
    raw = data
    if start >= end or end - start > _MOST_DIGITS or raw[start] == _ZERO:
        return -1
    number = 0
    for at in range(start, end):
        byte = raw[at]
        if byte < _ZERO or byte > _NINE:
            return -1
        number = number * 10 + (byte - _ZERO)
    return number


def _folded(data: bytes, start: int, end: int) -> int:
    """A word as a number, which is the same in capital and small letters; 0 for a longer word than those that
    are looked for."""
    raw = data
    if end - start > _LONGEST_WORD:
        return 0
    number = 0
    for at in range(start, end):
        number = number << 8 | raw[at] | _SMALL
    return number


# Options that may stand before a keyword, and how many arguments each takes, with itself.
_OPTIONS = array("q", [_folded(name, 0, len(name)) for name in XREAD_OPTIONS])
_TAKES = bytes(XREAD_OPTIONS.values())
