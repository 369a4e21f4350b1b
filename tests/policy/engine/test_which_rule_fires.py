"""The table of docs/policy.md, "Which rule fires", as data: a command, and every rule that it breaks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.analysis.explain import explain
from keyfence.policy.analysis.lint import check_policy
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.rules import RULES, STAGES
from tests.policy.cases import POLICIES

POLICY = """
policy: shop
claims: ["shop:"]
services: [web, stock, audit, ops, lost]
databases: [0]
should: [field.unknown]
placeholders:
  id: "[a-z0-9]{1,8}"
  token: {is: "[A-Za-z0-9]{1,16}", secret: true}
names: {max_length: 40, charset: "[a-z0-9:A-Z]"}
scopes:
  web: {prefix: "shop:v1:web:", writers: [web], readers: [audit]}
  stock: {prefix: "shop:v1:stock:", writers: [stock, web], deny_write: [web]}
  scratch: {prefix: "shop:v1:scratch:", writers: [web, stock], unregistered: allow}
keys:
  cart: {key: "shop:v1:web:cart:<id>", type: hash, ttl: {max: 1h}, fields: {n: integer, note: any}}
  cart-total: {key: "shop:v1:web:cart:total", type: string, values: "[0-9]+", ttl: none}
  session: {key: "shop:v1:web:session:<token>", type: string, ttl: {min: 10s, max: 1h, at: write}}
  level: {key: "shop:v1:stock:level:<id...>", writers: [stock], readers: [web]}
  short: {key: "shop:v1:stock:s:<id>", max_length: 20}
  sized: {key: "shop:v1:stock:size:<id>", max_value: 4b, max_fields: 2, max_members: 2, writers: [stock]}
  log: {key: "shop:v1:stock:log", type: stream, maxlen: "100", consumers: [audit], writers: [stock]}
legacy:
  allow: [read, delete]
  keys: {"cart:<id>": cart, "sess:<token>": session, "<id>": level}
commands: {forbid: [SORT], allow: [DBSIZE]}
grants:
  ops: {commands: [SCAN, DEL, "@admin"], keys: ["shop:v1:web:*", legacy]}
"""


class Row(NamedTuple):
    """`rules` are all that are broken, in their order; `entry` is the first one's."""

    about: str
    service: str
    command: str
    rules: list[str]
    entry: str | None = None


