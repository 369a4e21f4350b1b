"""Where commands with one key have the arguments that decide: for the decision cache.

Rule: a command that is not listed here has no such arguments, or the decision cache leaves it to the
evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Which arguments are options, so that two calls with equal ones are of one form.
NO_OPTIONS: Final = 0  # no argument but the key decides anything
BEHIND_VALUE: Final = 1  # SET key value options…
BEHIND_KEY: Final = 2  # EXPIRE key options…
BEFORE_VALUE: Final = 3  # SETEX key seconds value
XADD: Final = 4  # XADD key MAXLEN ~ n * field value…
SEVERAL_KEYS: Final = 5  # DEL key…
SCORED: Final = 6  # ZADD key options… score member…
KEYLESS: Final = 7  # PING

OPTIONS: Final[Mapping[str, int]] = {
    "SET": BEHIND_VALUE,
    "EXPIRE": BEHIND_KEY,
    "PEXPIRE": BEHIND_KEY,
    "GETEX": BEHIND_KEY,
    "SETEX": BEFORE_VALUE,
    "PSETEX": BEFORE_VALUE,
    "XADD": XADD,
    "ZADD": SCORED,
    "GEOADD": SCORED,
}
SCORED_OPTIONS: Final = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})
XADD_ID: Final = 5  # where the ID is behind MAXLEN, ~ or =, and a number

# The position of the value, and of the first field. Where XADD has its fields depends on its form.
VALUE_AT: Final[Mapping[str, int]] = {"SET": 2, "SETNX": 2, "GETSET": 2, "SETEX": 3, "PSETEX": 3}
FIELDS_AT: Final[Mapping[str, int]] = {"HSET": 2, "HMSET": 2, "HSETNX": 2}

# Commands that make the key hold no more than their arguments are long and many …
ELEMENTS: Final = frozenset(
    {"APPEND", "GEOADD", "LINSERT", "LPUSH", "LPUSHX", "LSET", "RPUSH", "RPUSHX", "SADD", "ZADD", "ZINCRBY"}
)
# … and commands that make a value longer than that, by an offset.
OFFSETS: Final = frozenset({"SETBIT", "SETRANGE"})
