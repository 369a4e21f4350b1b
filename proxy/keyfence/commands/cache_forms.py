"""Where commands have their keys, and the arguments that decide: for the decision cache.

Rule: a command with one key that is not listed here has no such arguments, or the decision cache leaves it to
the evaluator; it leaves all other commands to the evaluator that are not listed. What is said of keys here
is what `extract` finds (tests/commands/test_cache_forms.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .extract import ONE_KEY
from .model import Command
from .table import COMMANDS, KeySpec

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

# -- commands with several keys, a script, a pattern or a channel


class Layout(NamedTuple):
    """Where such a command has its keys and channels, and which other arguments decide about it."""

    command: Command
    keys: tuple[KeySpec, ...]  # each is a run of arguments with equal effects
    channel_at: int  # 0: it names none
    # The arguments besides keys and channels that decide, from the first to before the last; (0, 0): none.
    # 0 as the second one: to the end. All others are values, cursors, messages, members, times, weights, or
    # options that change nothing of what is touched.
    decides: tuple[int, int] = (0, 0)


_NOTHING: Final = (0, 0)
_DECIDES: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys(("EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO"), (1, 3)),
    "COPY": (3, 0),
    "KEYS": (1, 0),
    "SCAN": (2, 0),
}
_KEYS_DECIDE: Final = """
    BITOP BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH BZMPOP BZPOPMAX BZPOPMIN GEOSEARCHSTORE LCS LMOVE LMPOP MSET
    MSETNX PFMERGE RENAME RPOPLPUSH SDIFFSTORE SINTERCARD SINTERSTORE SMOVE SUNIONSTORE XREAD XREADGROUP ZDIFF
    ZDIFFSTORE ZINTER ZINTERCARD ZINTERSTORE ZMPOP ZRANGESTORE ZUNION ZUNIONSTORE
"""
_CHANNEL_AT: Final[Mapping[str, int]] = {"PUBLISH": 1, "SPUBLISH": 1}


def _layouts() -> dict[bytes, Layout]:
    """All layouts by the command's name, in upper and in lower case."""
    several = {one.command.name for one in ONE_KEY.values() if one.may_have_more and not one.options_decide}
    found = {}
    for name, row in COMMANDS.items():
        command = row.command.name
        if command in several or command in _KEYS_DECIDE.split() or command in _CHANNEL_AT:
            decides = _NOTHING
        elif command in _DECIDES:
            decides = _DECIDES[command]
        else:
            continue
        keys = tuple(spec for spec in row.specs if spec.is_key)
        layout = Layout(row.command, keys, _CHANNEL_AT.get(command, 0), decides)
        found[name] = found[name.lower()] = layout
    return found


LAYOUTS: Final[Mapping[bytes, Layout]] = _layouts()
