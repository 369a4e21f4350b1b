"""Rule: where options decide which keys are touched or how, options are parsed as the server parses them.

One function per command (or family) that the key specs can't describe exactly. Each says which server source
it follows. A server that finds a syntax error runs nothing, but another version may know the option that
this one doesn't; so from the first word that isn't understood on, every place is taken that could hold a key.

Each of them reads an argument a fixed number of times at most, however the words in it repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from .arguments import glob_escape, integer, may_hold, word
from .model import ANY_KEY, DELETE, GROUP, READ, WRITE, Problem, Streamed, Unseen

Argv = Sequence[bytes]


class Run(NamedTuple):
    """Where keys are, what the command needs there, and which of the row's key specs they belong to."""

    positions: range
    needs: int
    role: int = 0


class Keys(NamedTuple):
    """The keys of one command, and why they aren't all where that can't be known."""

    runs: list[Run]
    problem: Problem | None = None


Finder = Callable[[Argv], Keys]
MOST_UNSEEN = 16  # globs that are told of one command; beyond, it may touch any key


def few(unseen: Iterable[Unseen]) -> tuple[Unseen, ...]:
    """Each of them once, or one that stands for all where they are many."""
    found = dict.fromkeys(unseen)
    return tuple(found) if len(found) <= MOST_UNSEEN else (next(iter(found))._replace(glob=b"*"),)


# -- what options change of one key's access: functions from argv to needs, for the key at position 1


def set_(argv: Argv) -> int:
    """SET: GET returns the old value; IFEQ and its kin (Valkey 8.1, Redis 8.4) tell whether it is this one.

    `src/db.c` setGetKeys looks at every argument from the third on, options or not; so does this.
    """
    for argument in argv[3:]:
        if word(argument) in _SET_READS:
            return READ | WRITE
    return WRITE


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
    """DELEX (Redis 8.4) with a condition, and DELIFEQ (Valkey 9), tell whether the value is this one."""
    return WRITE | DELETE if len(argv) == 2 else READ | WRITE | DELETE


def bitfield(argv: Argv) -> int:
    """BITFIELD with nothing but GET and OVERFLOW only reads (`src/bitops.c`, bitfieldGeneric)."""
    index = 2
    while index < len(argv):
        name, left = word(argv[index]), len(argv) - index - 1
        if name == b"GET" and left >= 2:
            index += 3
        elif name == b"OVERFLOW" and left >= 1:
            index += 2
        else:
            return READ | WRITE
    return READ


def zadd(argv: Argv) -> int:
    """ZADD … INCR answers the new score, as ZINCRBY does (`src/t_zset.c`, zaddGenericCommand)."""
    for argument in argv[2:]:
        name = word(argument)
        if name == b"INCR":
            return READ | WRITE
        if name not in _ZADD_OPTIONS:
            break
    return WRITE


_ZADD_OPTIONS = frozenset({b"NX", b"XX", b"GT", b"LT", b"CH"})


def claim(argv: Argv) -> int:
    """XCLAIM answers the entries' content unless JUSTID (`src/t_stream.c`): then those IDs that it names."""
    justid = any(word(argument) == b"JUSTID" for argument in argv[5:])
    return WRITE | GROUP if justid else READ | WRITE | GROUP


def autoclaim(_argv: Argv) -> int:
    """XAUTOCLAIM answers IDs that it doesn't name, with JUSTID too (`src/t_stream.c`)."""
    return READ | WRITE | GROUP


# -- a destination that options name


def sort(argv: Argv) -> Keys:
    """SORT: the last STORE counts; BY and GET patterns read keys that are made of the sorted elements.

    `src/sort.c`: a pattern without `*` reads no key (BY then doesn't sort at all; GET answers nil), and
    `GET #` is the element itself.
    """
    stores: list[int] = []
    patterns: list[int] = []
    index = 2
    while index < len(argv):
        name, left = word(argv[index]), len(argv) - index - 1
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
        unseen = few(Unseen(_made_of_elements(argv[at]), READ) for at in patterns)
        problem = Problem("command.unknown", patterns[0], _OF_ELEMENTS, unseen)
    return Keys(_source(argv) + _destinations(stores, 2), problem)


_OF_ELEMENTS = "the keys that its BY and GET patterns read are made of the sorted elements"


def _made_of_elements(pattern: bytes) -> bytes:
    """A glob for all keys that a pattern can become: any element in place of its first `*`, without the
    field behind `->` (`src/sort.c`, lookupKeyByPattern, which searches C strings)."""
    if isinstance(pattern, Streamed) or b"\0" in pattern:
        return b"*"
    before, _, after = pattern.partition(b"*")
    name, _, field = after.partition(b"->")
    return glob_escape(before) + b"*" + glob_escape(name if field else after)


