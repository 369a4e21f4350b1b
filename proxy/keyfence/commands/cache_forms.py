"""Where a command has the arguments that decide, and what it writes to a key: for the decision cache.

Rule: positions count from the command's name. A command whose layout is PLAIN has no such arguments, or the
decision cache leaves it to the evaluator. A command's layout is in its row (`facts.Facts`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Which arguments are options, so that two calls with equal ones are of one form.
NO_OPTIONS: Final = 0  # no argument but the key decides anything
TO_END: Final = 1  # all from `options_at` on: SET key value options…, EXPIRE key options…
ONE_OPTION: Final = 2  # SETEX key seconds value
TRIMMING: Final = 3  # XADD key MAXLEN ~ n * field value…
FLAGS: Final = 4  # ZADD key options… score member…
UP_TO: Final = 5  # those before the one that `CallLayout.decides` names: EVALSHA sha1 numkeys

# What a command writes.
NOTHING: Final = 0  # nothing that its arguments show
VALUE: Final = 1  # a string
FIELDS: Final = 2  # fields of a hash or stream
ELEMENTS: Final = 3  # elements of a list, set or sorted set
LENGTH: Final = 4  # a part of a string at an offset, so that only its length may be wrong


class Layout(NamedTuple):
    """Where a command has its options, and what it writes."""

    options: int = NO_OPTIONS
    options_at: int = 2
    content: int = NOTHING
    content_at: int = 0  # its first argument; 0: the one after the options
    step: int = 1  # the distance from one value, field or element to the next
    last: int = 0  # the last argument of one, counted from its first: 1 for a field and its value
    is_single: bool = False  # there is only one
    is_scored: bool = False  # the first argument of one is its score


PLAIN: Final = Layout()
SCORED_OPTIONS: Final = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})
