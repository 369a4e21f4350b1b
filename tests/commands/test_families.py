"""Options that decide which keys are touched, and how."""

from __future__ import annotations

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Pattern
from tests.commands.conftest import Live
from tests.commands.test_extract import keys, touched

RW = READ | WRITE


def problem(text: str) -> str:
    found = touched(text).problem
    return found.rule if found is not None else ""


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("SET k v", WRITE),
        ("SET k v EX 60 NX", WRITE),
        ("SET k v GET", RW),
        ("SET k v XX get EX 60", RW),
        ("SET k v IFEQ old", RW),
        ("SET k GET", WRITE),
    ],
)
def test_set_with_get_reads(text: str, needs: int) -> None:
    assert keys(text) == [(1, b"k", needs)]


@pytest.mark.parametrize(
    ("text", "needs"),
    [("GETEX k", READ), ("GETEX k EX 5", RW), ("GETEX k PERSIST", RW), ("GETEX k WHAT", RW)],
)
def test_getex_without_options_only_reads(text: str, needs: int) -> None:
    assert keys(text) == [(1, b"k", needs)]


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("BITFIELD k", READ),
        ("BITFIELD k GET u8 0 OVERFLOW SAT get u4 8", READ),
        ("BITFIELD k GET u8 0 SET u8 0 1", RW),
        ("BITFIELD k INCRBY u8 0 1", RW),
        ("BITFIELD k GET u8", RW),
        ("BITFIELD k OVERFLOW SET GET u8 0", READ),
    ],
)
def test_bitfield_with_get_only_reads(text: str, needs: int) -> None:
    assert keys(text) == [(1, b"k", needs)]


@pytest.mark.parametrize(
    ("text", "needs"), [("ZADD k 1 m", WRITE), ("ZADD k XX INCR 1 m", RW), ("ZADD k 1 INCR", WRITE)]
)
def test_zadd_with_incr_reads(text: str, needs: int) -> None:
    assert keys(text) == [(1, b"k", needs)]


# -- STORE


def test_the_last_of_repeated_store_options_counts() -> None:
    assert keys("SORT k STORE a STORE b") == [(1, b"k", READ), (5, b"b", WRITE)]
    assert keys("GEORADIUS k 1 2 3 m STORE a STORE b")[1:] == [(9, b"b", WRITE)]
    assert keys("GEORADIUS k 1 2 3 m STORE a STOREDIST b")[1:] == [(9, b"b", WRITE)]
    assert keys("GEORADIUSBYMEMBER k m 3 m STOREDIST a STORE b")[1:] == [(8, b"b", WRITE)]


def test_servers_write_to_the_last_store(redis: Live) -> None:
    redis("FLUSHALL")
    redis("RPUSH", "l", "2", "1")
    redis("GEOADD", "g", "1", "2", "m")
    redis("SORT", "l", "STORE", "a", "STORE", "b")
    redis("SORT", "l", "BY", "STORE", "GET", "STORE", "STORE", "c")
    redis("GEORADIUS", "g", "1", "2", "3", "m", "STORE", "d", "STOREDIST", "e", "STORE", "f")
    assert set(redis("KEYS", "*")) == {b"l", b"g", b"b", b"c", b"f"}


def test_store_as_the_value_of_an_option_is_not_an_option() -> None:
    assert keys("SORT k BY STORE GET STORE STORE d") == [(1, b"k", READ), (7, b"d", WRITE)]
    assert keys("SORT k GET store") == [(1, b"k", READ)]
    assert keys("GEORADIUSBYMEMBER k STORE 3 m STORE STORE") == [(1, b"k", READ), (6, b"STORE", WRITE)]


def test_a_destination_named_like_an_option_is_a_destination(redis: Live) -> None:
    redis("FLUSHALL")
    redis("RPUSH", "l", "1")
    for text in ("SORT l STORE STORE LIMIT 0 5", "SORT l STORE GET STORE d"):
        assert redis(*text.split()) == 1
    assert set(redis("KEYS", "*")) == {b"l", b"STORE", b"d"}
    assert keys("SORT l STORE STORE LIMIT 0 5") == [(1, b"l", READ), (3, b"STORE", WRITE)]
    assert keys("SORT l STORE GET STORE d") == [(1, b"l", READ), (5, b"d", WRITE)]


def test_servers_read_store_with_a_nul_byte_as_store(redis: Live) -> None:
    redis("FLUSHALL")
    redis("RPUSH", "l", "1")
    assert redis("SORT", "l", b"STORE\0x", "d") == 1
    assert keys("SORT l STORE\0x d") == [(1, b"l", READ), (3, b"d", WRITE)]


def test_after_an_unknown_option_every_store_counts() -> None:
    assert keys("SORT k WHAT BY STORE d") == [(1, b"k", READ), (5, b"d", WRITE)]
    assert keys("GEORADIUS k 1 2 3 m STORE a WHAT STORE STOREDIST c") == [
        (1, b"k", READ),
        (7, b"a", WRITE),
        (10, b"STOREDIST", WRITE),
        (11, b"c", WRITE),
    ]


