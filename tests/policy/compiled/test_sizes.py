"""Limits on the size of values and keys: found at once if a command shows it, or by asking a server."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.commands.model import Streamed
from keyfence.policy.compiled.requirements import rules_to_test
from keyfence.policy.compiled.sizes import LATE_SECONDS, Question
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.pending import PendingSize, PendingSizes, PendingTtls
from keyfence.policy.engine.writes import MAX_KEY, new_write
from keyfence.policy.loading.load import parse_policy
from tests.commands.conftest import Live
from tests.policy.engine.test_decision_cache import ALL, agree, evaluated_and_counted
from tests.servers import RedisServer

POLICY = parse_policy(
    """
policy: sizes
services: [one]
placeholders: {id: "[0-9]"}
scopes:
  all: {prefix: "k:", writers: [one], max_value: 6b}
  other: {prefix: "o:", writers: [one], unregistered: allow, max_members: 2, max_fields: 2}
keys:
  any: {key: "k:any:<id>", max_fields: 2, max_members: 2}
  string: {key: "k:string:<id>", type: string}
  hash: {key: "k:hash:<id>", type: hash, max_fields: 2, max_value: 1kb, ttl: {or_none: true, max: 1h}}
  list: {key: "k:list:<id>", type: list, max_members: 2, ttl: {max: 1h}}
  forms: {key: "k:forms:<id>", type: [string, hash], values: integer, fields: {f: integer, g: any}}
