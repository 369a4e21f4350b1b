"""Hypothesis strategies for commands: valid ones with misleading names and values, and slightly invalid
ones."""

from __future__ import annotations

from hypothesis import strategies as st

from keyfence.commands.families import FACTS
from keyfence.commands.table import COMMANDS

Argv = list[bytes]
Part = bytes | st.SearchStrategy[bytes] | st.SearchStrategy[Argv]

# The options of all exceptions, and other words that look like them.
WORDS = [
    *b"STORE STOREDIST GET BY LIMIT ASC ALPHA STREAMS GROUP COUNT BLOCK NOACK KEYS COPY REPLACE AUTH".split(),
    *b"AUTH2 EX PX EXAT PXAT KEEPTTL NX XX PERSIST INCR CH SET INCRBY OVERFLOW WITHDIST ANY DB LEFT".split(),
    *b"MIN WEIGHTS AGGREGATE SUM LCS STRINGS IDX MINMATCHLEN JUSTID MKSTREAM MAXLEN MATCH OBJECT".split(),
    *b"store Streams gEt keys STORE\0x".split(),
]
NUMBERS = [b"0", b"1", b"2", b"3", b"-1", b"+1", b"01", b"99", b"9223372036854775808", b"1x", b"u8"]
ARGUMENTS = st.one_of(
    st.sampled_from([b"a", b"b", b"{c}", b"", b"*", b"x*->f"]),
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
)
KEY = st.sampled_from([b"a", b"b", b"STREAMS", b"STORE", b"KEYS", b"GET"])
SOME_KEYS = st.lists(KEY, min_size=1, max_size=3)

NAMES = sorted(name for name in COMMANDS if not COMMANDS[name].subcommands)
# Commands whose keys depend on more than positions: all exceptions, and those with counts and repetitions.
TRICKY = sorted(
    {
        *(name.encode() for name, facts in FACTS.items() if facts.found or facts.rights),
        *b"BITOP BLMPOP BLPOP BZMPOP COPY LCS LMPOP MSET MSETEX PFMERGE SINTERCARD ZDIFF ZINTERCARD".split(),
        *b"ZINTERSTORE ZMPOP ZUNION ZUNIONSTORE".split(),
    }
)


def carrying() -> set[str]:
    """The commands that copy or move content from another key or from a dump."""
    argv = [b"1"] * 8
    return {
        name
        for name, facts in FACTS.items()
        for on_key in facts.on_keys
        if on_key.content is not None
        if (content := on_key.content(argv, 1)) is not None and content.carried is not None
    }


@st.composite
def calls(draw: st.DrawFn, names: list[bytes]) -> Argv:
    """A name and about as many arguments as its arity requires."""
    name = draw(st.sampled_from(names))
    words = name.split()
    spare = draw(st.sampled_from([0, 0, 0, -1, 1, 2, 3, 4, 6, 8]))
    count = max(0, abs(COMMANDS[name].command.arity) - len(words) + spare)
    return [*words, *draw(st.lists(ARGUMENTS, min_size=count, max_size=count))]


def join(*parts: Part) -> st.SearchStrategy[Argv]:
    """Arguments and lists of arguments, concatenated."""
    drawn = st.tuples(*(st.just(part) if isinstance(part, bytes) else part for part in parts))
    return drawn.map(
        lambda values: [w for value in values for w in ([value] if isinstance(value, bytes) else value)]
    )


def options(*choices: st.SearchStrategy[Argv]) -> st.SearchStrategy[Argv]:
    """Up to four of these options, possibly repeated."""
    return st.lists(st.one_of(*choices), max_size=4).map(
        lambda parts: [word for part in parts for word in part]
    )


COUNTED = SOME_KEYS.map(lambda names: [str(len(names)).encode(), *names])
STREAMS = SOME_KEYS.map(lambda names: [b"STREAMS", *names, *[b"0-0" for _ in names]])
GEO = options(
    join(b"WITHDIST"),
    join(b"COUNT", b"5"),
    join(b"STORE", KEY),
    join(b"STOREDIST", KEY),
    join(b"asc"),
)
SORTING = options(
    join(b"STORE", KEY),
    join(b"LIMIT", b"0", b"5"),
    join(b"BY", st.sampled_from([b"nosort", b"STORE"])),
    join(b"GET", st.sampled_from([b"#", b"STORE"])),
    join(b"desc"),
)
READING = options(join(b"COUNT", b"1"), join(b"BLOCK", b"0"))
MIGRATING = options(join(b"COPY"), join(b"REPLACE"), join(b"AUTH", KEY), join(b"AUTH2", KEY, KEY))

GRAMMATICAL = st.one_of(
    join(b"SORT", KEY, SORTING),
    join(b"GEORADIUS", KEY, b"1", b"2", b"3", b"m", GEO),
    join(b"GEORADIUSBYMEMBER", KEY, KEY, b"3", b"m", GEO),
    join(b"XREAD", READING, STREAMS),
    join(b"XREADGROUP", READING, b"GROUP", KEY, KEY, READING, options(join(b"NOACK")), STREAMS),
    join(b"MIGRATE", b"127.0.0.1", b"1", KEY, b"0", b"9", MIGRATING),
    join(b"MIGRATE", b"127.0.0.1", b"1", b"", b"0", b"9", MIGRATING, b"KEYS", SOME_KEYS),
    join(st.sampled_from([b"ZUNIONSTORE", b"ZINTERSTORE", b"ZDIFFSTORE"]), KEY, COUNTED),
    join(st.sampled_from([b"ZUNION", b"ZINTER", b"ZDIFF"]), COUNTED),
    join(st.sampled_from([b"EVAL", b"EVALSHA"]), b"return 1", COUNTED, KEY),
    join(b"SET", KEY, b"v", options(join(b"EX", b"9"), join(b"NX"), join(b"GET"))),
    join(b"BITFIELD", KEY, options(join(b"GET", b"u8", b"0"), join(b"SET", b"u8", b"0", b"1"))),
    join(st.sampled_from([b"LMPOP", b"ZMPOP"]), COUNTED, b"LEFT"),
    join(st.sampled_from([b"BLMPOP", b"BZMPOP"]), b"0", COUNTED, b"LEFT"),
    join(st.sampled_from([b"SINTERCARD", b"ZINTERCARD"]), COUNTED, b"LIMIT", b"1"),
    join(st.sampled_from([b"EVAL_RO", b"FCALL", b"FCALL_RO"]), b"return 1", COUNTED, KEY),
    join(b"COPY", KEY, KEY, options(join(b"DB", b"1"), join(b"REPLACE"))),
    join(b"GETEX", KEY, options(join(b"EX", b"9"), join(b"PERSIST"))),
)
