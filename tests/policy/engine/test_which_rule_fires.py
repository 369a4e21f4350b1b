"""Which rules each command breaks, and the examples of docs/policy.md.

Rule: every rule is broken by a row of `TABLE` or by a test that `ELSEWHERE` names.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.remedies.explain import explain
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
    """A command: `rules` are all violations in order, `entry` is the first violation's."""

    about: str
    service: str
    command: str
    rules: list[str]
    entry: str | None = None


TABLE = [
    # -- registered, unregistered and malformed keys
    Row("the key of an entry", "web", "HGETALL shop:v1:web:cart:c1", []),
    Row("a key outside every entry and claim", "web", "GET other:k", ["key.unregistered"]),
    Row("a bare key without a legacy form", "web", "GET LONGNAME", ["key.unregistered"]),
    Row("a bare key of a legacy form", "stock", "SET c1 x", ["key.legacy"], "level"),
    Row("an empty key", "web", "GET ''", ["key.unregistered"]),
    Row("in a claim, in no scope", "web", "GET shop:v1:nowhere:x", ["key.format"], "claim"),
    Row("an unknown version", "web", "GET shop:v2:web:cart:c1", ["key.format"], "claim"),
    Row("only the claim", "web", "GET shop:", ["key.format"], "claim"),
    Row("in a scope, without an entry", "web", "GET shop:v1:web:other:x", ["key.unregistered"], "web"),
    Row("only the prefix of a scope", "web", "GET shop:v1:web:", ["key.unregistered"], "web"),
    Row("in an open scope", "web", "SET shop:v1:scratch:x 1", []),
    Row("malformed after an entry's prefix", "web", "HGETALL shop:v1:web:cart:c1:x", ["key.format"], "cart"),
    Row("an id that is too long", "web", "HGETALL shop:v1:web:cart:c12345678", ["key.format"], "cart"),
    Row("a missing id", "web", "HGETALL shop:v1:web:cart:", ["key.format"], "cart"),
    Row("a missing id and colon", "web", "HGETALL shop:v1:web:cart", ["key.format"], "cart"),
    Row("an empty segment", "stock", "GET shop:v1:stock:level:a::b", ["key.format"], "level"),
    Row("several segments where admitted", "stock", "SET shop:v1:stock:level:a:b:c 1", []),
    Row(
        "no segment where several are admitted", "stock", "GET shop:v1:stock:level:", ["key.format"], "level"
    ),
    Row("a literal wins over a placeholder", "web", "SET shop:v1:web:cart:total 5", []),
    Row(
        "the literal entry's requirements apply",
        "web",
        "HSET shop:v1:web:cart:total n 5",
        ["type.mismatch"],
        "cart-total",
    ),
    # -- rights
    Row("a writer reads", "web", "GET shop:v1:web:session:t", []),
    Row("a reader of the scope reads an entry without rights", "audit", "HGETALL shop:v1:web:cart:c1", []),
    Row("a reader writes", "audit", "HDEL shop:v1:web:cart:c1 n", ["scope.write"], "cart"),
    Row("a stranger reads", "lost", "HGETALL shop:v1:web:cart:c1", ["scope.read"], "cart"),
    Row(
        "a stranger reads and writes",
        "lost",
        "GETDEL shop:v1:web:session:t",
        ["scope.read", "scope.write"],
        "session",
    ),
    Row(
        "an entry's rights replace the scope's", "audit", "GET shop:v1:stock:level:a", ["scope.read"], "level"
    ),
    Row("a denial overrides the scope's right", "web", "SET shop:v1:stock:s:a 1", ["scope.write"], "short"),
    Row("a denial of writing permits reading", "web", "GET shop:v1:stock:s:a", []),
    Row(
        "a malformed key has its entry's rights",
        "audit",
        "GET shop:v1:stock:level:A",
        ["scope.read", "key.format"],
        "level",
    ),
    Row(
        "an unregistered key has its scope's rights",
        "lost",
        "GET shop:v1:web:other",
        ["scope.read", "key.unregistered"],
        "web",
    ),
    Row("an open scope has rights", "audit", "GET shop:v1:scratch:x", ["scope.read"], "scratch"),
    Row("no rights apply outside scopes", "lost", "SET shop:v1:nowhere:x 1", ["key.format"], "claim"),
    Row("an unidentified client", "unknown", "HGETALL shop:v1:web:cart:c1", ["scope.read"], "cart"),
    # -- existence only
    Row("a reader checks existence", "audit", "EXISTS shop:v1:web:cart:c1", []),
    Row("a stranger checks existence", "lost", "EXISTS shop:v1:web:cart:c1", ["scope.read"], "cart"),
    Row("existence of a malformed key", "web", "TYPE shop:v1:web:cart:c1:x", ["key.format"], "cart"),
    # -- consumer groups
    Row("a consumer reads a stream", "audit", "XREAD STREAMS shop:v1:stock:log 0", []),
    Row("a consumer changes the state of its group", "audit", "XACK shop:v1:stock:log g 1-1", []),
    Row("a consumer creates group and stream", "audit", "XGROUP CREATE shop:v1:stock:log g $ MKSTREAM", []),
    Row("a consumer may not add", "audit", "XADD shop:v1:stock:log MAXLEN 5 * a b", ["scope.write"], "log"),
    Row("a stranger may not change a group", "web", "XACK shop:v1:stock:log g 1-1", ["scope.write"], "log"),
    Row(
        "a stranger may not read by a group",
        "lost",
        "XREADGROUP GROUP g c STREAMS shop:v1:stock:log >",
        ["scope.read", "scope.write"],
        "log",
    ),
    # -- legacy
    Row("a reader reads a legacy key", "audit", "HGETALL cart:c1", []),
    Row("a writer deletes a legacy key", "web", "DEL cart:c1", []),
    Row("a reader deletes a legacy key", "audit", "DEL cart:c1", ["key.legacy"], "cart"),
    Row("a writer writes a legacy key", "web", "HSET cart:c1 n 1", ["key.legacy"], "cart"),
    Row("a stranger reads a legacy key", "lost", "HGETALL cart:c1", ["key.legacy"], "cart"),
    Row("a stranger reads and writes a legacy key", "lost", "GETDEL sess:t", ["key.legacy"], "session"),
    Row("a legacy key's existence, by a stranger", "lost", "EXISTS cart:c1", ["key.legacy"], "cart"),
    Row("a writer renames a legacy key to the standard key", "web", "RENAME cart:c1 shop:v1:web:cart:c1", []),
    Row("a legacy key with a further segment", "web", "GET cart:c1:x", ["key.unregistered"]),
    Row("legacy keys have no requirements on content", "web", "GET cart:c1", []),
    # -- rules for every key
    Row("a key that is too long", "web", f"SET shop:v1:scratch:{'x' * 30} 1", ["key.length"], "scratch"),
    Row("the length limit of an entry", "stock", "SET shop:v1:stock:s:abcde 1", ["key.length"], "short"),
    Row("a byte outside the charset", "web", "SET shop:v1:scratch:a_b 1", ["key.charset"], "scratch"),
    Row(
        "both length and charset",
        "web",
        f"SET shop:v1:scratch:{'_' * 30} 1",
        ["key.length", "key.charset"],
        "scratch",
    ),
    Row("no naming rules for unclaimed keys", "web", f"GET {'_' * 50}", ["key.unregistered"]),
    Row("no naming rules for legacy keys", "web", "GET cart:c1", []),
    # -- content
    Row("another type", "web", "SADD shop:v1:web:cart:c1 a", ["type.mismatch"], "cart"),
    Row("any type fits DEL", "web", "DEL shop:v1:web:cart:c1", []),
    Row(
        "content is not checked after a type mismatch",
        "web",
        "SET shop:v1:web:cart:c1 x",
        ["type.mismatch", "ttl.required"],
        "cart",
    ),
    Row("a field that is not listed", "web", "HSET shop:v1:web:cart:c1 m 1", ["field.unknown"], "cart"),
    Row("a wrong value of a field", "web", "HSET shop:v1:web:cart:c1 n x", ["value.invalid"], "cart"),
    Row(
        "each field has its violation",
        "web",
        "HSET shop:v1:web:cart:c1 n x m 1 note ''",
        ["value.invalid", "field.unknown"],
        "cart",
    ),
    Row("a wrong value", "web", "SET shop:v1:web:cart:total none", ["value.invalid"], "cart-total"),
    Row("a value known only in part", "web", "APPEND shop:v1:web:cart:total none", []),
    Row(
        "a forbidden time to live",
        "web",
        "SET shop:v1:web:cart:total 5 EX 10",
        ["ttl.forbidden"],
        "cart-total",
    ),
    Row("a forbidden EXPIRE", "web", "EXPIRE shop:v1:web:cart:total 10", ["ttl.forbidden"], "cart-total"),
    Row(
        "a write without the required time to live",
        "web",
        "SET shop:v1:web:session:t x",
        ["ttl.required"],
        "session",
    ),
    Row("a forbidden PERSIST", "web", "PERSIST shop:v1:web:session:t", ["ttl.required"], "session"),
    Row(
        "a write without an option for it",
        "web",
        "APPEND shop:v1:web:session:t x",
        ["ttl.required"],
        "session",
    ),
    Row("a write is right if a refresh may follow", "web", "HSET shop:v1:web:cart:c1 n 1", []),
    Row("too short a time to live", "web", "SET shop:v1:web:session:t x EX 5", ["ttl.range"], "session"),
    Row("too long a time to live", "web", "SET shop:v1:web:session:t x PX 3600001", ["ttl.range"], "session"),
    Row("a time to live within the range", "web", "SET shop:v1:web:session:t x EX 3600", []),
    Row("an invalid time to live, left to Redis", "web", "SET shop:v1:web:session:t x EX soon", []),
    Row("a value that is too large", "stock", "SET shop:v1:stock:size:a 12345", ["value.size"], "sized"),
    Row("appending too much", "stock", "APPEND shop:v1:stock:size:a 12345", ["value.size"], "sized"),
    Row(
        "writing beyond the size limit",
        "stock",
        "SETRANGE shop:v1:stock:size:a 3 12",
        ["value.size"],
        "sized",
    ),
    Row("a bit beyond the size limit", "stock", "SETBIT shop:v1:stock:size:a 32 1", ["value.size"], "sized"),
    Row("setting the last bit within the size limit", "stock", "SETBIT shop:v1:stock:size:a 31 1", []),
    Row("writing an empty string beyond the size limit", "stock", "SETRANGE shop:v1:stock:size:a 30 ''", []),
    Row("too large a field value", "stock", "HSET shop:v1:stock:size:a f 1 g 12345", ["value.size"], "sized"),
    Row("too large an element", "stock", "ZADD shop:v1:stock:size:a 1 12345", ["value.size"], "sized"),
    Row("too many fields", "stock", "HSET shop:v1:stock:size:a f 1 g 2 h 3", ["key.members"], "sized"),
    Row("one field several times", "stock", "HSET shop:v1:stock:size:a f 1 f 2 f 3", []),
    Row("too many elements", "stock", "LPUSH shop:v1:stock:size:a 1 1 1", ["key.members"], "sized"),
    Row("one element of a set several times", "stock", "SADD shop:v1:stock:size:a 1 1 1", []),
    Row("an update of existing elements", "stock", "ZADD shop:v1:stock:size:a XX 1 a 1 b 1 c", []),
    Row(
        "too large and too many elements",
        "stock",
        "SADD shop:v1:stock:size:a 12345 2 3",
        ["value.size", "key.members"],
        "sized",
    ),
    Row("an untrimmed stream", "stock", "XADD shop:v1:stock:log * a b", ["stream.maxlen"], "log"),
    Row(
        "trimming to too many entries",
        "stock",
        "XADD shop:v1:stock:log MAXLEN 101 * a b",
        ["stream.maxlen"],
        "log",
    ),
    Row(
        "trimming only approximately",
        "stock",
        "XADD shop:v1:stock:log MAXLEN ~ 100 * a b",
        ["stream.maxlen"],
        "log",
    ),
    Row("a stream trimmed as required", "stock", "XADD shop:v1:stock:log MAXLEN 100 * a b", []),
    # -- the order: the command, the database, rights, form, rules for every key, content
    Row(
        "rights come before format and length",
        "lost",
        f"SET shop:v1:web:cart:{'x' * 30} 1",
        ["scope.write", "key.format", "key.length"],
        "cart",
    ),
    Row(
        "the content of a malformed key is not checked",
        "web",
        "SADD shop:v1:web:cart:c1:x a",
        ["key.format"],
        "cart",
    ),
    Row(
        "each key has its violation",
        "web",
        "MSET shop:v1:web:cart:total x other:k 1 shop:v1:nowhere:x 1",
        ["value.invalid", "key.unregistered", "key.format"],
        "cart-total",
    ),
    Row(
        "a copy with violations on source and destination",
        "lost",
        "COPY shop:v1:web:cart:c1 shop:v1:web:session:t",
        ["scope.read", "scope.write", "type.mismatch"],
        "cart",
    ),
    Row(
        "content that may have another type",
        "web",
        "RENAME shop:v1:scratch:x shop:v1:web:session:t",
        ["scope.read", "type.mismatch"],
        "scratch",
    ),
    Row("content of the same entry", "web", "RENAME shop:v1:web:cart:c1 shop:v1:web:cart:c2", []),
    # -- the command itself
    Row("an administrative command", "web", "CONFIG GET maxmemory", ["command.forbidden"]),
    Row("a dangerous command without keys", "web", "KEYS shop:v1:web:*", ["command.forbidden"]),
    Row("a dangerous command beyond its rights", "web", "KEYS *", ["command.forbidden", "scan.scope"]),
    Row("a command that the policy forbids", "stock", "SORT shop:v1:stock:level:a", ["command.forbidden"]),
    Row("a command that the policy allows", "web", "DBSIZE", []),
    Row("a command that does not exist", "web", "FROBNICATE shop:v1:web:cart:c1", ["command.unknown"]),
    Row("another database", "web", "SELECT 1", ["database.forbidden"]),
    Row("the policy's database", "web", "SELECT 0", []),
    Row("keys in another database", "web", "MOVE shop:v1:web:cart:c1 2", ["database.forbidden"]),
    Row("a scan of readable keys", "web", "SCAN 0 MATCH shop:v1:web:*", []),
    Row("a scan of an entry's prefix, malformed keys included", "web", "SCAN 0 MATCH shop:v1:web:cart:*", []),
    Row("a scan beyond the rights", "audit", "SCAN 0 MATCH shop:v1:*", ["scan.scope"]),
    Row("a scan of everything", "web", "SCAN 0", ["scan.scope"]),
    # -- grants
    Row("a granted command on granted keys", "ops", "DEL shop:v1:web:cart:c1", []),
    Row("a granted command on malformed keys", "ops", "DEL shop:v1:web:cart:c1:x", []),
    Row("a granted command on other keys", "ops", "DEL shop:v1:stock:level:a", ["scope.write"], "level"),
    Row("another command on granted keys", "ops", "HSET shop:v1:web:cart:c1 n 1", ["scope.write"], "cart"),
    Row("granted legacy keys", "ops", "DEL c1", []),
    Row("a granted command on keys outside the policy", "ops", "DEL other:k", ["key.unregistered"]),
    Row("a command of a granted category", "ops", "CONFIG GET maxmemory", []),
    Row("a category granted to another service", "web", "CONFIG GET maxmemory", ["command.forbidden"]),
    Row("a granted scan", "ops", "SCAN 0 MATCH shop:v1:web:*", []),
    Row("a scan beyond the grant", "ops", "SCAN 0 MATCH shop:v1:*", ["scan.scope"]),
]