TABLE = [
    # -- what a key is
    Row("an entry's key", "web", "HGETALL shop:v1:web:cart:c1", []),
    Row("a key that no entry nor claim covers", "web", "GET other:k", ["key.unregistered"]),
    Row("a bare key that no legacy form covers", "web", "GET LONGNAME", ["key.unregistered"]),
    Row("a bare key that a legacy form covers", "stock", "SET c1 x", ["key.legacy"], "level"),
    Row("an empty key", "web", "GET ''", ["key.unregistered"]),
    Row("in the claim, in no scope", "web", "GET shop:v1:nowhere:x", ["key.format"], "claim"),
    Row("an unknown version", "web", "GET shop:v2:web:cart:c1", ["key.format"], "claim"),
    Row("the claim alone", "web", "GET shop:", ["key.format"], "claim"),
    Row("in a scope, but no entry", "web", "GET shop:v1:web:other:x", ["key.unregistered"], "web"),
    Row("the scope's prefix alone", "web", "GET shop:v1:web:", ["key.unregistered"], "web"),
    Row("in an open scope", "web", "SET shop:v1:scratch:x 1", []),
    Row(
        "malformed under an entry's beginning", "web", "HGETALL shop:v1:web:cart:c1:x", ["key.format"], "cart"
    ),
    Row("too long an id", "web", "HGETALL shop:v1:web:cart:c12345678", ["key.format"], "cart"),
    Row("the id is missing", "web", "HGETALL shop:v1:web:cart:", ["key.format"], "cart"),
    Row("the id and its colon are missing", "web", "HGETALL shop:v1:web:cart", ["key.format"], "cart"),
    Row("an empty segment", "stock", "GET shop:v1:stock:level:a::b", ["key.format"], "level"),
    Row("several segments where they may be", "stock", "SET shop:v1:stock:level:a:b:c 1", []),
    Row("none where several may be", "stock", "GET shop:v1:stock:level:", ["key.format"], "level"),
    Row("the literal one before the placeholder", "web", "SET shop:v1:web:cart:total 5", []),
    Row(
        "and not by the other's rules",
        "web",
        "HSET shop:v1:web:cart:total n 5",
        ["type.mismatch"],
        "cart-total",
    ),
    # -- rights
    Row("a writer reads", "web", "GET shop:v1:web:session:t", []),
    Row("a scope's reader reads what has no rights of its own", "audit", "HGETALL shop:v1:web:cart:c1", []),
    Row("a reader writes", "audit", "HDEL shop:v1:web:cart:c1 n", ["scope.write"], "cart"),
    Row("nobody's", "lost", "HGETALL shop:v1:web:cart:c1", ["scope.read"], "cart"),
    Row(
        "a read-modify-write by a stranger",
        "lost",
        "GETDEL shop:v1:web:session:t",
        ["scope.read", "scope.write"],
        "session",
    ),
    Row(
        "an entry's rights replace the scope's", "audit", "GET shop:v1:stock:level:a", ["scope.read"], "level"
    ),
    Row(
        "a denial wins over the scope's own right", "web", "SET shop:v1:stock:s:a 1", ["scope.write"], "short"
    ),
    Row("but takes no reading away", "web", "GET shop:v1:stock:s:a", []),
    Row(
        "a malformed key has its entry's rights",
        "audit",
        "GET shop:v1:stock:level:A",
        ["scope.read", "key.format"],
        "level",
    ),
    Row(
        "an unregistered key has its scope's",
        "lost",
        "GET shop:v1:web:other",
        ["scope.read", "key.unregistered"],
        "web",
    ),
    Row("an open scope has rights too", "audit", "GET shop:v1:scratch:x", ["scope.read"], "scratch"),
    Row("in no scope, rights aren't asked", "lost", "SET shop:v1:nowhere:x 1", ["key.format"], "claim"),
    Row("an unidentified client", "unknown", "HGETALL shop:v1:web:cart:c1", ["scope.read"], "cart"),
    # -- existence only
    Row("existence, by a reader", "audit", "EXISTS shop:v1:web:cart:c1", []),
    Row("existence, by nobody", "lost", "EXISTS shop:v1:web:cart:c1", ["scope.read"], "cart"),
    Row("existence needs no grammar's mercy", "web", "TYPE shop:v1:web:cart:c1:x", ["key.format"], "cart"),
    # -- consumer groups
    Row("a consumer reads", "audit", "XREAD STREAMS shop:v1:stock:log 0", []),
    Row("and keeps its group's books", "audit", "XACK shop:v1:stock:log g 1-1", []),
    Row("also where it makes the stream", "audit", "XGROUP CREATE shop:v1:stock:log g $ MKSTREAM", []),
    Row("but adds nothing", "audit", "XADD shop:v1:stock:log MAXLEN 5 * a b", ["scope.write"], "log"),
    Row("a stranger keeps no books", "web", "XACK shop:v1:stock:log g 1-1", ["scope.write"], "log"),
    Row(
        "nor reads by a group",
        "lost",
        "XREADGROUP GROUP g c STREAMS shop:v1:stock:log >",
        ["scope.read", "scope.write"],
        "log",
    ),
    # -- legacy
    Row("legacy, read by a reader", "audit", "HGETALL cart:c1", []),
    Row("legacy, deleted by a writer", "web", "DEL cart:c1", []),
    Row("legacy, deleted by a reader", "audit", "DEL cart:c1", ["key.legacy"], "cart"),
    Row("legacy, written by a writer", "web", "HSET cart:c1 n 1", ["key.legacy"], "cart"),
    Row("legacy, read by another", "lost", "HGETALL cart:c1", ["key.legacy"], "cart"),
    Row(
        "legacy, one answer though read and write are missing",
        "lost",
        "GETDEL sess:t",
        ["key.legacy"],
        "session",
    ),
    Row("legacy, its existence, by another", "lost", "EXISTS cart:c1", ["key.legacy"], "cart"),
    Row("legacy, renamed to the standard key by a writer", "web", "RENAME cart:c1 shop:v1:web:cart:c1", []),
    Row("legacy, of another form", "web", "GET cart:c1:x", ["key.unregistered"]),
    Row("legacy asks nothing of the value", "web", "GET cart:c1", []),
    # -- rules for every key
    Row("too long a key", "web", f"SET shop:v1:scratch:{'x' * 30} 1", ["key.length"], "scratch"),
    Row("an entry's own limit", "stock", "SET shop:v1:stock:s:abcde 1", ["key.length"], "short"),
    Row("a byte that isn't admitted", "web", "SET shop:v1:scratch:a_b 1", ["key.charset"], "scratch"),
    Row("both", "web", f"SET shop:v1:scratch:{'_' * 30} 1", ["key.length", "key.charset"], "scratch"),
    Row("not for keys that are nobody's", "web", f"GET {'_' * 50}", ["key.unregistered"]),
    Row("not for legacy keys", "web", "GET cart:c1", []),
    # -- content
    Row("another type", "web", "SADD shop:v1:web:cart:c1 a", ["type.mismatch"], "cart"),
    Row("any type fits DEL", "web", "DEL shop:v1:web:cart:c1", []),
    Row(
        "of another type, content isn't asked",
        "web",
        "SET shop:v1:web:cart:c1 x",
        ["type.mismatch", "ttl.required"],
        "cart",
    ),
    Row("a field that isn't listed", "web", "HSET shop:v1:web:cart:c1 m 1", ["field.unknown"], "cart"),
    Row("a field's value", "web", "HSET shop:v1:web:cart:c1 n x", ["value.invalid"], "cart"),
    Row(
        "each field has its answer",
        "web",
        "HSET shop:v1:web:cart:c1 n x m 1 note ''",
        ["value.invalid", "field.unknown"],
        "cart",
    ),
    Row("a value", "web", "SET shop:v1:web:cart:total none", ["value.invalid"], "cart-total"),
    Row("a value that a command doesn't show", "web", "APPEND shop:v1:web:cart:total none", []),
    Row(
        "a time to live that must not be",
        "web",
        "SET shop:v1:web:cart:total 5 EX 10",
        ["ttl.forbidden"],
        "cart-total",
    ),
    Row("nor come later", "web", "EXPIRE shop:v1:web:cart:total 10", ["ttl.forbidden"], "cart-total"),
    Row(
        "none where it must come with the write",
        "web",
        "SET shop:v1:web:session:t x",
        ["ttl.required"],
        "session",
    ),
    Row("nor be taken away", "web", "PERSIST shop:v1:web:session:t", ["ttl.required"], "session"),
    Row(
        "a write that can't bring it and may create",
        "web",
        "APPEND shop:v1:web:session:t x",
        ["ttl.required"],
        "session",
    ),
    Row("where a refresh will do, the write alone is no fault", "web", "HSET shop:v1:web:cart:c1 n 1", []),
    Row("too short", "web", "SET shop:v1:web:session:t x EX 5", ["ttl.range"], "session"),
    Row("too long", "web", "SET shop:v1:web:session:t x PX 3600001", ["ttl.range"], "session"),
    Row("just right", "web", "SET shop:v1:web:session:t x EX 3600", []),
    Row(
        "a time to live that is no number is Redis' to refuse",
        "web",
        "SET shop:v1:web:session:t x EX soon",
        [],
    ),
    Row("a long value", "stock", "SET shop:v1:stock:size:a 12345", ["value.size"], "sized"),
    Row("the rest of one", "stock", "APPEND shop:v1:stock:size:a 12345", ["value.size"], "sized"),
    Row("the end of one", "stock", "SETRANGE shop:v1:stock:size:a 3 12", ["value.size"], "sized"),
    Row("a bit behind its end", "stock", "SETBIT shop:v1:stock:size:a 32 1", ["value.size"], "sized"),
    Row("one that just fits", "stock", "SETBIT shop:v1:stock:size:a 31 1", []),
    Row("nothing where nothing is", "stock", "SETRANGE shop:v1:stock:size:a 30 ''", []),
    Row("a field's long value", "stock", "HSET shop:v1:stock:size:a f 1 g 12345", ["value.size"], "sized"),
    Row("a long element", "stock", "ZADD shop:v1:stock:size:a 1 12345", ["value.size"], "sized"),
    Row("many fields", "stock", "HSET shop:v1:stock:size:a f 1 g 2 h 3", ["key.members"], "sized"),
    Row("one field often", "stock", "HSET shop:v1:stock:size:a f 1 f 2 f 3", []),
    Row("many elements", "stock", "LPUSH shop:v1:stock:size:a 1 1 1", ["key.members"], "sized"),
    Row("one element often", "stock", "SADD shop:v1:stock:size:a 1 1 1", []),
    Row("many that needn't be new", "stock", "ZADD shop:v1:stock:size:a XX 1 a 1 b 1 c", []),
    Row(
        "long and many",
        "stock",
        "SADD shop:v1:stock:size:a 12345 2 3",
        ["value.size", "key.members"],
        "sized",
    ),
    Row("an untrimmed stream", "stock", "XADD shop:v1:stock:log * a b", ["stream.maxlen"], "log"),
    Row("trimmed too late", "stock", "XADD shop:v1:stock:log MAXLEN 101 * a b", ["stream.maxlen"], "log"),
    Row(
        "about trimmed where it must be exact",
        "stock",
        "XADD shop:v1:stock:log MAXLEN ~ 100 * a b",
        ["stream.maxlen"],
        "log",
    ),
    Row("trimmed", "stock", "XADD shop:v1:stock:log MAXLEN 100 * a b", []),
    # -- the order: the command, the database, rights, form, rules for every key, content
    Row(
        "rights before form before length",
        "lost",
        f"SET shop:v1:web:cart:{'x' * 30} 1",
        ["scope.write", "key.format", "key.length"],
        "cart",
    ),
    Row(
        "a malformed key's content isn't asked", "web", "SADD shop:v1:web:cart:c1:x a", ["key.format"], "cart"
    ),
    Row(
        "every key has its answer",
        "web",
        "MSET shop:v1:web:cart:total x other:k 1 shop:v1:nowhere:x 1",
        ["value.invalid", "key.unregistered", "key.format"],
        "cart-total",
    ),
    Row(
        "the source and the destination",
        "lost",
        "COPY shop:v1:web:cart:c1 shop:v1:web:session:t",
        ["scope.read", "scope.write", "type.mismatch"],
        "cart",
    ),
    Row(
        "content that may be of another type",
        "web",
        "RENAME shop:v1:scratch:x shop:v1:web:session:t",
        ["scope.read", "type.mismatch"],
        "scratch",
    ),
    Row("and of no other", "web", "RENAME shop:v1:web:cart:c1 shop:v1:web:cart:c2", []),
    # -- the command itself
    Row("an administrative command", "web", "CONFIG GET maxmemory", ["command.forbidden"]),
    Row("a dangerous one without keys", "web", "KEYS shop:v1:web:*", ["command.forbidden"]),
    Row("and its pattern", "web", "KEYS *", ["command.forbidden", "scan.scope"]),
    Row("one that the policy forbids", "stock", "SORT shop:v1:stock:level:a", ["command.forbidden"]),
    Row("one that it allows", "web", "DBSIZE", []),
    Row("one that no server has", "web", "FROBNICATE shop:v1:web:cart:c1", ["command.unknown"]),
    Row("another database", "web", "SELECT 1", ["database.forbidden"]),
    Row("the policy's own", "web", "SELECT 0", []),
    Row("keys in another database", "web", "MOVE shop:v1:web:cart:c1 2", ["database.forbidden"]),
    Row("a scan of one's own", "web", "SCAN 0 MATCH shop:v1:web:*", []),
    Row("a scan of an entry's keys, the malformed among them", "web", "SCAN 0 MATCH shop:v1:web:cart:*", []),
    Row("a scan beyond", "audit", "SCAN 0 MATCH shop:v1:*", ["scan.scope"]),
    Row("a scan of everything", "web", "SCAN 0", ["scan.scope"]),
    # -- grants
    Row("a granted command on granted keys", "ops", "DEL shop:v1:web:cart:c1", []),
    Row("whatever their form", "ops", "DEL shop:v1:web:cart:c1:x", []),
    Row("a granted command on other keys", "ops", "DEL shop:v1:stock:level:a", ["scope.write"], "level"),
    Row("another command on granted keys", "ops", "HSET shop:v1:web:cart:c1 n 1", ["scope.write"], "cart"),
    Row("granted legacy keys", "ops", "DEL c1", []),
    Row("a granted command on keys that are nobody's", "ops", "DEL other:k", ["key.unregistered"]),
    Row("a granted category", "ops", "CONFIG GET maxmemory", []),
    Row("is nobody else's", "web", "CONFIG GET maxmemory", ["command.forbidden"]),
    Row("a granted scan", "ops", "SCAN 0 MATCH shop:v1:web:*", []),
    Row("a granted scan beyond", "ops", "SCAN 0 MATCH shop:v1:*", ["scan.scope"]),
]


