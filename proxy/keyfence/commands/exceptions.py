"""Parsers for the commands whose options decide which keys are touched, or how.

Rule: one function per command or family that key specs cannot describe exactly, which parses the options as
the server does and names the server source it follows. Each reads every argument a bounded number of times,
even if options repeat.

A server runs nothing after a syntax error, but another version may know the option. So after the first
unknown option, every position that could hold a key counts as a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .arguments import MOST_OPTIONS, glob_escape, integer, may_hold, option, options, word
from .model import ANY_KEY, DELETE, GROUP, READ, WRITE, Problem, Streamed, Unseen

Argv = Sequence[bytes]


class Run(NamedTuple):
    """Positions of keys, the rights needed there, and the role: the index of the row's key spec."""

    positions: range
    needs: int
    role: int = 0


class Keys(NamedTuple):
    """The keys of one command, and a problem if there may be more."""

    runs: list[Run]
    problem: Problem | None = None


Finder = Callable[[Argv], Keys]
MAX_UNSEEN = 16  # globs listed for one command; with more, the command may touch any key


def bounded(unseen: Iterable[Unseen]) -> tuple[Unseen, ...]:
    """`unseen` without duplicates, or a single `*` if there are more than MAX_UNSEEN."""
    found = dict.fromkeys(unseen)
    return tuple(found) if len(found) <= MAX_UNSEEN else (next(iter(found))._replace(glob=b"*"),)


# -- options that change the rights needed on the key at position 1: functions from argv to needs


def set_(argv: Argv) -> int:
    """SET: GET returns the old value; IFEQ and similar (Valkey 8.1, Redis 8.4) show whether it equals
    another.

    As `src/db.c` setGetKeys, this looks at every argument from the third on, even if it is not an option.
    """
    return READ | WRITE if any(name in _SET_READS for name in options(argv, 3)) else WRITE


_SET_READS = frozenset({b"GET", b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})


def getex(argv: Argv) -> int:
    """GETEX without options is a GET (`src/t_string.c`, getexCommand)."""
    return READ if len(argv) == 2 else READ | WRITE


def hgetex(argv: Argv) -> int:
    """HGETEX key FIELDS n field …, with no other option, is an HMGET (`src/t_hash.c` of Redis 8)."""
    if len(argv) > 3 and word(argv[2]) == b"FIELDS" and integer(argv[3]) == len(argv) - 4:
        return READ
    return READ | WRITE


def delete_if(argv: Argv) -> int:
    """DELEX (Redis 8.4) with a condition, and DELIFEQ (Valkey 9), show whether the value equals another."""
    return WRITE | DELETE if len(argv) == 2 else READ | WRITE | DELETE


def bitfield(argv: Argv) -> int:
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


def zadd(argv: Argv) -> int:
    """ZADD … INCR returns the new score, as ZINCRBY does (`src/t_zset.c`, zaddGenericCommand)."""
    for name in options(argv, 2):
        if name == b"INCR":
            return READ | WRITE
        if name not in _ZADD_OPTIONS:
            break
    return WRITE


_ZADD_OPTIONS = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH"})


def claim(argv: Argv) -> int:
    """XCLAIM returns the entries' content, or with JUSTID only IDs that argv names (`src/t_stream.c`)."""
    # Among very many IDs it is not looked for: without it, more rights are needed.
    justid = len(argv) <= MOST_OPTIONS and b"JUSTID" in options(argv, 5)
    return WRITE | GROUP if justid else READ | WRITE | GROUP


def autoclaim(_argv: Argv) -> int:
    """XAUTOCLAIM returns IDs that argv does not name, with JUSTID too (`src/t_stream.c`)."""
    return READ | WRITE | GROUP


# -- destinations named by options


def sort(argv: Argv) -> Keys:
    """SORT: the last STORE counts. BY and GET patterns read keys whose names contain the sorted elements.

    `src/sort.c`: a pattern without `*` reads no key (BY then does not sort, and GET returns nil). `GET #` is
    the element itself.
    """
    stores: list[int] = []
    patterns: list[int] = []
    index = 2
    while index < len(argv):
        name, left = option(argv, index), len(argv) - index - 1
        if name == b"LIMIT" and left >= 2:
            index += 2
        elif name == b"STORE" and left >= 1:
            index += 1
            stores = [index]
        elif name in (b"BY", b"GET") and left >= 1:
            index += 1
            if may_hold(argv[index], b"*"):
                patterns.append(index)
        elif name not in _SORT_FLAGS:
            stores += _after(argv, _SORT_STORES, index)
            break
        index += 1
    problem = None
    if patterns:
        unseen = bounded(Unseen(_with_any_element(argv[at]), READ) for at in patterns)
        problem = Problem("command.unknown", patterns[0], _NAMED_BY_ELEMENTS, unseen)
    return Keys(_source(argv) + _destinations(stores, 2), problem)


_NAMED_BY_ELEMENTS = "the sorted elements are part of the names of the keys that its BY and GET patterns read"


