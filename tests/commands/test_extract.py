from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import PLANS, extract, positions
from keyfence.commands.model import GROUP, READ, WRITE, Streamed, Touches
from keyfence.commands.table import COMMANDS, KeySpec
from tests.commands.calls import ARGUMENTS, GRAMMATICAL, NAMES, calls


def touched(text: str) -> Touches:
    """What a command line touches. `""` is the empty argument."""
    return extract([b"" if part == '""' else part.encode() for part in text.split()])


def keys(text: str) -> list[tuple[int, bytes, int]]:
    """Position, key, and READ and WRITE of the needs. DELETE and GROUP are left out; `touched` has them."""
    return [(a.position, a.key, a.needs & (READ | WRITE)) for a in touched(text).accesses]


@settings(max_examples=500)
@given(st.lists(st.binary(max_size=40), max_size=12))
@example([])
@example([b""])
def test_random_bytes_never_raise(argv: list[bytes]) -> None:
    assert isinstance(extract(argv), Touches)


@settings(max_examples=1000)
@given(st.one_of(calls(NAMES), GRAMMATICAL))
def test_known_names_with_any_arguments_never_raise(argv: list[bytes]) -> None:
    touches = extract(argv)
    assert touches.command is not None
    for access in touches.accesses:
        assert access.position > 0
        assert access.key == argv[access.position]
        assert (access.ttl is None) or access.needs & WRITE
    for cut in range(len(argv)):
        extract(argv[:cut])


@given(st.sampled_from(NAMES), st.lists(st.one_of(ARGUMENTS, st.binary(max_size=8)), max_size=10))
def test_a_name_in_any_case_is_the_same_command(name: bytes, rest: list[bytes]) -> None:
    mixed = bytes(c ^ 0x20 if i % 2 and chr(c).isalpha() else c for i, c in enumerate(name))
    assert extract([*mixed.split(), *rest]) == extract([*name.split(), *rest])


def test_an_unknown_command_is_a_problem() -> None:
    touches = touched("NOSUCH a b")
    assert touches.command is None
    assert touches.problem is not None
    assert touches.problem.rule == "command.unknown"


@pytest.mark.parametrize("argv", [[b"XGROUP", b"NOPE", b"k"], [b"OBJECT", b"\0FREQ", b"k"], [b"CONFIG", b""]])
def test_an_unknown_subcommand_is_a_problem_of_its_container(argv: list[bytes]) -> None:
    touches = extract(argv)
    assert touches.command is not None
    assert touches.problem is not None
    assert (touches.problem.rule, touches.problem.position) == ("command.unknown", 1)


def test_a_container_alone_touches_nothing() -> None:
    assert touched("XGROUP") == Touches(COMMANDS[b"XGROUP"].command)
    assert touched("command").problem is None


def test_a_command_and_subcommand_in_one_argument_are_unknown() -> None:
    assert extract([b"XGROUP CREATE", b"k"]).command is None
    assert not any(b" " in name for name in PLANS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GET", []),
        ("GET a b", [(1, b"a", READ)]),
        ("MSET a 1 b", [(1, b"a", WRITE), (3, b"b", WRITE)]),
        ("RENAME a", [(1, b"a", READ | WRITE)]),
        ("BLPOP a", []),
        ("BITOP AND d", [(2, b"d", WRITE)]),
        ("PFMERGE d", [(1, b"d", READ | WRITE)]),
    ],
)
def test_a_wrong_number_of_arguments_gives_the_keys_that_are_present(
    text: str, found: list[tuple[int, bytes, int]]
) -> None:
    assert keys(text) == found
    assert touched(text).problem is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GET a", [(1, b"a", READ)]),
        ("EXISTS a b", [(1, b"a", 0), (2, b"b", 0)]),
        ("WATCH a", [(1, b"a", 0)]),
        ("OBJECT FREQ a", [(2, b"a", 0)]),
        ("MEMORY USAGE a SAMPLES 5", [(2, b"a", READ)]),
        ("SISMEMBER a m", [(1, b"a", READ)]),
        ("STRLEN a", [(1, b"a", READ)]),
        ("OBJECT ENCODING a", [(2, b"a", READ)]),
        ("DUMP a", [(1, b"a", READ)]),
        ("BLPOP a b 0", [(1, b"a", READ | WRITE), (2, b"b", READ | WRITE)]),
        ("MSET a 1 b 2", [(1, b"a", WRITE), (3, b"b", WRITE)]),
        ("SINTERSTORE d a b", [(1, b"d", WRITE), (2, b"a", READ), (3, b"b", READ)]),
        ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", [(1, b"d", WRITE), (3, b"a", READ), (4, b"b", READ)]),
        ("LCS a b IDX", [(1, b"a", READ), (2, b"b", READ)]),
        ("PFCOUNT a b", [(1, b"a", READ), (2, b"b", READ)]),
        ("PFDEBUG ENCODING a", [(2, b"a", READ)]),
        ("XINFO STREAM a FULL", [(2, b"a", READ)]),
        ("SMOVE a b m", [(1, b"a", READ | WRITE), (2, b"b", WRITE)]),
        ("RESTORE a 0 payload", [(1, b"a", WRITE)]),
        ("CLUSTER KEYSLOT a", []),
        ("WAIT 1 0", []),
        ("COMMAND GETKEYS GET a", []),
        ("SPUBLISH c m", []),
    ],
)
def test_keys_and_needs_are_those_of_the_key_specs(text: str, found: list[tuple[int, bytes, int]]) -> None:
    assert keys(text) == found
    assert touched(text).problem is None