@pytest.fixture(scope="module")
def shop() -> CompiledPolicy:
    return parse_policy(POLICY)


def asked(policy: CompiledPolicy, service: str, command: str) -> dict[str, Any]:
    return explain(policy, service, [word.encode() for word in shlex.split(command)])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_which_rule_fires(row: Row, shop: CompiledPolicy) -> None:
    told = asked(shop, row.service, row.command)
    assert [one["rule"] for one in told["violations"]] == row.rules, told["violations"]
    assert told["verdict"] == ("violation" if row.rules else "allow")
    if row.rules:
        assert told["rule"] == row.rules[0]
        assert told["entry"] == row.entry


# The rules that no row breaks, each with the test that does.
ELSEWHERE = {
    "internal.error": "tests/policy/engine/test_evaluator.py",
    "session.opaque": "tests/session/test_opaque.py",
    "channel.read": "tests/policy/engine/test_channels_and_scripts.py",
    "channel.write": "tests/policy/engine/test_channels_and_scripts.py",
    "script.keys": "tests/policy/engine/test_channels_and_scripts.py",
    "script.unregistered": "tests/policy/engine/test_channels_and_scripts.py",
    "key.hash_tag": "tests/policy/compiled/test_names.py",
    "slot.cross": "tests/policy/engine/test_channels_and_scripts.py",
}