unregistered_scripts: declared
"""
)
KEYS = [f"k:any:{number}" for number in "123"]
LIMITS = {b"string": 6, b"hash": 2, b"list": 2, b"set": 2, b"zset": 2, b"stream": 2}
SIZE_OF = {
    b"string": "STRLEN", b"hash": "HLEN", b"list": "LLEN", b"set": "SCARD", b"zset": "ZCARD",
    b"stream": "XLEN",
}  # fmt: skip

# k and j are keys.
STRINGS = """
SET k abc; SET k 9999999; SETNX k abcdefg; GETSET k abcdefg; MSET k abcd j abcdefg; APPEND k abc
APPEND k abcdefg; SETRANGE k 3 abc; SETRANGE k 5 abc; SETRANGE k 9 ""; SETBIT k 47 1; SETBIT k 48 1; INCR k
INCRBY k 999999; INCRBYFLOAT k 0.12345; BITFIELD k SET u8 #9 1; BITOP NOT k j; PFADD k a; PFMERGE k j
GETDEL k; DEL k; COPY j k REPLACE; RENAME j k; RENAMENX j k; EXPIRE k 100; PERSIST k
EVAL "return redis.call('APPEND', KEYS[1], 'abcd')" 1 k
"""
HASHES = """
HSET k f v; HSET k g v h v; HSET k f v g v h v; HSET k f v f v f v; HSETNX k i v; HINCRBY k n 1
HINCRBYFLOAT k n 1; HMSET k x v; HDEL k f; DEL k j; COPY j k; RENAME j k; HSET k f abcdefg; HGET k f
EVAL "return redis.call('HSET', KEYS[1], 'y', 'v')" 1 k
"""
LISTS = """
LPUSH k 1; RPUSH k 1 1; LPUSH k 1 1 1; LPUSHX k 1; RPUSHX k 1 1 1; LINSERT k BEFORE 1 2; LSET k 0 2; LPOP k
LMOVE j k LEFT RIGHT; RPOPLPUSH j k; RPOPLPUSH k k; LTRIM k 0 1; LREM k 1 1; SORT j STORE k; LRANGE k 0 -1
"""
SETS = """
SADD k 1; SADD k 2 3; SADD k 1 2 3; SADD k 1 1 1; SMOVE j k 1; SUNIONSTORE k j k; SINTERSTORE k j
SDIFFSTORE k j; SREM k 1; SPOP k
"""
ZSETS = """
ZADD k 1 a; ZADD k 1 b 1 c; ZADD k 1 a 1 b 1 c; ZADD k XX 1 a 1 b 1 c; ZADD k NX 1 d; ZADD k INCR 1 e
ZINCRBY k 1 f; ZUNIONSTORE k 2 j k; ZRANGESTORE k j 0 -1; GEOADD k 1 1 g; ZREM k a; ZPOPMIN k
"""
STREAMS = """
XADD k * f v; XADD k NOMKSTREAM * f v; XADD k MAXLEN 2 * f v; XADD k MAXLEN ~ 2 * f v; XADD k * f v g v h v
XADD k MAXLEN = 3 * f v; XTRIM k MAXLEN 1; XGROUP CREATE k g $ MKSTREAM
"""
GROUPS = [
    [one.strip() for one in text.replace("\n", ";").split(";") if one.strip()]
    for text in (STRINGS, HASHES, LISTS, SETS, ZSETS, STREAMS)
]


@st.composite
def sequences(draw: st.DrawFn) -> list[Any]:
    """Commands (as lists of arguments) and seconds that pass. Most sequences use one type."""
    commands = draw(st.sampled_from(GROUPS))
    if draw(st.booleans()):
        commands = commands + draw(st.sampled_from(GROUPS))
    keys = st.lists(st.sampled_from(KEYS), min_size=2, max_size=2, unique=True)

    def words(command: str, places: list[str]) -> list[bytes]:
        named = dict(zip("kj", places, strict=True))
        return [named.get(word, word).encode() for word in shlex.split(command)]

    command = st.builds(words, st.sampled_from(commands), keys)
    return draw(st.lists(command | command | st.sampled_from([0.5, 4.0, 5.0]), min_size=1, max_size=14))


class Watched:
    """A server behind an authorizer, and what is asked of the server later."""

    def __init__(self, server: RedisServer) -> None:
        self.now = 0.0
        self.link = Live(str(server.socket_path), server.version)
        self.link("FLUSHALL")
        self.table = PendingTtls(clock=lambda: self.now)
        self.authorizer = Authorizer(POLICY, Modes((), POLICY.services), pending=self.table)
        self.told: set[str] = set()  # keys reported since they were last correct

    def exceeds(self, key: str) -> bool:
        kind = bytes(self.link("TYPE", key))
        return kind != b"none" and int(self.link(SIZE_OF[kind], key)) > LIMITS[kind]

    def do(self, argv: list[bytes]) -> None:
        ruling, _ = self.authorizer.authorize(Asker(0, sender=1), argv)
        self.told |= {(one.violation.key or b"").decode() for one in ruling.findings}
        self.link(*argv)
        self.told = {key for key in self.told if self.exceeds(key)}

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for pending in self.table.sizes.due():
            asked = pending.questions
            sizes = [self.size(question.command, pending.key) for question in asked]
            found = self.table.sizes.answer(pending, asked, sizes)
            if found is not None:
                doubt, size = found
                (finding,) = doubt.findings(size)
                assert finding.action == "late"
                assert self.exceeds(pending.key.decode()), finding
                self.told.add(pending.key.decode())

    def size(self, command: bytes, key: bytes) -> int | None:
        reply = self.link(command, key)
        return reply if isinstance(reply, int) else None

    def settle(self) -> None:
        for _ in range(3):
            self.pass_time(5.0)
        assert len(self.table.sizes) == 0
        assert {key for key in KEYS if self.exceeds(key)} == self.told & set(KEYS)


@given(sequences())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_key_is_reported_exactly_if_a_server_says_that_it_is_too_large(
    redis_server: RedisServer, sequence: list[Any]
) -> None:
    watched = Watched(redis_server)
    try:
        for step in sequence:
            if isinstance(step, float):
                watched.pass_time(step)
            else:
                watched.do(step)
        watched.settle()
    finally:
        watched.link.connection.disconnect()


# The evaluator and the decision cache; both are used for all examples.
EVALUATOR = Evaluator(POLICY)
CACHE = DecisionCache(EVALUATOR, 0, ALL)
OBSERVING = Authorizer(POLICY, Modes([ModeRule("observe")], POLICY.services))
COMMANDS = sorted(
    {command.split()[0].encode() for group in GROUPS for command in group if not command.startswith("EVAL")}
)
PLACES = [b"k:any:1", b"k:string:1", b"k:hash:1", b"k:list:1", b"k:forms:1", b"k:other", b"o:1", b"x"]
WORDS = st.sampled_from(
    [
        *b"1 2 3 f g h abcdef abcdefg 1234567 EX 60 7200 * MAXLEN ~ = XX NX INCR BEFORE x".split(),
        b"",
        b"a" * 1025,
    ]
)


@settings(max_examples=1500)
@given(st.sampled_from(COMMANDS), st.sampled_from(PLACES), st.lists(WORDS, max_size=8))
def test_the_decision_cache_agrees_on_sizes(name: bytes, key: bytes, rest: list[bytes]) -> None:
    argv = [name, key, *rest]
    agree(EVALUATOR, 0, argv, CACHE)
    for _ in range(2):
        evaluated_and_counted(OBSERVING, 0, argv)


def found(argv: list[bytes]) -> list[tuple[str, int]]:
    return [(one.rule, one.position) for one in EVALUATOR.decide(0, argv).violations]


def test_the_length_of_a_value_that_is_not_at_hand_is_known() -> None:
    for size, rules in ((2_000_000, [("value.size", 2)]), (6, [])):
        value = Streamed(b"x" * 256, size)
        for name in (b"SET", b"APPEND", b"GETSET"):
            assert found([name, b"k:string:1", value]) == rules
    value = Streamed(b"x" * 256, 2_000_000)
    assert found([b"SETRANGE", b"k:string:1", b"0", value]) == [("value.size", 3)]
    assert found([b"HSET", b"k:hash:1", b"f", value]) == [("value.size", 3)]
    assert found([b"SADD", b"k:any:1", b"f", value]) == [("value.size", 3)]


def test_a_scope_s_limits_apply_if_an_entry_sets_none() -> None:
    assert found([b"SET", b"k:string:1", b"1234567"]) == [("value.size", 2)]
    assert found([b"HSET", b"k:hash:1", b"f", b"1234567"]) == []  # its own limit
    assert found([b"SADD", b"o:1", b"1", b"2", b"3"]) == [("key.members", 4)]
    assert found([b"SADD", b"o:1", b"1", b"2", b"1", b"2"]) == []


def test_a_write_for_another_type_does_not_replace_a_question() -> None:
    table = PendingTtls()
    authorizer = Authorizer(POLICY, Modes([], POLICY.services), pending=table)
    for command in ("SADD k:any:1 a", "RPUSH k:any:1 a", "SADD k:any:1 b"):
        authorizer.authorize(Asker(0), command.encode().split())
    (pending,) = table.sizes
    assert [question.command for question in pending.questions] == [b"SCARD", b"LLEN"]


def test_a_violation_names_the_limit_and_not_the_value() -> None:
    (violation,) = EVALUATOR.decide(0, [b"SET", b"k:string:1", b"1234567"]).violations
    assert violation.message == "the value for k:string:1 is longer than 6 bytes"
    assert violation.hint == "at most 6 bytes"
    (violation,) = EVALUATOR.decide(0, [b"HSET", b"k:hash:1", b"f", b"x" * 1025]).violations
    assert violation.message == "a field's value for k:hash:1 is longer than 1kb"
    assert violation.hint == "at most 1kb"


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("APPEND k:string:1 a", ["STRLEN"]),
        ("SET k:string:1 a", []),
        ("APPEND k:any:1 a", ["STRLEN"]),
        ("COPY k:string:1 k:any:1", ["STRLEN", "HLEN", "LLEN", "SCARD", "ZCARD", "XLEN"]),
        ("COPY k:any:1 k:string:1", ["STRLEN"]),
        ("HSET k:hash:1 f v", ["HLEN"]),
        ("HDEL k:hash:1 f", []),
        ("EXPIRE k:hash:1 60", []),
        ("SADD o:1 a", ["SCARD"]),
        ("EVAL x 1 k:list:1", ["LLEN"]),
        ("EVAL_RO x 1 k:list:1", []),
        ("XADD o:1 MAXLEN 2 * f v", []),
        ("GET k:string:1", []),
        ("LPUSH k:hash:1 1", []),  # of another type
    ],
)
def test_redis_is_asked_what_a_command_leaves_open(command: str, asked: list[str]) -> None:
    table = PendingTtls()
    authorizer = Authorizer(POLICY, Modes([], POLICY.services), pending=table)
    for _ in range(3):
        authorizer.authorize(Asker(0), command.encode().split())
    told = [question.command.decode() for one in table.sizes for question in one.questions]
    assert told == asked


def test_a_refused_command_leaves_no_size_open() -> None:
    table = PendingTtls()
    authorizer = Authorizer(POLICY, Modes([ModeRule("enforce")], POLICY.services), pending=table)
    ruling, _ = authorizer.authorize(Asker(0), b"LPUSH k:list:1 1 2 3".split())
    assert ruling.refused_by is not None
    assert ruling.refused_by.rule == "key.members"
    assert len(table.sizes) == 0


def test_coverage_asks_only_for_rules_that_one_command_can_break() -> None:
    asked = {
        target.name: [rule for rule in rules_to_test(target.entry) if rule in ("value.size", "key.members")]
        for target in POLICY.targets
        if target.kind == "entry" and target.entry is not None
    }
    assert asked == {
        "any": ["value.size", "key.members"],
        "string": ["value.size"],
        "hash": ["key.members"],
        "list": ["key.members"],
        "forms": ["value.size"],
    }
    policy = "policy: p\nservices: [a]\nkeys: {k: {key: k, writers: a, max_members: 100000}}\n"
    (target,) = parse_policy(policy).targets
    assert target.entry is not None
    assert list(rules_to_test(target.entry)) == []


# -- the table

LLEN = Question(b"LLEN", "members", 10)


class Bench:
    def __init__(self, limit: int = 3) -> None:
        self.now = 0.0
        self.table = PendingSizes(limit, lambda: self.now)

    def write(self, key: bytes = b"k", command: str = "LPUSH", database: int = 0) -> None:
        authorizer: Any = None
        target: Any = None
        write = new_write(authorizer, Asker(0), command, database, key, 1, target)
        self.table.ask(write, [LLEN])

    def told_at(self, now: float, size: int | None) -> list[str]:
        self.now = now
        due: list[PendingSize] = self.table.due()
        answers = [self.table.answer(one, [LLEN], [size]) for one in due]
        return [answer[0].write.command for answer in answers if answer is not None]


def test_there_is_one_question_for_a_key_and_a_time() -> None:
    bench = Bench()
    for tick in range(49):
        bench.now = tick / 10
        bench.write()
        bench.write(database=1)
    assert bench.told_at(LATE_SECONDS - 0.1, 11) == []
    bench.now = LATE_SECONDS
    assert len(bench.table.due()) == 2
    assert bench.table.due() == []


def test_a_key_that_is_too_large_is_reported_with_its_last_write() -> None:
    bench = Bench()
    bench.write()
    assert bench.told_at(5.0, 11) == ["LPUSH"]
    assert len(bench.table) == 0
    bench.write()
    bench.now = 6.0
    bench.write(command="RPUSH")
    assert bench.told_at(10.0, 11) == []
    assert bench.told_at(15.0, 11) == ["RPUSH"]


@pytest.mark.parametrize("size", [0, 10, None])
def test_a_key_that_is_gone_or_small_or_of_another_type_is_forgotten(size: int | None) -> None:
    bench = Bench()
    bench.write()
    assert bench.told_at(5.0, size) == []
    assert len(bench.table) == 0


def test_a_list_that_is_trimmed_is_too_long_for_a_moment_only() -> None:
    bench = Bench()
    bench.write()
    bench.now = 4.0
    bench.write()
    assert bench.told_at(5.0, 11) == []  # its LTRIM follows
    bench.now = 9.0
    bench.write()
    assert bench.told_at(10.0, 10) == []
    assert bench.told_at(15.0, 10) == []
    assert len(bench.table) == 0


def test_a_full_table_drops_the_oldest_and_counts_it() -> None:
    bench = Bench(2)
    for key in (b"1", b"2", b"1", b"3", b"k" * MAX_KEY, b"k" * (MAX_KEY + 1)):
        bench.write(key)
    assert [one.key for one in bench.table] == [b"3", b"k" * MAX_KEY]
    assert bench.table.dropped == 3


def test_a_dropped_or_unanswered_key_accuses_no_one() -> None:
    bench = Bench(1)
    bench.write(b"1")
    bench.now = 5.0
    (pending,) = bench.table.due()
    bench.write(b"2")
    assert bench.table.answer(pending, [LLEN], [11]) is None
    bench.table.unanswered(pending)
    assert len(bench.table) == 1
    (other,) = bench.table
    bench.table.unanswered(other)
    assert len(bench.table) == 0