def _with_any_element(pattern: bytes) -> bytes:
    """A glob for all keys that a pattern can name: any element in place of the first `*`, and no field after
    `->` (`src/sort.c`, lookupKeyByPattern, which searches C strings)."""
    if isinstance(pattern, Streamed) or b"\0" in pattern:
        return b"*"
    before, _, after = pattern.partition(b"*")
    name, _, field = after.partition(b"->")
    return glob_escape(before) + b"*" + glob_escape(name if field else after)


_SORT_FLAGS = frozenset({b"ASC", b"DESC", b"ALPHA"})
_SORT_STORES = frozenset({b"STORE"})


def sort_ro(argv: Argv) -> Keys:
    """SORT_RO: SORT without STORE."""
    runs, problem = sort(argv)
    return Keys(runs[:1], problem)


def georadius(argv: Argv) -> Keys:
    """GEORADIUS key longitude latitude radius unit …: the last of STORE and STOREDIST counts."""
    return _georadius(argv, 6)


def georadiusbymember(argv: Argv) -> Keys:
    """GEORADIUSBYMEMBER key member radius unit …: the last of STORE and STOREDIST counts."""
    return _georadius(argv, 5)


def _georadius(argv: Argv, index: int) -> Keys:
    """Parses options from `index` on as `src/geo.c`, georadiusGeneric."""
    stores: list[int] = []
    while index < len(argv):
        name, left = option(argv, index), len(argv) - index - 1
        if name in _GEO_STORES and left >= 1:
            index += 1
            stores = [index]
        elif name == b"COUNT" and left >= 1:
            index += 1
        elif name not in _GEO_FLAGS:
            stores += _after(argv, _GEO_STORES, index)
            break
        index += 1
    return Keys(_source(argv) + _destinations(stores, 1))


_GEO_FLAGS = frozenset({b"WITHDIST", b"WITHHASH", b"WITHCOORD", b"ANY", b"ASC", b"DESC"})
_GEO_STORES = frozenset({b"STORE", b"STOREDIST"})


def _one(position: int) -> range:
    return range(position, position + 1)


def _source(argv: Argv) -> list[Run]:
    return [Run(_one(1), READ)] if len(argv) > 1 else []


def _destinations(positions: list[int], role: int) -> list[Run]:
    return _runs(map(_one, sorted(set(positions))), WRITE, role)


def _runs(pieces: Iterable[range], needs: int, role: int = 0) -> list[Run]:
    """Ascending pieces as runs. Overlapping pieces become one run."""
    runs: list[Run] = []
    first = end = 0
    for piece in pieces:
        if piece.start > end:
            if end:
                runs.append(Run(range(first, end), needs, role))
            first = piece.start
        end = max(end, piece.stop)
    if end:
        runs.append(Run(range(first, end), needs, role))
    return runs


def _after(argv: Argv, names: frozenset[bytes], start: int) -> Iterator[int]:
    """The position after each argument that is one of `names`. Reads all remaining arguments, so call it
    once. Raises TooManyOptions."""
    return (i + 1 for i in range(start, len(argv) - 1) if option(argv, i) in names)


# -- keys after an option


def xread(argv: Argv) -> Keys:
    """XREAD, XREADGROUP: the first half of the arguments after the option STREAMS.

    `src/t_stream.c`, xreadCommand: STREAMS may also be the name of a group, a consumer or a key.
    """
    index = 1
    while index < len(argv):
        name = option(argv, index)
        if name == b"STREAMS":
            return _halves(argv, [index + 1])
        if name not in XREAD_OPTIONS:
            return _halves(argv, _after(argv, _STREAMS, index))
        index += XREAD_OPTIONS[name]
    return Keys([])


# How many arguments each option takes, including itself. CLAIM: Redis 8.4.
XREAD_OPTIONS = {b"BLOCK": 2, b"CLAIM": 2, b"COUNT": 2, b"GROUP": 3, b"NOACK": 1}
_STREAMS = frozenset({b"STREAMS"})