def test_every_rule_is_broken_by_a_row_or_by_another_test() -> None:
    broken = {rule for row in TABLE for rule in row.rules}
    assert RULES.keys() - broken == ELSEWHERE.keys()
    for rule, file in ELSEWHERE.items():
        assert rule in (POLICIES.parent / file).read_text(), rule


# -- severity


def test_a_should_is_told_as_one(shop: CompiledPolicy) -> None:
    told = asked(shop, "web", "HSET shop:v1:web:cart:c1 m 1 n x")
    assert {one["rule"]: one["severity"] for one in told["violations"]} == {
        "field.unknown": "should",
        "value.invalid": "must",
    }


# -- positions: the argument at fault


@pytest.mark.parametrize(
    ("command", "positions"),
    [
        ("GET other:k", [1]),
        ("MSET other:k 1 other:l 2", [1, 3]),
        ("HSET shop:v1:web:cart:c1 note x n x m 1", [5, 6]),
        ("SET shop:v1:web:cart:total x", [2]),
        ("SET shop:v1:web:session:t x EX 5", [4]),
        ("SET shop:v1:web:session:t x", [1]),
        ("SCAN 0 COUNT 5 MATCH *", [5]),
        ("KEYS *", [0, 1]),
        ("SELECT 1", [1]),
        ("COPY shop:v1:web:cart:c1 shop:v1:web:cart:c2 DB 3", [4]),
    ],
)
def test_a_violation_names_the_argument(command: str, positions: list[int], shop: CompiledPolicy) -> None:
    assert [one["position"] for one in asked(shop, "web", command)["violations"]] == positions