def spec(**fields: object) -> KeySpec:
    plain = KeySpec(frozenset(), "index", 1, b"", "range", 0, 1, 0, 0, 0)
    return plain._replace(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a_spec", "text", "found"),
    [
        (spec(begin="keyword", keyword=b"K", start=1), "x K a K b", [2]),
        (spec(begin="keyword", keyword=b"K", start=-2), "x k a K b", [4]),
        (spec(begin="keyword", keyword=b"K", start=-3), "x K a b c", [2]),
        (spec(begin="keyword", keyword=b"K", start=3), "x K a b c", []),
        (spec(begin="keyword", keyword=b"K", start=1), "x K", []),
        (spec(last=-1), "x a b c", [1, 2, 3]),
        (spec(last=-1, limit=2), "x a b 1 2", [1, 2]),
        (spec(last=-1, step=2), "x a 1 b 2", [1, 3]),
        (spec(last=-2), "x a b 0", [1, 2]),
        (spec(find="keynum", count_at=0, first=1), "x 2 a b c", [2, 3]),
        (spec(find="unknown"), "x a", []),
        (spec(begin="unknown"), "x a", []),
    ],
)
def test_key_specs_are_read_as_redis_reads_them(a_spec: KeySpec, text: str, found: list[int]) -> None:
    assert list(positions(a_spec, text.encode().split())) == found


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("SET k v", "KEEPTTL"),
        ("GETEX k", "PERSIST"),
        ("SORT k", "ALPHA"),
        ("COPY a b", "REPLACE"),
        ("RESTORE k 0 x", "REPLACE"),
        ("GEORADIUS k 1 1 1 km", "ASC"),
        ("ZADD k", "NX"),
        ("GEOADD k", "XX"),
        ("XADD k", "NOMKSTREAM"),
        ("XREAD", "NOACK"),
        ("XREADGROUP GROUP g c NEW-OPTION", "NOACK"),
        ("HSETEX k", "FNX"),
        ("MSETEX 1 k v", "NX"),
        ("MIGRATE h 1 k 0 1", "COPY"),
        ("SCAN 0", "COUNT"),
        ("CLIENT TRACKING ON", "BCAST"),
    ],
)
def test_a_command_with_too_many_options_is_unknown(text: str, option: str) -> None:
    few, many = ([*text.encode().split(), *[option.encode()] * count] for count in (100, 6_000))
    before, touches = extract(few).problem, extract(many)
    assert before is None or "more than" not in before.reason
    assert touches.command is not None
    assert touches.problem is not None
    assert (touches.problem.rule, touches.problem.reason) == (
        "command.unknown",
        "it has more than 5000 options",
    )


@pytest.mark.parametrize(
    ("text", "option", "keys"),
    [
        ("SET k v", "KEEPTTL", [b"k"]),
        ("GETEX k", "PERSIST", [b"k"]),
        ("COPY a b", "REPLACE", [b"a", b"b"]),
        ("GEORADIUS k 1 1 1 km", "ASC", [b"k"]),
        ("ZADD k", "NX", [b"k"]),
        ("MSETEX 2 k v l w", "NX", [b"k", b"l"]),
        ("XREAD", "NOACK", []),
        ("CLIENT TRACKING ON", "BCAST", []),
    ],
)
def test_a_command_with_too_many_options_may_read_and_write_its_keys(
    text: str, option: str, keys: list[bytes]
) -> None:
    touches = extract([*text.encode().split(), *[option.encode()] * 6_000])
    assert [(one.key, one.needs) for one in touches.accesses] == [(key, READ | WRITE) for key in keys]


@pytest.mark.parametrize(
    ("text", "needs"),
    [("BITFIELD k", READ | WRITE), ("XCLAIM k g c 0", READ | WRITE | GROUP), ("SADD k", WRITE)],
)
def test_very_many_operations_ids_and_elements_are_no_options(text: str, needs: int) -> None:
    [access] = extract([*text.encode().split(), *[b"GET", b"u8", b"0"] * 3_000]).accesses
    assert access.needs == needs


@pytest.mark.parametrize("count", [3, 3_000])
def test_a_streamed_argument_is_a_name_only_where_names_stand(count: int) -> None:
    argv = [b"MSET", *(part for at in range(count) for part in (b"k%d" % at, b"v"))]
    assert not extract(argv).has_streamed_name(argv)
    for place, is_name in ((2, False), (2 * count, False), (1, True), (2 * count - 1, True)):
        changed = [*argv[:place], Streamed(b"x", 2_000_000), *argv[place + 1 :]]
        assert extract(changed).has_streamed_name(changed) == is_name