@pytest.fixture(scope="module")
def shop() -> CompiledPolicy:
    return parse_policy(POLICY)


def explained(policy: CompiledPolicy, service: str, command: str) -> dict[str, Any]:
    return explain(policy, service, [word.encode() for word in shlex.split(command)])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_which_rule_fires(row: Row, shop: CompiledPolicy) -> None:
    result = explained(shop, row.service, row.command)
    assert [one["rule"] for one in result["violations"]] == row.rules, result["violations"]
    assert result["verdict"] == ("violation" if row.rules else "allow")
    if row.rules:
        assert result["rule"] == row.rules[0]
        assert result["entry"] == row.entry


# Rules that no row breaks, each with the file whose tests break it.
ELSEWHERE = {
    "internal.error": "tests/policy/engine/test_evaluator.py",
    "session.opaque": "tests/session/test_opaque.py",
    "redis.address": "tests/session/test_addresses.py",
    "channel.read": "tests/policy/engine/test_channels_and_scripts.py",
    "channel.write": "tests/policy/engine/test_channels_and_scripts.py",
    "script.keys": "tests/policy/engine/test_channels_and_scripts.py",
    "script.unregistered": "tests/policy/engine/test_channels_and_scripts.py",
    "key.hash_tag": "tests/policy/compiled/test_names.py",
    "slot.cross": "tests/policy/engine/test_channels_and_scripts.py",
}