def test_sort_by_and_get_read_keys_that_are_not_in_argv() -> None:
    assert problem("SORT k BY w_*") == "command.unknown"
    assert problem("SORT k GET #  GET o_*->f") == "command.unknown"
    assert problem("SORT_RO k BY w_*") == "command.unknown"
    for text in ("SORT k BY nosort", "SORT k GET #", "SORT k GET constant", "SORT_RO k BY nosort", "SORT k"):
        assert problem(text) == ""


def test_sort_with_a_constant_pattern_reads_no_other_key(redis: Live) -> None:
    redis("FLUSHALL")
    redis("RPUSH", "l", "2", "1")
    redis("SET", "constant", "secret")
    assert redis("SORT", "l", "BY", "constant", "GET", "constant", "GET", "#") == [None, b"2", None, b"1"]


def test_sort_ro_stores_nothing() -> None:
    assert keys("SORT_RO k STORE d") == [(1, b"k", READ)]


# -- STREAMS


def test_a_consumer_and_a_group_may_be_named_streams() -> None:
    assert keys("XREADGROUP GROUP STREAMS STREAMS COUNT 1 STREAMS a b > >") == [(7, b"a", RW), (8, b"b", RW)]
    assert keys("XREADGROUP COUNT 1 GROUP g STREAMS NOACK STREAMS STREAMS >") == [(8, b"STREAMS", RW)]
    assert keys("XREAD STREAMS STREAMS 0") == [(2, b"STREAMS", READ)]


def test_a_server_reads_after_the_streams_that_is_an_option(redis: Live) -> None:
    redis("FLUSHALL")
    redis("XADD", "STREAMS", "1-1", "f", "v")
    redis("XGROUP", "CREATE", "STREAMS", "g", "0")
    reply = redis("XREADGROUP", "COUNT", "1", "GROUP", "g", "STREAMS", "STREAMS", "STREAMS", ">")
    assert reply == [[b"STREAMS", [[b"1-1", [b"f", b"v"]]]]]


def test_the_values_of_xread_options_are_skipped() -> None:
    assert keys("XREAD COUNT STREAMS STREAMS a 0") == [(4, b"a", READ)]
    assert keys("XREAD BLOCK 0 COUNT 5 STREAMS a b 0 0") == [(6, b"a", READ), (7, b"b", READ)]


def test_xread_with_an_unknown_option_or_an_odd_number_misses_no_key() -> None:
    assert keys("XREADGROUP GROUP g c CLAIM 5 STREAMS a >") == [(7, b"a", RW)]
    assert keys("XREAD STREAMS a b 0") == [(2, b"a", READ), (3, b"b", READ)]
    assert keys("XREAD COUNT 1") == []


def test_bookkeeping_of_a_consumer_group_needs_group() -> None:
    for text in (
        "XREADGROUP GROUP g c STREAMS k >",
        "XACK k g 1-1",
        "XCLAIM k g c 0 1-1",
        "XAUTOCLAIM k g c 0 0 JUSTID",
        "XGROUP CREATE k g $",
        "XGROUP DESTROY k g",
    ):
        (access,) = touched(text).accesses
        assert access.needs & WRITE, text
        assert access.needs & GROUP, text
    for text in ("XPENDING k g", "XINFO GROUPS k", "XREAD STREAMS k 0"):
        (access,) = touched(text).accesses
        assert access.needs == READ, text


def test_claims_read_the_entries_except_with_justid() -> None:
    assert keys("XCLAIM k g c 0 1-1") == [(1, b"k", RW)]
    assert keys("XCLAIM k g c 0 1-1 JUSTID") == [(1, b"k", WRITE)]
    assert keys("XCLAIM k JUSTID JUSTID 0 1-1") == [(1, b"k", RW)]
    assert keys("XAUTOCLAIM k g c 0 0 COUNT 5 JUSTID") == [(1, b"k", RW)]  # its arguments name no IDs


# -- MIGRATE


def test_migrate_takes_its_key_or_those_after_keys() -> None:
    assert keys("MIGRATE h 1 k 0 9") == [(3, b"k", RW)]
    assert keys('MIGRATE h 1 "" 0 9') == [(3, b"", RW)]
    assert keys('MIGRATE h 1 "" 0 9 REPLACE KEYS a b') == [(8, b"a", RW), (9, b"b", RW)]
    assert keys('MIGRATE h 1 "" 0 9 AUTH KEYS AUTH2 KEYS KEYS KEYS a') == [(12, b"a", RW)]
    assert keys("MIGRATE h 1 k 0 9 KEYS a") == [(3, b"k", RW), (7, b"a", RW)]


def test_migrate_with_copy_only_reads() -> None:
    assert keys('MIGRATE h 1 "" 0 9 COPY KEYS a') == [(8, b"a", READ)]


