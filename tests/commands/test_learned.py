from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import adopt, extract
from keyfence.commands.learned import MAX_LEARNED, NOTHING, SERVER, learn
from keyfence.commands.model import READ, WRITE
from keyfence.commands.table import ASKED_SERVERS, COMMANDS, Row
from tests.commands.calls import GRAMMATICAL, NAMES, TRICKY, Argv, calls
from tests.commands.conftest import Live
from tests.commands.test_against_servers import live
from tests.commands.test_extract import keys, touched
from tests.servers import running_redis

SEARCH = Path("/usr/lib/redis/modules/redisearch.so")  # Debian's redis-redisearch


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Adopted commands belong to the whole process."""
    yield
    adopt(NOTHING)


def index(first: int, *flags: bytes, last: int = 0, step: int = 1) -> list[Any]:
    """A key spec as in a RESP2 reply."""
    return spec([b"index", first], [b"lastkey", last, b"keystep", step, b"limit", 0], *flags)


def spec(
    begin: list[Any], find: list[Any], *flags: bytes, kinds: tuple[bytes, bytes] = (b"index", b"range")
) -> Any:
    begin_search = [b"type", kinds[0], b"spec", begin]
    find_keys = [b"type", kinds[1], b"spec", find]
    return [b"flags", list(flags), b"begin_search", begin_search, b"find_keys", find_keys]


def entry(
    name: bytes,
    flags: bytes,
    specs: list[Any],
    *,
    arity: int = -2,
    place: tuple[int, int, int] = (0, 0, 0),
    categories: bytes = b"@slow",
    subcommands: list[Any] | None = None,
) -> list[Any]:
    """An entry of COMMAND as in Redis 7 and later."""
    return [name, arity, flags.split(), *place, categories.split(), [], specs, subcommands or []]


def entry_6(name: bytes, flags: bytes, *place: int) -> list[Any]:
    """An entry of COMMAND as in Redis 6.2."""
    return [name, -2, flags.split(), *place, [b"@slow"]]


def learned(*entries: object) -> None:
    adopt(learn(list(entries)))


def problem(text: str) -> str:
    found = touched(text).problem
    return "" if found is None else found.rule


def test_a_module_command_has_the_keys_of_its_key_specs() -> None:
    learned(
        entry(b"doc.set", b"write denyoom module", [index(1, b"RW", b"access", b"update")]),
        entry(b"doc.get", b"readonly module", [index(1, b"RO", b"access")]),
        entry(b"doc.mget", b"readonly module", [index(1, b"RO", b"access", last=-2)]),
    )
    assert keys("DOC.SET doc $ 1") == [(1, b"doc", READ | WRITE)]
    assert keys("Doc.Get doc") == [(1, b"doc", READ)]
    assert keys("doc.mget a b $") == [(1, b"a", READ), (2, b"b", READ)]
    assert problem("DOC.SET doc $ 1") == ""
    command = touched("DOC.GET doc").command
    assert command is not None
    assert (command.name, command.servers, command.names_keys) == ("DOC.GET", (SERVER,), True)


def test_a_readonly_module_command_only_reads_its_keys() -> None:
    spec = index(1, b"RW", b"access", b"update")  # what Redis says if the module gives no flags
    learned(
        entry(b"doc.get", b"readonly module", [spec]),
        entry(b"doc.pop", b"write module", [spec]),
        entry(b"fork.get", b"readonly", [spec]),
        entry(b"doc.mark", b"readonly module", [index(1, b"RW", b"update")]),
    )
    assert keys("DOC.GET a") == [(1, b"a", READ)]
    assert keys("DOC.POP a") == keys("FORK.GET a") == keys("DOC.MARK a") == [(1, b"a", READ | WRITE)]


def test_a_range_without_key_specs_needs_what_the_command_flags_allow() -> None:
    learned(
        entry_6(b"few.add", b"write denyoom", 1, 1, 1),
        entry_6(b"few.has", b"readonly fast", 1, 1, 1),
        entry_6(b"old.madd", b"write", 1, -1, 3),
        entry(b"odd.touch", b"fast", [], place=(1, 2, 1)),
    )
    assert keys("FEW.ADD f x") == [(1, b"f", READ | WRITE)]
    assert keys("FEW.HAS f x") == [(1, b"f", READ)]
    assert keys("OLD.MADD a 1 2 b 1 2") == [(1, b"a", READ | WRITE), (4, b"b", READ | WRITE)]
    assert keys("ODD.TOUCH a b c") == [(1, b"a", READ | WRITE), (2, b"b", READ | WRITE)]


@pytest.mark.parametrize(
    ("flags", "needs"),
    [
        ((), READ | WRITE),
        ((b"RO",), READ),
        ((b"RW",), READ | WRITE),
        ((b"OW", b"update"), WRITE),
        ((b"RM", b"delete"), READ | WRITE),
        ((b"RW", b"insert"), READ | WRITE),
    ],
)
def test_all_flags_of_a_key_spec_add_to_its_needs(flags: tuple[bytes, ...], needs: int) -> None:
    learned(entry(b"m.x", b"write module", [index(1, *flags), index(2, b"OW", b"update")]))
    assert keys("M.X a b")[0] == (1, b"a", needs)


def test_a_removing_command_reads_if_it_may_compare_the_value_with_an_argument() -> None:
    learned(
        entry(b"x.del", b"write", [index(1, b"RM", b"delete", last=-1)], arity=-2),
        entry(b"x.one", b"write", [index(1, b"RM", b"delete")], arity=2),
        entry(b"x.ifeq", b"write", [index(1, b"RM", b"delete")], arity=3),  # as Valkey's DELIFEQ
        entry(b"x.opt", b"write", [index(1, b"RM", b"delete")], arity=-2),
        entry(b"x.last", b"write", [index(1, b"RM", b"delete", last=-2)], arity=-3),
    )
    assert keys("X.DEL a b") == [(1, b"a", WRITE), (2, b"b", WRITE)]
    assert keys("X.ONE a") == [(1, b"a", WRITE)]
    for command in ("X.IFEQ a v", "X.OPT a", "X.LAST a v"):
        assert keys(command) == [(1, b"a", READ | WRITE)], command


def test_a_writing_command_writes_at_least_one_of_its_keys() -> None:
    learned(entry(b"m.x", b"write module", [index(1, b"RO", b"access")]))
    assert keys("M.X a") == [(1, b"a", READ | WRITE)]


@pytest.mark.parametrize(
    "row",
    [
        entry_6(b"m.x", b"write movablekeys", 1, 1, 1),
        entry(b"m.x", b"write module movablekeys", [index(1, b"RW", b"access", b"update")]),
        entry(b"m.x", b"write module", [index(1, b"RW", b"access", b"update", b"incomplete")]),
        entry(b"m.x", b"write module", [spec([], [], kinds=(b"unknown", b"unknown"))]),
        entry(b"m.x", b"write module", [spec([], [], kinds=(b"index-of-2030", b"range"))]),
        entry(b"m.x", b"readonly module", []),
        entry_6(b"mx", b"readonly", 0, 0, 0),
        entry(b"mx", b"pubsub", []),
        entry(b"mx", b"fast", [index(1, b"not_key")]),
        entry(b"mx", b"noscript", [index(1, b"RW", b"access")], categories=b"@scripting"),
    ],
    ids=str,
)
def test_a_command_that_may_touch_more_than_its_entry_shows_is_a_problem(row: list[Any]) -> None:
    learned(row)
    assert problem(f"{row[0].decode()} a b") == "command.unknown"
    assert touched(f"{row[0].decode()} a b").command is not None


def test_a_built_in_command_without_keys_touches_none() -> None:
    learned(entry(b"newping", b"fast", [], categories=b"@connection"))
    assert touched("NEWPING a").problem is None
    assert touched("NEWPING a").accesses == ()


def test_counted_keys_are_found() -> None:
    counted = spec(
        [b"index", 2],
        [b"keynumidx", 0, b"firstkey", 1, b"keystep", 1],
        b"RO",
        b"access",
        kinds=(b"index", b"keynum"),
    )
    learned(entry(b"m.union", b"readonly module movablekeys", [counted]))
    assert keys("M.UNION x 2 a b c") == [(3, b"a", READ), (4, b"b", READ)]
    assert problem("M.UNION x 2 a b c") == ""


def test_a_keyword_that_appears_twice_is_a_problem() -> None:
    store = spec(
        [b"keyword", b"STORE", b"startfrom", 2],
        [b"lastkey", 0, b"keystep", 1, b"limit", 0],
        b"OW",
        b"update",
        kinds=(b"keyword", b"range"),
    )
    learned(entry(b"m.geo", b"write module movablekeys", [index(1, b"RO", b"access"), store]))
    assert keys("M.GEO a 5 STORE b") == [(1, b"a", READ), (4, b"b", WRITE)]
    assert problem("M.GEO a 5 store b") == ""
    assert problem("M.GEO a STORE STORE b") == "command.unknown"


def test_a_container_has_the_subcommands_of_its_entry() -> None:
    subcommands = [
        entry(b"m.c|get", b"readonly module", [index(2, b"RO", b"access")]),
        entry(b"m.c|set", b"write module", [index(2, b"OW", b"update")]),
    ]
    learned(entry(b"m.c", b"module", [], subcommands=subcommands))
    assert keys("M.C GET a") == [(2, b"a", READ)]
    assert keys("m.c set a") == [(2, b"a", WRITE)]
    assert touched("M.C GET a").command.name == "M.C GET"  # type: ignore[union-attr]
    assert problem("M.C DEL a") == "command.unknown"
    assert extract([b"M.C GET", b"a"]).command is None


def test_a_container_with_malformed_subcommands_is_a_problem() -> None:
    found = learn([entry(b"newc", b"fast", [], subcommands=[[b"newc|get"], 7])])
    adopt(found)
    assert found.unreadable == 2
    assert problem("NEWC GET a") == "command.unknown"


def test_a_known_container_gains_subcommands_and_keeps_its_own() -> None:
    more = [
        entry(b"xgroup|renew", b"write", [index(2, b"RW", b"update")]),
        entry(b"xgroup|create", b"fast", []),
    ]
    assert problem("XGROUP RENEW a") == "command.unknown"
    learned(entry(b"xgroup", b"", [], subcommands=more))
    assert keys("xgroup renew a") == [(2, b"a", READ | WRITE)]
    assert keys("XGROUP CREATE a g $") == [(2, b"a", WRITE)]


def test_commands_of_the_table_do_not_change() -> None:
    lies: list[Any] = [entry(name.lower(), b"readonly fast", []) for name in COMMANDS if b" " not in name]
    lies += [entry(b"get", b"fast", [], subcommands=[entry(b"get|a", b"fast", [])])]
    lies += [
        entry(row.command.name.encode(), b"", [], subcommands=[entry(name + b"|" + sub, b"fast", [])])
        for name, row in COMMANDS.items()
        for sub in row.subcommands
    ]
    assert learn(lies) == NOTHING


def test_the_admin_flag_becomes_a_category() -> None:
    learned(entry(b"newadmin", b"admin", [], categories=b""))
    command = touched("NEWADMIN").command
    assert command is not None
    assert {"admin", "dangerous"} <= command.categories


def test_adopted_commands_replace_those_adopted_before() -> None:
    learned(entry_6(b"few.add", b"write", 1, 1, 1))
    learned(entry_6(b"new.add", b"write", 1, 1, 1))
    assert touched("FEW.ADD f x").command is None
    assert keys("NEW.ADD f x") == [(1, b"f", READ | WRITE)]


def test_at_most_max_learned_commands_are_learned() -> None:
    found = learn([entry_6(b"m.%d" % number, b"write", 1, 1, 1) for number in range(MAX_LEARNED + 7)])
    assert (len(found.rows), found.dropped) == (MAX_LEARNED, 7)


@pytest.mark.parametrize(
    "row",
    [
        [],
        7,
        [b"m.x"],
        [7, *entry_6(b"", b"", 1, 1, 1)[1:]],
        entry_6(b"m x", b"", 1, 1, 1),
        entry_6(b"m|x", b"", 1, 1, 1),
        entry_6(b"m" * 65, b"", 1, 1, 1),
        entry_6(b"m.\xff", b"", 1, 1, 1),
        entry_6(b"m.x", b"", 1, 1, 0),
        entry_6(b"m.x", b"", -1, 1, 1),
        entry_6(b"m.x", b"", 3, 1, 1),
        entry_6(b"m.x", b"", 2**40, -1, 1),
        entry(b"m.x", b"", [index(0)]),
        entry(b"m.x", b"", [index(1, step=0)]),
        entry(b"m.x", b"", [index(1, step=-1)]),
        entry(b"m.x", b"", [[b"flags"]]),
        entry(b"m.x", b"", [spec([b"keyword", b"", b"startfrom", 1], [], kinds=(b"keyword", b"range"))]),
        entry(b"m.x", b"", [spec([b"keyword", b"K"], [], kinds=(b"keyword", b"range"))]),
        entry(
            b"m.x", b"", [spec([b"keyword", b"K" * 65, b"startfrom", 1], [], kinds=(b"keyword", b"range"))]
        ),
        entry(b"m.x", b"", [spec([b"keyword", b"K\0", b"startfrom", 1], [], kinds=(b"keyword", b"range"))]),
        entry(b"m.x", b"", [spec([b"index", 1], [b"keynumidx", -1], kinds=(b"index", b"keynum"))]),
    ],
    ids=str,
)
def test_a_malformed_entry_is_left_out_and_counted(row: object) -> None:
    found = learn([row, entry_6(b"good", b"write", 1, 1, 1)])
    assert (list(found.rows), found.unreadable) == ([b"GOOD"], 1)


VALUES = st.recursive(
    st.one_of(
        st.integers(-3, 3),
        st.none(),
        st.sampled_from(
            [b"flags", b"type", b"spec", b"index", b"keyword", b"range", b"keynum", b"m.x", b"RW"]
        ),
        st.binary(max_size=3),
    ),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=12,
)
SPECS = st.builds(
    lambda begin, find, numbers, other: spec(begin, [*numbers, *other], kinds=find),
    st.lists(
        st.one_of(st.sampled_from([b"index", b"keyword", b"startfrom", b"K"]), st.integers(-3, 5)), max_size=4
    ),
    st.tuples(st.sampled_from([b"index", b"keyword"]), st.sampled_from([b"range", b"keynum"])),
    st.lists(
        st.tuples(
            st.sampled_from([b"lastkey", b"keystep", b"limit", b"keynumidx", b"firstkey"]), st.integers(-3, 4)
        ),
        max_size=5,
    ).map(lambda pairs: [value for pair in pairs for value in pair]),
    st.just([]),
)
ENTRIES = st.one_of(
    VALUES,
    st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3)).map(
        lambda place: entry_6(b"m.x", b"write", *place)
    ),
    st.lists(SPECS, max_size=3).map(lambda specs: entry(b"m.x", b"write", specs)),
)


@settings(max_examples=1000)
@given(
    st.one_of(VALUES, st.lists(ENTRIES, max_size=3)),
    st.lists(st.sampled_from([b"K", b"1", b"a"]), max_size=6),
)
def test_learning_from_any_reply_and_extracting_never_raise(reply: Any, arguments: list[bytes]) -> None:
    adopt(learn(reply))
    argv = [b"m.x", *arguments]
    for access in extract(argv).accesses:
        assert access.key == argv[access.position]
        assert access.position > 0


# -- compared with the table, using a live server's reply


def renamed(reply: Any) -> list[Any]:
    """The reply of a server whose commands are renamed to names that the table lacks."""

    def rename(row: list[Any]) -> list[Any]:
        inner = [[rename(sub) for sub in row[9]]] if len(row) > 9 else []
        return [b"new" + row[0], *row[1:9], *inner]

    return [rename(row) for row in reply]


def check_no_laxer(argv: Argv) -> None:
    """At least the same keys with at least the same needs, or a problem."""
    ours = extract([b"NEW" + argv[0], *argv[1:]])
    assert ours.command is not None
    theirs = extract(argv)
    assert theirs.problem is None or ours.problem is not None or theirs.problem.rule == "command.unknown", (
        argv
    )
    if ours.problem is not None:
        return
    held = {access.position: access.needs for access in ours.accesses}
    for access in theirs.accesses:
        needs = access.needs & (READ | WRITE)
        assert access.position in held, (argv, access)
        assert held[access.position] & needs == needs, (argv, access)
    assert not theirs.channels, argv
    assert theirs.script is None, argv


def test_learned_commands_are_never_laxer_than_those_of_the_table(redis: Live) -> None:
    found = learn(renamed(redis("COMMAND")))
    names = redis.names()
    assert not found.unreadable
    assert {name.removeprefix(b"NEW") for name in found.rows} == names

    @live
    @given(argv=st.one_of(GRAMMATICAL, calls(TRICKY), calls(NAMES)))
    def check(argv: Argv) -> None:
        adopt(found)
        if argv[0] in names:
            check_no_laxer(argv)

    check()


def test_a_live_server_of_a_known_version_teaches_nothing(redis: Live) -> None:
    if not any(known.endswith(f"-{redis.version.rpartition('.')[0]}") for known in ASKED_SERVERS):
        pytest.skip(f"{redis.version} is not among the servers of the table")
    assert learn(redis("COMMAND")) == NOTHING


def renamed_away(names: tuple[bytes, ...]) -> dict[bytes, Row]:
    """The table without these commands."""
    return {name: row for name, row in COMMANDS.items() if not name.startswith(names)}


def test_learned_vector_set_commands_equal_those_of_the_table(newer: Live) -> None:
    vectors = (
        b"VADD",
        b"VCARD",
        b"VDIM",
        b"VEMB",
        b"VGET",
        b"VINFO",
        b"VISM",
        b"VLINKS",
        b"VRA",
        b"VREM",
        b"VS",
    )
    if b"VADD" not in newer.names():
        pytest.skip(f"{newer.version} has no vector sets")
    found = learn(newer("COMMAND"), renamed_away(vectors)).rows
    assert found.keys() == {name for name in newer.names() if name.startswith(vectors)}
    for name, row in found.items():
        assert [spec.needs for spec in row.specs] == [spec.needs for spec in COMMANDS[name].specs]
        assert [spec.start for spec in row.specs] == [spec.start for spec in COMMANDS[name].specs]
        assert not row.problem


@pytest.mark.skipif(not SEARCH.exists(), reason="apt install redis-redisearch")
def test_commands_of_a_search_module_may_touch_any_key() -> None:
    with running_redis(arguments=["--loadmodule", str(SEARCH)]) as server:
        live_server = Live(str(server.socket_path), server.version)
        found = learn(live_server("COMMAND"), renamed_away((b"FT.",)))
        live_server.connection.disconnect()
    assert not found.unreadable
    assert {b"FT.SEARCH", b"FT.ADDHASH"} <= found.rows.keys()
    assert all(row.problem for row in found.rows.values())


def test_a_renamed_command_is_listed_only_under_its_old_name() -> None:
    with running_redis(arguments=["--rename-command", "GET", "FETCH"]) as server:
        live_server = Live(str(server.socket_path), server.version)
        assert live_server("FETCH", "k") is None
        assert learn(live_server("COMMAND")) == NOTHING
        live_server.connection.disconnect()
    assert extract([b"FETCH", b"k"]).problem is not None