def test_a_row_or_another_test_breaks_every_rule() -> None:
    broken = {rule for row in TABLE for rule in row.rules}
    assert RULES.keys() - broken == ELSEWHERE.keys()
    for rule, file in ELSEWHERE.items():
        assert rule in (POLICIES.parent / file).read_text(), rule


# -- severity


def test_a_violation_reports_its_severity(shop: CompiledPolicy) -> None:
    result = explained(shop, "web", "HSET shop:v1:web:cart:c1 m 1 n x")
    assert {one["rule"]: one["severity"] for one in result["violations"]} == {
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
    assert [one["position"] for one in explained(shop, "web", command)["violations"]] == positions


# -- hints

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
    ("web", "SELECT 1"): "the policy covers database 0",
    ("audit", "SCAN 0 MATCH shop:v1:w*"): "SCAN 0 MATCH shop:v1:web:* would pass",
}


@pytest.mark.parametrize(("service", "command"), HINTS, ids=str)
def test_a_hint_says_what_to_do(service: str, command: str, shop: CompiledPolicy) -> None:
    assert explained(shop, service, command)["hint"] == HINTS[service, command]


@pytest.mark.parametrize(
    ("command", "shown"), [("SELECT 99999", "99999"), ("SELECT 4111111111111111", "?")], ids=str
)
def test_a_number_that_can_be_no_database_is_not_shown(
    command: str, shown: str, shop: CompiledPolicy
) -> None:
    """It may be a value in the wrong place, and the decision log has this message."""
    (violation,) = explained(shop, "web", command)["violations"]
    assert violation["message"] == f"web may not SELECT database {shown}"