def test_migrate_with_an_unknown_option_misses_no_key() -> None:
    assert keys('MIGRATE h 1 "" 0 9 WHAT AUTH KEYS a') == [(9, b"a", RW)]


# -- numbers of keys


@pytest.mark.parametrize(
    "count", ["-1", "0", "99", "9223372036854775808", "01", "+1", "1x", "-9223372036854775808"]
)
def test_with_a_count_that_servers_refuse_all_later_arguments_are_keys(redis: Live, count: str) -> None:
    for start, rest in (("ZUNIONSTORE d", "a b"), ("ZUNION", "a b"), ("LMPOP", "a b"), ("BZMPOP 0", "a b")):
        text = f"{start} {count} {rest}"
        assert [key for _, key, _ in keys(text) if key != b"d"] == [b"a", b"b"]
        assert isinstance(redis(*text.split()), Exception), text


@pytest.mark.parametrize("count", ["-1", "99", "01", "+1", "1x", "9223372036854775808"])
def test_a_script_with_a_wrong_count_is_a_problem_and_runs_nowhere(redis: Live, count: str) -> None:
    for name in ("EVAL", "EVALSHA", "FCALL", "EVAL_RO"):
        assert problem(f"{name} s {count} a b") == "script.keys"
    assert isinstance(redis("EVAL", "return 1", count, "a", "b"), Exception)
    assert [key for _, key, _ in keys(f"EVAL s {count} a b")] == [b"a", b"b"]


def test_a_script_without_keys_is_a_problem() -> None:
    assert problem("EVAL s 0 a") == "script.keys"
    assert keys("EVAL s 0 a") == []
    assert problem("FCALL_RO f 0") == "script.keys"


def test_a_script_has_the_counted_keys() -> None:
    assert keys("EVAL s 1 a b") == [(3, b"a", RW)]
    assert keys("EVALSHA_RO s 2 a b") == [(3, b"a", READ), (4, b"b", READ)]
    assert problem("EVAL s 1 a b") == ""


# -- the rest


def test_stralgo_takes_the_keys_after_keys() -> None:
    assert keys("STRALGO LCS KEYS a b") == [(3, b"a", READ), (4, b"b", READ)]
    assert keys("STRALGO LCS STRINGS KEYS KEYS") == []
    assert keys("STRALGO LCS IDX MINMATCHLEN KEYS KEYS a b") == [(6, b"a", READ), (7, b"b", READ)]
    assert problem("STRALGO OTHER a b") == "command.unknown"


def test_debug_names_a_key_or_may_touch_any() -> None:
    assert keys("DEBUG OBJECT a") == [(2, b"a", READ)]
    assert keys("DEBUG DIGEST-VALUE a b") == [(2, b"a", READ), (3, b"b", READ)]
    assert problem("DEBUG SLEEP 0") == ""
    assert problem("DEBUG RELOAD") == "command.unknown"


def test_only_removing_whole_keys_needs_delete() -> None:
    for text in ("DEL k", "UNLINK k", "GETDEL k", "RENAME k d", "RENAMENX k d", "MIGRATE h 1 k 0 9"):
        source = next(access for access in touched(text).accesses if access.key == b"k")
        assert source.needs & DELETE, text
    for text in ("HDEL k f", "SREM k m", "XDEL k 1", "LTRIM k 0 1", "SPOP k", "SET k v", "MOVE k 1"):
        assert not touched(text).accesses[0].needs & DELETE, text
    assert not touched("RENAME k d").accesses[1].needs & DELETE


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("HGETEX k FIELDS 2 a b", READ),
        ("HGETEX k EX 9 FIELDS 1 a", READ | WRITE),
        ("HGETEX k FIELDS 1 a EX 9", READ | WRITE),
        ("HGETEX k PERSIST FIELDS 1 FIELDS", READ | WRITE),
        ("DELEX k", WRITE | DELETE),
        ("DELEX k IFEQ v", READ | WRITE | DELETE),
        ("DELIFEQ k v", READ | WRITE | DELETE),
    ],
)
def test_the_newest_commands_that_show_the_old_value_need_read(text: str, needs: int) -> None:
    assert [access.needs for access in extract(text.encode().split()).accesses] == [needs]


def test_fields_that_an_earlier_command_named_are_a_problem() -> None:
    touches = extract(b"HIMPORT SET k fieldset a b".split())
    assert [(access.key, access.needs) for access in touches.accesses] == [(b"k", WRITE)]
    assert touches.problem is not None
    assert touches.problem.rule == "command.unknown"


def test_a_scan_of_a_whole_cluster_is_a_scan() -> None:
    assert extract(b"CLUSTERSCAN 0 SLOT 7 MATCH a:*".split()).pattern == Pattern(5, b"a:*")
    assert extract(b"CLUSTERSCAN 0".split()).pattern == Pattern(0, b"*")