# -- hints: what to do about it

HINTS = {
    ("web", "GET other:k"): "every key begins with shop:",
    ("web", "GET shop:v2:x"): "a key begins with one of shop:v1:scratch:…, shop:v1:stock:…, shop:v1:web:…",
    ("web", "GET shop:v1:web:other"): "register the key in the policy first",
    ("web", "HGETALL shop:v1:web:cart:c1:x"): "for example shop:v1:web:cart:x1",
    ("web", "HGETALL shop:v1:web:cart:"): "the part after the prefix is missing",
    ("lost", "HGETALL shop:v1:web:cart:c1"): "its readers: web, audit",
    ("audit", "SET shop:v1:scratch:x 1"): "its writers: web, stock",
    ("web", "XACK shop:v1:stock:log g 1-1"): "its consumers: stock, audit",
    ("web", "HSET cart:c1 n 1"): "use shop:v1:web:cart:c1",
    ("lost", "DEL c1"): "use shop:v1:stock:level:c1",
    ("web", "HSET shop:v1:web:cart:c1 m 1"): "its fields: n, note",
    ("web", "SET shop:v1:web:session:t x"): "SET it with EX 3600",
    ("web", "PERSIST shop:v1:web:session:t"): "1h, for example",
    ("web", "SET shop:v1:web:session:t x EX 5"): "at least 10s",
    ("web", "SET shop:v1:web:session:t x EX 9999"): "at most 1h",
    ("stock", "XADD shop:v1:stock:log * a b"): "use MAXLEN 100",
    ("stock", "SET shop:v1:stock:s:abcde 1"): "at most 20 bytes",
    ("web", "CONFIG GET x"): "the policy can grant it to a service",
    ("web", "SELECT 1"): "the policy speaks for database 0",
    ("audit", "SCAN 0 MATCH shop:v1:w*"): "SCAN 0 MATCH shop:v1:web:* would pass",
}