_SORT_FLAGS = frozenset({b"ASC", b"DESC", b"ALPHA"})
_SORT_STORES = frozenset({b"STORE"})


def sort_ro(argv: Argv) -> Keys:
    """SORT_RO: as SORT, without STORE."""
    runs, problem = sort(argv)
    return Keys(runs[:1], problem)


def georadius(argv: Argv) -> Keys:
    """GEORADIUS key longitude latitude radius unit …: the last of STORE and STOREDIST counts."""
    return _georadius(argv, 6)


def georadiusbymember(argv: Argv) -> Keys:
    """GEORADIUSBYMEMBER key member radius unit …: the last of STORE and STOREDIST counts."""
    return _georadius(argv, 5)


def _georadius(argv: Argv, index: int) -> Keys:
    """`src/geo.c`, georadiusGeneric: options begin at `index`."""
    stores: list[int] = []
    while index < len(argv):
        name, left = word(argv[index]), len(argv) - index - 1
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
    """Pieces, which ascend, as runs: where one begins before the last has ended they are one."""
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
    """The positions right after each of these words. It reads all the rest, so ask once."""
    initials = {name[0] for name in names} | {name.lower()[0] for name in names}
    return (
        i + 1
        for i in range(start, len(argv) - 1)
        if argv[i] and argv[i][0] in initials and word(argv[i]) in names
    )


# -- keys behind a word


def xread(argv: Argv) -> Keys:
    """XREAD, XREADGROUP: the first half of what follows STREAMS, where that is an option.

    `src/t_stream.c`, xreadCommand: STREAMS may also be a group's or a consumer's name, or a key.
    """
    index = 1
    while index < len(argv):
        name = word(argv[index])
        if name == b"STREAMS":
            return _halves(argv, [index + 1])
        if name not in _XREAD_OPTIONS:
            return _halves(argv, _after(argv, _STREAMS, index))
        index += _XREAD_OPTIONS[name]
    return Keys([])


# How many arguments each option takes, with itself. CLAIM: Redis 8.4.
_XREAD_OPTIONS = {b"BLOCK": 2, b"CLAIM": 2, b"COUNT": 2, b"GROUP": 3, b"NOACK": 1}
_STREAMS = frozenset({b"STREAMS"})


def _halves(argv: Argv, starts: Iterable[int]) -> Keys:
    """Half of the rest are keys, half are IDs; an odd number is an error, and counts as one key more."""
    needs = READ | WRITE if word(argv[0]) == b"XREADGROUP" else READ
    size = len(argv)
    return Keys(_runs((range(start, start + (size - start + 1) // 2) for start in starts), needs))


def migrate(argv: Argv) -> Keys:
    """MIGRATE host port key|"" db timeout …: the key, or with "" those behind KEYS. COPY leaves them.

    `src/cluster.c`, migrateCommand: without KEYS the empty string is a key like any other, with KEYS and a
    key it is an error.
    """
    copies = False
    first = 0
    index = 6
    while index < len(argv) and not first:
        name, left = word(argv[index]), len(argv) - index - 1
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
        name = word(argv[index])
        if name == b"KEYS":
            return Keys([Run(range(index + 1, min(index + 3, len(argv))), READ)])
        index += {b"MINMATCHLEN": 2, b"STRINGS": 3}.get(name, 1)
    return Keys([])


def debug(argv: Argv) -> Keys:
    """DEBUG: some subcommands name keys, some touch none, the rest may touch any (`src/debug.c`)."""
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
    """HIMPORT SET key fieldset value …: HIMPORT PREPARE has named the fields (Redis 8.10)."""
    reason = "an earlier HIMPORT PREPARE has named the fields that it writes"
    problem = Problem("command.unknown", 3, reason)
    return Keys([Run(_one(2), WRITE)] if len(argv) > 2 else [], problem)


# -- numbers of keys


def numkeys(argv: Argv, count_at: int, first: int, step: int = 1) -> range:
    """The keys that a count says there are, `step` arguments apart: EVAL, ZUNION, MSETEX …

    A count that is no positive integer, or more than there are arguments, makes every server that keyfence
    knows answer an error. What an unknown one would take for a key is judged: all that follows.
    """
    count = integer(argv[count_at]) if count_at < len(argv) else None
    if count is None or not 0 < count * step <= len(argv) - first:
        return range(first, len(argv))
    return range(first, first + count * step, step)


def script(argv: Argv) -> Keys:
    """EVAL, EVALSHA, FCALL: the declared keys. To declare none is a problem, and so is a count that lies."""
    return _script(argv, READ | WRITE)


def script_ro(argv: Argv) -> Keys:
    """EVAL_RO, EVALSHA_RO, FCALL_RO: as EVAL, but the server lets it write nothing."""
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
