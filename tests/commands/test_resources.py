from __future__ import annotations

import pytest

from keyfence.commands.arguments import glob_escape
from keyfence.commands.extract import extract
from keyfence.commands.key_runs import MAX_UNSEEN
from keyfence.commands.model import READ, Channel, Pattern, Script, Unseen
from tests.commands.conftest import Live
from tests.commands.test_extract import keys, touched


def test_channels_are_found_with_their_use() -> None:
    assert touched("PUBLISH c m").channels == (Channel(1, b"c", True, False),)
    assert touched("SPUBLISH c m").channels == (Channel(1, b"c", True, False),)
    both = (Channel(1, b"a", False, False), Channel(2, b"b", False, False))
    assert touched("SUBSCRIBE a b").channels == touched("SSUBSCRIBE a b").channels == both
    assert touched("PSUBSCRIBE a*").channels == (Channel(1, b"a*", False, True),)
    assert touched("UNSUBSCRIBE a").channels == ()
    assert touched("PUBSUB CHANNELS a*").channels == (Channel(2, b"a*", False, True),)
    assert touched("PUBSUB SHARDCHANNELS").channels == (Channel(0, b"*", False, True),)
    assert touched("PUBSUB NUMSUB a").channels == (Channel(2, b"a", False, False),)
    assert touched("PUBSUB SHARDNUMSUB").channels == ()
    assert keys("SSUBSCRIBE a b") == []


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("KEYS a*", Pattern(1, b"a*")),
        ("SCAN 0", Pattern(0, b"*")),
        ("SCAN 0 MATCH a* COUNT 5", Pattern(3, b"a*")),
        ("SCAN 0 MATCH a* TYPE MATCH match b*", Pattern(7, b"b*")),
        ("SCAN 0 WHAT MATCH a*", Pattern(0, b"*")),
        ("SCAN 0 MATCH", Pattern(0, b"*")),
        ("RANDOMKEY", Pattern(0, b"*")),
        ("CLUSTER GETKEYSINSLOT 0 5", Pattern(0, b"*")),
        ("CLIENT TRACKING ON BCAST", Pattern(0, b"*")),
        ("CLIENT TRACKING ON PREFIX a*b bcast NOLOOP", Pattern(4, b"a\\*b*")),
        ("CLIENT TRACKING ON REDIRECT 5 PREFIX BCAST", None),
        ("CLIENT TRACKING ON", None),
        ("HSCAN k 0 MATCH a*", None),
    ],
)
def test_patterns_over_key_names(text: str, pattern: Pattern | None) -> None:
    assert touched(text).pattern == pattern


def test_servers_use_the_last_match_of_scan(redis: Live) -> None:
    redis("FLUSHALL")
    redis("MSET", "a", "1", "b", "2")
    assert redis("SCAN", "0", "MATCH", "a", "COUNT", "99", "MATCH", "b") == [b"0", [b"b"]]
    assert redis("SCAN", "0", "COUNT", "99", "MATCH", "b", "MATCH", "*")[1] != [b"b"]


@pytest.mark.parametrize(
    ("pattern", "key", "field", "glob"),
    [
        ("w_*", "w_e", "", b"w_*"),
        ("*", "e", "", b"*"),
        ("w_*:x*y", "w_e:x*y", "", b"w_*:x\\*y"),
        ("[w]*", "[w]e", "", b"\\[w\\]*"),
        ("w_*->f", "w_e", "f", b"w_*"),
        ("w_*->f->*", "w_e", "f->*", b"w_*"),
        ("w_*x->f", "w_ex", "f", b"w_*x"),
        ("w_*->", "w_e->", "", b"w_*->"),
        ("w->x_*", "w->x_e", "", b"w->x_*"),
    ],
)
def test_the_glob_of_a_sort_pattern_matches_the_keys_it_reads(
    redis: Live, pattern: str, key: str, field: str, glob: bytes
) -> None:
    redis("FLUSHALL")
    redis("RPUSH", "l", "e")
    redis("HSET", key, field, "found") if field else redis("SET", key, "found")
    assert redis("SORT", "l", "BY", "nosort", "GET", pattern) == [b"found"]
    assert key.encode() in redis("KEYS", glob)
    for option in ("BY", "GET"):
        problem = extract([b"SORT", b"l", option.encode(), pattern.encode()]).problem
        assert problem is not None
        assert problem.unseen == (Unseen(glob, READ),)


def test_an_escaped_glob_matches_only_its_text(redis: Live) -> None:
    name = b"a*?[b]\\c^-"
    redis("FLUSHALL")
    redis("SET", name, "1")
    redis("SET", b"axx[b]\\c^-", "1")
    assert redis("KEYS", glob_escape(name)) == [name]


def test_several_broadcast_prefixes_reach_the_keys_of_each() -> None:
    problem = touched("CLIENT TRACKING ON BCAST PREFIX a PREFIX b* PREFIX a").problem
    assert problem is not None
    assert (problem.rule, problem.position) == ("scan.scope", 5)
    assert problem.unseen == (Unseen(b"a*", READ), Unseen(b"b\\**", READ))


def test_many_broadcast_prefixes_reach_every_key() -> None:
    prefixes = " ".join(f"PREFIX p{number}" for number in range(MAX_UNSEEN + 1))
    problem = touched(f"CLIENT TRACKING ON BCAST {prefixes}").problem
    assert problem is not None
    assert problem.unseen == (Unseen(b"*", READ),)


@pytest.mark.parametrize(
    ("text", "databases"),
    [
        ("SELECT 3", ((1, 3),)),
        ("MOVE k 3", ((2, 3),)),
        ("SWAPDB 1 2", ((1, 1), (2, 2))),
        ("COPY a b", ()),
        ("COPY a b DB 1 REPLACE db 2", ((4, 1), (7, 2))),
        ("SELECT x", ()),
        ("SELECT 01", ()),
        ("SELECT", ()),
    ],
)
def test_databases_are_found(text: str, databases: tuple[tuple[int, int], ...]) -> None:
    assert touched(text).databases == databases


def test_servers_refuse_a_database_that_is_not_a_number(redis: Live) -> None:
    for number in ("x", "01", "+1", ""):
        assert isinstance(redis("SELECT", number), Exception)


def test_scripts_are_found_with_their_keys_and_arguments() -> None:
    assert touched("EVAL s 1 k v w").script == Script("text", 1, b"s", (b"k",), (b"v", b"w"))
    assert touched("evalsha_ro a 2 k l").script == Script("sha1", 1, b"a", (b"k", b"l"), ())
    assert touched("FCALL f 0 v").script == Script("function", 1, b"f", (), (b"v",))
    assert touched("EVAL s").script is None


def test_a_loaded_script_has_no_keys() -> None:
    assert touched("SCRIPT LOAD s").script == Script("text", 2, b"s", (), ())
    assert touched("script load s").accesses == ()
    assert touched("SCRIPT LOAD").script is None
    assert touched("SCRIPT EXISTS s").script is None