@pytest.mark.parametrize(("service", "command"), HINTS, ids=str)
def test_a_hint_says_what_to_do(service: str, command: str, shop: CompiledPolicy) -> None:
    assert asked(shop, service, command)["hint"] == HINTS[service, command]


def test_hints_name_no_services_where_that_is_not_wanted(tmp_path: Any) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(POLICY)
    quiet = load_policy(file, name_services=False)
    for service, command in (
        ("lost", "GET shop:v1:scratch:x"),
        ("audit", "XADD shop:v1:stock:log MAXLEN 1 * a b"),
    ):
        told = asked(quiet, service, command)
        assert told["hint"] == "ask for the right"
        assert not {"web", "stock"} & set(str(told["violations"]).replace("'", " ").split())


# -- what a secret placeholder holds is in no text

SECRET = "Hunter2Hunter2"
SECRET_COMMANDS = [
    f"GET shop:v1:web:session:{SECRET}",
    f"GET shop:v1:web:session:{SECRET}:x",
    f"GET shop:v1:web:session:{SECRET}{SECRET}",
    f"GET shop:v1:web:session:{SECRET}\\n",
    f"SET shop:v1:web:session:{SECRET} x EX 99999",
    f"HSET shop:v1:web:session:{SECRET} a b",
    f"SADD shop:v1:web:session:{SECRET}_ a",
    f"SET sess:{SECRET} x",
    f"SET sess:{SECRET}:x x",
    f"GET sess:{SECRET}{SECRET}",
    f"MSET other:k 1 shop:v1:web:session:{SECRET} 1",
    f"XACK shop:v1:web:session:{SECRET} g 1-1",
]