def test_hints_name_no_services_if_name_services_is_off(tmp_path: Any) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(POLICY)
    quiet = load_policy(file, name_services=False)
    for service, command in (
        ("lost", "GET shop:v1:scratch:x"),
        ("audit", "XADD shop:v1:stock:log MAXLEN 1 * a b"),
    ):
        result = explained(quiet, service, command)
        assert result["hint"] == "ask for the right"
        assert not {"web", "stock"} & set(str(result["violations"]).replace("'", " ").split())


# -- masked secrets

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
def test_no_text_shows_a_secret(service: str, command: str, shop: CompiledPolicy) -> None:
    assert SECRET not in str(explained(shop, service, command))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("GET shop:v1:web:session:abc", "shop:v1:web:session:<token>"),
        ("GET shop:v1:web:session:abc:x", "shop:v1:web:session:<masked>"),
        ("SET sess:abc x", "sess:<token>"),
    ],
)
def test_a_masked_key_shows_its_placeholder(command: str, shown: str, shop: CompiledPolicy) -> None:
    result = explained(shop, "lost", command)
    assert result["accesses"][0]["key"] == shown
    assert shown in result["message"]


def test_the_hint_for_a_legacy_key_masks_the_secret(shop: CompiledPolicy) -> None:
    assert explained(shop, "web", "SET sess:abc x")["hint"] == "use shop:v1:web:session:<token>"