def _halves(argv: Argv, starts: Iterable[int]) -> Keys:
    """The first half of the rest are keys, the second half IDs. An odd number is an error; the middle one
    counts as a key."""
    needs = READ | WRITE if word(argv[0]) == b"XREADGROUP" else READ
    size = len(argv)
    return Keys(_runs((range(start, start + (size - start + 1) // 2) for start in starts), needs))


def migrate(argv: Argv) -> Keys:
    """MIGRATE host port key|"" db timeout …: the key, or those after KEYS. With COPY they stay in place.

    `src/cluster.c`, migrateCommand: without KEYS the empty string is an ordinary key. KEYS together with a
    key is an error.
    """
    copies = False
    first = 0
    index = 6
    while index < len(argv) and not first:
        name, left = option(argv, index), len(argv) - index - 1
        if name == b"KEYS":
            first = index + 1
        elif name == b"COPY":
            copies = True
        elif name == b"AUTH" and left >= 1:
            index += 1
        elif name == b"AUTH2" and left >= 2:
            index += 2
        elif name != b"REPLACE":
            first = next(_after(argv, _KEYS, index), 0)
            break
        index += 1
    needs = READ if copies else READ | WRITE
    runs = [Run(_one(3), needs, 0)] if len(argv) > 3 and (argv[3] or not first) else []
    if first:
        runs.append(Run(range(first, len(argv)), needs, 1))
    return Keys(runs)


_KEYS = frozenset({b"KEYS"})


def stralgo(argv: Argv) -> Keys:
    """STRALGO LCS … KEYS a b (Redis 6.2 only; `src/t_string.c`, stralgoLCS)."""
    if len(argv) > 1 and word(argv[1]) != b"LCS":
        return Keys([], Problem("command.unknown", 1, "no known server has this algorithm"))
    index = 2
    while index < len(argv):
        name = option(argv, index)
        if name == b"KEYS":
            return Keys([Run(range(index + 1, min(index + 3, len(argv))), READ)])
        index += {b"MINMATCHLEN": 2, b"STRINGS": 3}.get(name, 1)
    return Keys([])


def debug(argv: Argv) -> Keys:
    """DEBUG: some subcommands name keys, some touch none, and the others may touch any (`src/debug.c`)."""
    if len(argv) < 2:
        return Keys([])
    name = word(argv[1])
    if name in _DEBUG_ONE_KEY:
        return Keys([Run(_one(2), READ)] if len(argv) > 2 else [])
    if name == b"DIGEST-VALUE":
        return Keys([Run(range(2, len(argv)), READ)])
    if name in _DEBUG_NO_KEY:
        return Keys([])
    return Keys([], Problem("command.unknown", 1, "this DEBUG subcommand may touch any key", ANY_KEY))


_DEBUG_ONE_KEY = frozenset({b"OBJECT", b"SDSLEN", b"ZIPLIST", b"LISTPACK", b"QUICKLIST", b"HTSTATS-KEY"})
_DEBUG_NO_KEY = frozenset({b"HELP", b"SLEEP", b"JMAP", b"ERROR", b"LOG", b"PROTOCOL", b"STRUCTSIZE"})


def himport_set(argv: Argv) -> Keys:
    """HIMPORT SET key fieldset value …: an earlier HIMPORT PREPARE named the fields (Redis 8.10)."""
    reason = "an earlier HIMPORT PREPARE named the fields that it writes"
    problem = Problem("command.unknown", 3, reason)
    return Keys([Run(_one(2), WRITE)] if len(argv) > 2 else [], problem)


# -- numbers of keys


def numkeys(argv: Argv, count_at: int, first: int, step: int = 1) -> range:
    """The positions of counted keys, `step` arguments apart: EVAL, ZUNION, MSETEX …

    All known servers answer an error if the count is not a positive integer, or exceeds the number of
    arguments. Other servers might read it differently, so then all arguments from `first` on count as keys.
    """
    count = integer(argv[count_at]) if count_at < len(argv) else None
    if count is None or not 0 < count * step <= len(argv) - first:
        return range(first, len(argv))
    return range(first, first + count * step, step)


def script(argv: Argv) -> Keys:
    """EVAL, EVALSHA, FCALL: the declared keys. Declaring none, or a wrong number, is a problem."""
    return _script(argv, READ | WRITE)


def script_ro(argv: Argv) -> Keys:
    """EVAL_RO, EVALSHA_RO, FCALL_RO: as EVAL, but the server refuses writes."""
    return _script(argv, READ)


def _script(argv: Argv, needs: int) -> Keys:
    if len(argv) < 3:
        return Keys([])
    count = integer(argv[2])
    if count == 0:
        return Keys([], Problem("script.keys", 2, "it declares no keys", (Unseen(b"*", needs),)))
    problem = None
    if count is None or not 0 < count <= len(argv) - 3:
        reason = "its number of keys is not the number of keys that follow"
        problem = Problem("script.keys", 2, reason, (Unseen(b"*", needs),))
    return Keys([Run(numkeys(argv, 2, 3), needs)], problem)


NEEDS: dict[str, Callable[[Argv], int]] = {
    "BITFIELD": bitfield,
    "DELEX": delete_if,
    "DELIFEQ": delete_if,
    "GETEX": getex,
    "HGETEX": hgetex,
    "SET": set_,
    "XAUTOCLAIM": autoclaim,
    "XCLAIM": claim,
    "ZADD": zadd,
}

FINDERS: dict[str, Finder] = {
    "SORT": sort,
    "SORT_RO": sort_ro,
    "GEORADIUS": georadius,
    "GEORADIUSBYMEMBER": georadiusbymember,
    "XREAD": xread,
    "XREADGROUP": xread,
    "HIMPORT SET": himport_set,
    "MIGRATE": migrate,
    "STRALGO": stralgo,
    "DEBUG": debug,
    "EVAL": script,
    "EVALSHA": script,
    "FCALL": script,
    "EVAL_RO": script_ro,
    "EVALSHA_RO": script_ro,
    "FCALL_RO": script_ro,
}