@pytest.mark.parametrize("service", ["web", "lost", "ops", "unknown"])
@pytest.mark.parametrize("command", SECRET_COMMANDS)
def test_a_secret_is_in_no_text(service: str, command: str, shop: CompiledPolicy) -> None:
    assert SECRET not in str(asked(shop, service, command))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("GET shop:v1:web:session:abc", "shop:v1:web:session:<token>"),
        ("GET shop:v1:web:session:abc:x", "shop:v1:web:session:<masked>"),
        ("SET sess:abc x", "sess:<token>"),
    ],
)
def test_what_is_masked_still_says_what_it_is(command: str, shown: str, shop: CompiledPolicy) -> None:
    told = asked(shop, "lost", command)
    assert told["accesses"][0]["key"] == shown
    assert shown in told["message"]


def test_a_legacy_key_s_hint_shows_the_form_in_place_of_a_secret(shop: CompiledPolicy) -> None:
    assert asked(shop, "web", "SET sess:abc x")["hint"] == "use shop:v1:web:session:<token>"


def test_two_entries_of_one_beginning_are_both_masked() -> None:
    policy = parse_policy("""
policy: p
claims: ["p:"]
services: [a]
placeholders: {id: "[0-9]{1,4}", token: {is: "[A-Za-z]{1,9}", secret: true}}
scopes: {s: {prefix: "p:", writers: [a]}}
keys: {open: {key: "p:x:<id>:y"}, secret: {key: "p:x:<token>"}}
""")
    told = asked(policy, "a", "GET p:x:HunterTwo:z")
    assert told["rule"] == "key.format"
    assert "HunterTwo" not in str(told)


# -- the shipped convention, in its own words


@pytest.mark.parametrize(
    ("service", "command", "rules"),
    [
        ("CubeMaster", "SET 7c8fbcd45ffe450fb8f7fb223ad45507 x", ["key.legacy"]),
        ("CubeMaster", "SET acme:x 1", ["key.unregistered"]),
        ("CubeMaster", "GET cube:v2:master:node:metric:n1", ["key.format"]),
        ("CubeMaster", "GET cube:v1:agent:x", ["key.format"]),
        ("CubeMaster", "GET cube:v1:master:quota:n1", ["key.unregistered"]),
        (
            "CubeProxy",
            "HSET cube:v1:shared:sandbox:proxy:s1:x HostIP 10.0.0.1",
            ["scope.write", "key.format"],
        ),
        ("CubeProxy", "SET cube:v1:shared:x 1", ["scope.write", "key.unregistered"]),
        ("CubeMaster", "SET cube:v1:master:lock:a:b x", ["ttl.required"]),
        ("CubeAPI", "SET cube:v1:master:lock:a:b x EX 5", ["scope.write"]),
        ("ops", "SCAN 0 MATCH cube:*", []),
    ],
)
def test_which_rule_fires_in_cubesandbox(service: str, command: str, rules: list[str]) -> None:
    told = asked(_cubesandbox(), service, command)
    assert [one["rule"] for one in told["violations"]] == rules


_loaded: list[CompiledPolicy] = []


def _cubesandbox() -> CompiledPolicy:
    if not _loaded:
        _loaded.append(load_policy(POLICIES / "cubesandbox.yaml"))
    return _loaded[0]


# -- docs/policy.md

DOCUMENT = (POLICIES.parent / "docs" / "policy.md").read_text()
BLOCKS = [block.split("```")[0] for block in DOCUMENT.split("```yaml\n")[1:]]
EXAMPLE = BLOCKS[0]
DOCUMENTED = re.findall(r"^\| ([^|]+) \| (\w+) \| `([^`]+)` \| ([^|]+) \|$", DOCUMENT, re.MULTILINE)


@pytest.fixture(scope="module")
def example() -> CompiledPolicy:
    return parse_policy(EXAMPLE)


