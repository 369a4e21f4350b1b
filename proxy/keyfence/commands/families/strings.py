"""Commands on strings, bitmaps and HyperLogLogs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keyfence.commands.arguments import MOST_OPTIONS, each_option, integer, option, options, word
from keyfence.commands.cache_forms import ELEMENTS, LENGTH, ONE_OPTION, TO_END, VALUE, Layout
from keyfence.commands.content import of_keys_from, value_at
from keyfence.commands.facts import KEYS_ONLY, Argv, Facts, KeyFinder, OnKey, Rights, TtlOf, each, together
from keyfence.commands.key_runs import Keys, Run
from keyfence.commands.model import DELETE, READ, REPLACES, WRITE, Content, Problem, Streamed, Ttl
from keyfence.commands.ttl import DROPS, EDITS, KEEPS, STORES, STORES_NEW, milliseconds

# -- SET and its like

# The options for a time: how many milliseconds the unit has, and whether the time is absolute.
_TIMES = {b"EX": (1000, False), b"PX": (1, False), b"EXAT": (1000, True), b"PXAT": (1, True)}
# Each takes the next argument as a value, even if that looks like an option (Valkey 8.1, Redis 8.4).
_COMPARES = frozenset({b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})
_DIGEST = re.compile(rb"[0-9a-fA-F]{16}")


def _set_needs(argv: Argv) -> int:
    """SET: GET returns the old value; IFEQ and similar show whether it equals another.

    As `src/db.c` setGetKeys, this looks at every argument from the third on, even if it is not an option.
    """
    return READ | WRITE if any(name == b"GET" or name in _COMPARES for name in options(argv, 3)) else WRITE


def _set_answers_twice(argv: Argv) -> bool:
    """SET … GET with a malformed digest: Redis 8.4 sends the old value, and then an error (`src/t_string.c`,
    setGenericCommand). Every argument counts as an option here, even if it is a value."""
    if len(argv) > MOST_OPTIONS:
        return True
    names = [*options(argv, 3)]
    digests = [argv[at] for at, name in enumerate(names[:-1], 4) if name in (b"IFDEQ", b"IFDNE")]
    return b"GET" in names and not all(map(_DIGEST.fullmatch, digests))


def _set_ttl(argv: Argv) -> Ttl:
    """SET (`src/t_string.c`, parseExtendedStringArgumentsOrReply)."""
    if len(argv) == 3:
        return DROPS
    keeps, condition, time = False, "", 0
    index = 3
    while index < len(argv):
        name = option(argv, index)
        if name in _TIMES and index + 1 < len(argv):
            time = index = index + 1
        elif name == b"KEEPTTL":
            keeps = True
        elif name in (b"NX", b"XX"):
            condition = name.decode()
        elif name in _COMPARES:
            condition = name.decode()
            index += 1
        index += 1
    creates = condition != "XX"
    if time:
        unit, absolute = _TIMES[word(argv[time - 1])]
        return Ttl("sets", milliseconds(argv[time], unit), absolute, time, condition, creates)
    return Ttl("keeps" if keeps else "drops", None, False, 0, condition, creates)


def _setex_ttl(unit: int) -> TtlOf:
    """SETEX key seconds value, PSETEX key milliseconds value."""
    return lambda argv: Ttl("sets", milliseconds(argv[2], unit), position=2) if len(argv) > 2 else KEEPS


def _msetex_ttl(argv: Argv) -> Ttl:
    """MSETEX numkeys key value … [options of SET]: Redis 8.4 (`src/t_string.c`, msetexCommand)."""
    pairs = integer(argv[1]) if len(argv) > 1 else None
    behind = 2 + 2 * pairs if pairs is not None and 0 < pairs < len(argv) else len(argv)
    ttl = _set_ttl([b"SET", b"", b"", *argv[behind:]])
    return ttl if not ttl.position else ttl._replace(position=ttl.position - 3 + behind)


def _replacing(on_key: OnKey, layout: Layout) -> Facts:
    """A command whose arguments hold the whole new value, of its one key or behind each key."""
    return Facts(on_keys=(on_key._replace(losses=REPLACES),), grows=False, layout=layout)


_SETTING_ONE = Layout(content=VALUE, content_at=2, is_single=True)
_SETTING_ONE_WITH_TIME = Layout(ONE_OPTION, content=VALUE, is_single=True)

_SETTING = {
    "GETSET": _replacing(OnKey(STORES), _SETTING_ONE),
    "MSET": _replacing(OnKey(STORES), _SETTING_ONE)._replace(decides=KEYS_ONLY),
    "MSETEX": Facts(on_keys=(OnKey(_msetex_ttl, value_at(1), REPLACES),), grows=False),
    "MSETNX": _replacing(OnKey(STORES_NEW), _SETTING_ONE)._replace(decides=KEYS_ONLY),
    "PSETEX": _replacing(OnKey(_setex_ttl(1)), _SETTING_ONE_WITH_TIME),
    "SET": _replacing(OnKey(_set_ttl), _SETTING_ONE._replace(options=TO_END, options_at=3))._replace(
        rights=Rights(_set_needs, "write; with GET or a comparison read and write"),
        answers_twice=_set_answers_twice,
    ),
    "SETEX": _replacing(OnKey(_setex_ttl(1000)), _SETTING_ONE_WITH_TIME),
    "SETNX": _replacing(OnKey(STORES_NEW), _SETTING_ONE),
}

# -- one value, read, changed or removed


def _getex_needs(argv: Argv) -> int:
    """GETEX without options is a GET (`src/t_string.c`, getexCommand)."""
    return READ if len(argv) == 2 else READ | WRITE


def _last_time(argv: Argv, others: Iterable[bytes] = ()) -> tuple[bytes, int]:
    """The last option that is a time or PERSIST, and where the time stands; an empty name if there is none.
    `others`: further options that take an argument."""
    last, at = b"", 0
    for name, index in each_option(argv, 2, dict.fromkeys((*_TIMES, *others), 1)):
        if name in _TIMES or name == b"PERSIST":
            last, at = name, index + 1
    return last, at


def _getex_ttl(argv: Argv) -> Ttl:
    """GETEX: a time, PERSIST, or no option."""
    name, at = _last_time(argv)
    if name not in _TIMES:
        return Ttl("drops", creates=False) if name else EDITS
    unit, absolute = _TIMES[name]
    return Ttl("expires", milliseconds(argv[at], unit), absolute, at, creates=False)


def _increx_ttl(argv: Argv) -> Ttl:
    """INCREX key [BYINT n] [LBOUND n] … [EX seconds | … | PERSIST] [ENX] (Redis 8.8)."""
    name, at = _last_time(argv, (b"BYFLOAT", b"BYINT", b"LBOUND", b"UBOUND"))
    if name not in _TIMES:
        return DROPS if name else KEEPS
    unit, absolute = _TIMES[name]
    return Ttl("sets", milliseconds(argv[at], unit), absolute, at)


def _delete_if(argv: Argv) -> int:
    """DELEX (Redis 8.4) with a condition, and DELIFEQ (Valkey 9), show whether the value equals another."""
    return WRITE | DELETE if len(argv) == 2 else READ | WRITE | DELETE


def _appended(argv: Argv, position: int) -> Content | None:
    """APPEND key value."""
    at = position + 1
    return Content(least=_length(argv[at]), value_position=at) if at < len(argv) else None


def _overwritten(argv: Argv, position: int) -> Content | None:
    """SETRANGE key offset value; an empty value changes nothing (`src/t_string.c`, setrangeCommand)."""
    at = position + 2
    offset = integer(argv[at - 1]) if at < len(argv) else None
    if offset is None or offset < 0 or not argv[at]:
        return None
    return Content(least=offset + _length(argv[at]), value_position=at)


def _length(value: bytes) -> int:
    return value.size if isinstance(value, Streamed) else len(value)


def _common(argv: Argv) -> Keys:
    """STRALGO LCS … KEYS a b (Redis 6.2 only; `src/t_string.c`, stralgoLCS)."""
    if len(argv) > 1 and word(argv[1]) != b"LCS":
        return Keys([], Problem("command.unknown", 1, "no known server has this algorithm"))
    for name, index in each_option(argv, 2, {b"MINMATCHLEN": 1, b"STRINGS": 2}):
        if name == b"KEYS":
            return Keys([Run(range(index + 1, min(index + 3, len(argv))), READ)])
    return Keys([])


_REMOVED = OnKey(removes_key=True)

_CHANGING = {
    "APPEND": Facts(on_keys=(OnKey(content=_appended),), layout=Layout(content=ELEMENTS, content_at=2)),
    "DELEX": Facts(
        on_keys=(_REMOVED,), rights=Rights(_delete_if, "delete; with a condition read and delete")
    ),
    "DELIFEQ": Facts(on_keys=(_REMOVED,), rights=Rights(_delete_if, "read and delete")),
    "GETDEL": Facts(on_keys=(_REMOVED,)),
    "GETEX": Facts(
        on_keys=(OnKey(_getex_ttl),),
        rights=Rights(_getex_needs, "read and write; without options read"),
        layout=Layout(TO_END),
    ),
    "INCREX": Facts(on_keys=(OnKey(_increx_ttl),)),
    "LCS": Facts(decides=KEYS_ONLY),
    "SETRANGE": Facts(on_keys=(OnKey(content=_overwritten),), grows=False, layout=Layout(content=LENGTH)),
    "STRALGO": Facts(found=KeyFinder(_common, "two after KEYS", "read")),
    **each("DECR DECRBY INCR INCRBY", Facts(leaves_integer=True)),
}

# -- bitmaps and HyperLogLogs


def _bitfield(argv: Argv) -> int:
    """BITFIELD only reads if all its operations are GET or OVERFLOW (`src/bitops.c`, bitfieldGeneric)."""
    index = 2
    while index < len(argv):
        name, left = word(argv[index]), len(argv) - index - 1
        if index > MOST_OPTIONS:
            return READ | WRITE  # it may write: that is the stricter reading
        if name == b"GET" and left >= 2:
            index += 3
        elif name == b"OVERFLOW" and left >= 1:
            index += 2
        else:
            return READ | WRITE
    return READ


def _bit_set(argv: Argv, position: int) -> Content | None:
    """SETBIT key offset bit."""
    offset = integer(argv[position + 1]) if position + 1 < len(argv) else None
    if offset is None or offset < 0:
        return None
    return Content(least=offset // 8 + 1, value_position=position + 1)


_BITS = {
    "BITFIELD": Facts(rights=Rights(_bitfield, "read and write; with nothing but GET read")),
    "BITOP": Facts(on_keys=(OnKey(STORES, of_keys_from("result", 3)),), decides=KEYS_ONLY),
    "PFDEBUG": Facts(on_keys=(OnKey(EDITS),)),
    "PFMERGE": Facts(on_keys=(OnKey(content=of_keys_from("result", 2)),), decides=KEYS_ONLY),
    "SETBIT": Facts(on_keys=(OnKey(content=_bit_set),), grows=False, layout=Layout(content=LENGTH)),
}

STRINGS = together(_SETTING, _CHANGING, _BITS)