def test_a_key_that_may_be_a_secret_of_another_entry_is_masked() -> None:
    policy = parse_policy("""
policy: p
claims: ["p:"]
services: [a]
placeholders: {id: "[0-9]{1,4}", token: {is: "[A-Za-z]{1,9}", secret: true}}
scopes: {s: {prefix: "p:", writers: [a]}}
keys: {open: {key: "p:x:<id>:y"}, secret: {key: "p:x:<token>"}}
""")
    result = explained(policy, "a", "GET p:x:HunterTwo:z")
    assert result["rule"] == "key.format"
    assert "HunterTwo" not in str(result)


# -- the shipped policy


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
    result = explained(_cubesandbox(), service, command)
    assert [one["rule"] for one in result["violations"]] == rules


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


def test_the_example_in_the_documentation_has_no_errors(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(EXAMPLE)
    errors, warnings, _ = check_policy(file)
    assert (errors, warnings) == ([], [])


@pytest.mark.parametrize(
    ("about", "service", "command", "rules"), DOCUMENTED, ids=[row[0] for row in DOCUMENTED]
)
def test_each_row_of_the_documentation_breaks_its_rules(
    about: str, service: str, command: str, rules: str, example: CompiledPolicy
) -> None:
    result = explained(example, service, command)
    broken = [one["rule"] for one in result["violations"]]
    assert broken == ([] if rules == "–" else rules.split(", ")), about


def test_the_documentation_has_the_table() -> None:
    assert len(DOCUMENTED) > 40


def test_the_documentation_lists_every_rule_as_the_code_does() -> None:
    rows = [
        f"| `{rule.name}` | {rule.stage}{', late' if rule.late else ''} | {rule.meaning} | {rule.decided_by} "
        f"| {rule.remedy} |"
        for rule in RULES.values()
    ]
    assert re.findall(r"^\| `\w+\.\w+` \| .*$", DOCUMENT, re.MULTILINE) == rows


def test_the_rules_are_in_the_order_of_the_stages() -> None:
    stages = [rule.stage for rule in RULES.values()]
    assert tuple(dict.fromkeys(stages)) == STAGES
    assert stages == sorted(stages, key=STAGES.index)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_the_violations_of_a_key_are_in_the_order_of_the_stages(row: Row, shop: CompiledPolicy) -> None:
    found: dict[int, list[int]] = {}  # the stages of the violations at each argument
    for one in explained(shop, row.service, row.command)["violations"]:
        found.setdefault(one["position"], []).append(STAGES.index(RULES[one["rule"]].stage))
    assert all(stages == sorted(stages) for stages in found.values())


def test_the_configuration_and_waivers_in_the_documentation_load(tmp_path: Path) -> None:
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
# The text that completes each partial policy of the documentation, by the way the partial policy begins. The
# first one that fits is taken.
AROUND = {
    "policy: hub": "services: [web]\n",
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
    "unregistered_scripts: {": "policy: p\nservices: [worker]\n",
    "unregistered_scripts": EXAMPLE,
}


@pytest.mark.parametrize("block", BLOCKS[1:-2], ids=lambda block: block.partition(":")[0])
def test_every_partial_policy_in_the_documentation_loads(block: str) -> None:
    around = next(text for begin, text in AROUND.items() if block.startswith(begin))
    parse_policy(around + block)