def test_the_document_s_example_is_a_policy_without_faults(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(EXAMPLE)
    errors, warnings, _ = check_policy(file)
    assert (errors, warnings) == ([], [])


@pytest.mark.parametrize(
    ("about", "service", "command", "rules"), DOCUMENTED, ids=[row[0] for row in DOCUMENTED]
)
def test_the_document_s_table_holds(
    about: str, service: str, command: str, rules: str, example: CompiledPolicy
) -> None:
    told = asked(example, service, command)
    broken = [one["rule"] for one in told["violations"]]
    assert broken == ([] if rules == "–" else rules.split(", ")), about


def test_the_document_s_table_is_found() -> None:
    assert len(DOCUMENTED) > 40


def test_the_document_lists_every_rule_as_the_table_has_it() -> None:
    rows = [
        f"| `{rule.name}` | {rule.stage}{', late' if rule.late else ''} | {rule.meaning} | {rule.decided_by} "
        f"| {rule.remedy} |"
        for rule in RULES.values()
    ]
    assert re.findall(r"^\| `\w+\.\w+` \| .*$", DOCUMENT, re.MULTILINE) == rows


def test_the_table_of_rules_is_in_the_order_of_the_stages() -> None:
    stages = [rule.stage for rule in RULES.values()]
    assert tuple(dict.fromkeys(stages)) == STAGES
    assert stages == sorted(stages, key=STAGES.index)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_the_violations_of_a_key_are_in_the_order_of_the_stages(row: Row, shop: CompiledPolicy) -> None:
    found: dict[int, list[int]] = {}  # the stages of the violations at each argument
    for one in asked(shop, row.service, row.command)["violations"]:
        found.setdefault(one["position"], []).append(STAGES.index(RULES[one["rule"]].stage))
    assert all(stages == sorted(stages) for stages in found.values())


def test_the_document_s_configuration_and_waivers_load(tmp_path: Path) -> None:
    config, waivers = BLOCKS[-2:]
    for name, text in (("shop.yaml", EXAMPLE), ("keyfence.yaml", config), ("waivers.yaml", waivers)):
        (tmp_path / name).write_text(text)
    settings = load_settings(str(tmp_path / "keyfence.yaml"), Overrides())
    settings.check_against(load_policy(settings.policy).services)
    assert settings.waived()


HEAD = (
    "policy: p\nservices: [web, audit, cosky-app, cosky-rest, billing, search]\n"
    "placeholders: {id|configId: '[a-z]+'}\n"
)
CART = 'keys: {cart: {key: "shop:cart:<id>", writers: web, readers: audit}}\n'
SCOPE = 'scopes: {shop: {prefix: "shop:", writers: web}}\n'
SCRIPTS = (
    f"scripts: {{config_set: {{keys: 1, sha1: '{1:040}'}}, config_remove: {{keys: 1, sha1: '{2:040}'}}}}\n"
)
# By their first word, what stands around the document's parts of a policy.
AROUND = {
    "policy": "",
    "names": HEAD + CART,
    "legacy": HEAD
    + CART.replace("}}\n", '}, staged-cart: {key: "<stage>:cart:<id>", writers: web}}\n')
    + "bind: {stage: {web: stg, audit: dev}}\n",
    "bind": HEAD + SCRIPTS,
    "keys": HEAD + SCOPE,
    "scripts": HEAD + SCOPE,
    "writers": HEAD,
    "placeholders": "policy: p\nservices: [web, audit]\n",
    "unregistered_scripts": EXAMPLE,
}


@pytest.mark.parametrize("block", BLOCKS[1:-2], ids=lambda block: block.partition(":")[0])
def test_every_part_of_a_policy_in_the_document_loads(block: str) -> None:
    parse_policy(AROUND[block.partition(":")[0]] + block)


def test_the_policy_in_the_readme_loads() -> None:
    readme = (POLICIES.parent / "README.md").read_text()
    found = [block.split("```")[0] for block in readme.split("```yaml\n")[1:]]
    policies = [block for block in found if block.startswith("policy: cubesandbox")]
    assert [parse_policy(block).name for block in policies] == ["cubesandbox"]
