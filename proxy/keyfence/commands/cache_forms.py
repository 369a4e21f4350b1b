"""Where commands have their keys, the arguments that decide, and what they write: for the decision cache.

Rule: positions count from the command's name. A command with one key that is not listed here has no such
arguments, or the decision cache leaves it to the evaluator; it leaves all other commands to the evaluator
that are not listed (tests/policy/engine/test_calls.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .extract import ONE_KEY
from .model import Command
from .table import COMMANDS, KeySpec

# Which arguments are options, so that two calls with equal ones are of one form.
NO_OPTIONS: Final = 0  # no argument but the key decides anything
TO_END: Final = 1  # all from `options_at` on: SET key value options…, EXPIRE key options…
ONE_OPTION: Final = 2  # SETEX key seconds value
TRIMMING: Final = 3  # XADD key MAXLEN ~ n * field value…
FLAGS: Final = 4  # ZADD key options… score member…
SEVERAL_KEYS: Final = 5  # none, and all arguments after the key are keys too: DEL key…
KEYLESS: Final = 6  # PING

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


_VALUE = Layout(NO_OPTIONS, 2, VALUE, 2, is_single=True)
_FIELDS = Layout(NO_OPTIONS, 2, FIELDS, 2, 2, 1)
_FIELD = Layout(NO_OPTIONS, 2, FIELDS, 2, 2, 0, is_single=True)  # its value is not shown
_ELEMENTS = Layout(NO_OPTIONS, 2, ELEMENTS, 2)
_SECOND = Layout(NO_OPTIONS, 2, ELEMENTS, 3, is_single=True)  # one element, after another argument

LAYOUTS: Final[Mapping[str, Layout]] = {
    "APPEND": _ELEMENTS,
    "EXPIRE": Layout(TO_END, 2),
    "GEOADD": Layout(FLAGS, 2, ELEMENTS, 0, 3, 2),
    "GETEX": Layout(TO_END, 2),
    "GETSET": _VALUE,
    "HINCRBY": _FIELD,
    "HINCRBYFLOAT": _FIELD,
    "HMSET": _FIELDS,
    "HSET": _FIELDS,
    "HSETNX": _FIELDS,
    "LINSERT": _SECOND._replace(content_at=4),
    "LPUSH": _ELEMENTS,
    "LPUSHX": _ELEMENTS,
    "LSET": _SECOND,
    "PEXPIRE": Layout(TO_END, 2),
    "PSETEX": Layout(ONE_OPTION, 2, VALUE, is_single=True),
    "RPUSH": _ELEMENTS,
    "RPUSHX": _ELEMENTS,
    "SADD": _ELEMENTS,
    "SET": Layout(TO_END, 3, VALUE, 2, is_single=True),
    "SETBIT": Layout(content=LENGTH),
    "SETEX": Layout(ONE_OPTION, 2, VALUE, is_single=True),
    "SETNX": _VALUE,
    "SETRANGE": Layout(content=LENGTH),
    "XADD": Layout(TRIMMING, 2, FIELDS, 0, 2, 1),
    "ZADD": Layout(FLAGS, 2, ELEMENTS, 0, 2, 1, is_scored=True),
    "ZINCRBY": _SECOND,
}
PLAIN: Final = Layout()
SCORED_OPTIONS: Final = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"})

# -- commands with several keys, a script, a pattern or a channel


class CallLayout(NamedTuple):
    """Where such a command has its keys and channels, and which other arguments decide about it."""

    command: Command
    keys: tuple[KeySpec, ...]  # each is a run of arguments with equal effects
    channel_at: int  # 0: it names none
    # The arguments besides keys and channels that decide, from the first to before the last; (0, 0): none.
    # 0 as the second one: to the end. All others are values, cursors, messages, members, times, weights, or
    # options that change nothing of what is touched.
    decides: tuple[int, int] = (0, 0)


_NONE: Final = (0, 0)
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


def _layouts() -> dict[bytes, CallLayout]:
    """All layouts by the command's name, in upper and in lower case."""
    several = {one.command.name for one in ONE_KEY.values() if one.may_have_more and not one.options_decide}
    found = {}
    for name, row in COMMANDS.items():
        command = row.command.name
        if command in several or command in _KEYS_DECIDE.split() or command in _CHANNEL_AT:
            decides = _NONE
        elif command in _DECIDES:
            decides = _DECIDES[command]
        else:
            continue
        keys = tuple(spec for spec in row.specs if spec.is_key)
        layout = CallLayout(row.command, keys, _CHANNEL_AT.get(command, 0), decides)
        found[name] = found[name.lower()] = layout
    return found


CALL_LAYOUTS: Final[Mapping[bytes, CallLayout]] = _layouts()
