from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import yaml

from keyfence.commands.extract import extract
from keyfence.commands.model import MANY
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.command_evidence import ALWAYS, ANYTHING, Evidence, Right, evidence_of
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.rules import RULES
from keyfence.session.fastpath import PLAIN
from tests.servers import PROJECT

from .test_which_rule_fires import POLICY as SHOP
from .test_which_rule_fires import TABLE, Row

POLICY = """
policy: shop
claims: ["shop:"]
services: [orders, billing]
cluster: true
placeholders: {id: "[a-z0-9]+"}
unregistered_scripts: load_only
scopes: {shop: {prefix: "shop:", writers: [orders], readers: [billing]}}
keys:
  order: {key: "shop:order:<id>", type: hash, ttl: {max: 2h}, fields: {state: "[a-z]+"}}
  free: {key: "shop:{<id>}:free", hash_tag: required, max_value: 10b, type: string, ttl: none}
  log: {key: "shop:log:<id>", type: stream, maxlen: 100}
legacy:
  allow: [read]
  keys: {"old:<id>": order}
grants: {billing: {commands: [DEL], keys: ["shop:order:*"]}}
channels: {news: {channel: "shop:news", publishers: [orders], subscribers: [billing]}}
"""
# Commands that are asked for a rule of which TABLE has no row.
CLUSTERED = (
    "MGET shop:order:1 shop:order:2",
    "SUBSCRIBE shop:news",
    "PUBLISH shop:news x",
    "EVAL x 1 shop:order:1",
    "SET shop:{1}:free x",
)


@cache
def shop() -> CompiledPolicy:
    return parse_policy(SHOP)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> CompiledPolicy:
    path = tmp_path_factory.mktemp("policy") / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)


def evidence(policy: CompiledPolicy, command: str, service: str = "orders") -> Evidence:
    touches = extract([word.encode() for word in shlex.split(command)])
    return evidence_of(policy, policy.number(service), touches)


@pytest.mark.parametrize(
    ("command", "rules"),
    [
        ("PING", set()),
        ("GET shop:order:1", {"scope.read", "type.mismatch"}),
        ("HSET shop:order:1 state x", {"scope.write", "type.mismatch", "field.unknown", "value.invalid"}),
        ("SET shop:{1}:free x", {"scope.write", "ttl.forbidden", "value.size", "key.hash_tag"}),
        ("XADD shop:log:1 * a 1", {"scope.write", "stream.maxlen"}),
        ("MGET shop:order:1 shop:order:2", {"scope.read", "slot.cross"}),
        ("SCAN 0 MATCH shop:*", {"scan.scope"}),
        ("SUBSCRIBE shop:news", {"channel.read"}),
        ("PUBLISH shop:news x", {"channel.write"}),
        ("EVAL x 1 shop:order:1", {"script.keys", "script.unregistered"}),
        ("SELECT 1", {"database.forbidden"}),
        ("EXPIRE shop:order:1 60", {"ttl.required", "ttl.range"}),
    ],
)
def test_a_command_is_evidence_of_the_rules_that_it_is_asked(
    policy: CompiledPolicy, command: str, rules: set[str]
) -> None:
    found = set(evidence(policy, command).rules)
    assert set(ALWAYS) | rules <= found
    assert found <= RULES.keys()


@pytest.mark.parametrize(
    ("command", "rules"),
    [
        ("GET shop:order:1", {"scope.write", "ttl.required", "field.unknown", "slot.cross", "scan.scope"}),
        ("HSET shop:order:1 state x", {"scope.read", "stream.maxlen", "value.size"}),
        ("SET shop:{1}:free x", {"ttl.required", "ttl.range", "value.invalid"}),
        ("DEL shop:order:1", {"ttl.required", "value.invalid"}),
    ],
)
def test_a_command_is_no_evidence_of_other_rules(
    policy: CompiledPolicy, command: str, rules: set[str]
) -> None:
    assert not rules & set(evidence(policy, command).rules)


@pytest.mark.parametrize(
    ("command", "service", "rights"),
    [
        ("HGETALL shop:order:1", "orders", {Right("read", "order")}),
        ("HGETALL shop:order:1", "billing", {Right("read", "order")}),
        ("HSET shop:order:1 state x", "orders", {Right("write", "order")}),
        ("HSET shop:order:1 state x", "billing", set()),  # it has no such right
        ("DEL shop:order:1", "billing", {Right("grant", "0")}),
        ("HGETALL old:1", "billing", {Right("legacy", "old:<id>")}),
        ("GET shop:other", "orders", {Right("read", "shop")}),
        ("GET elsewhere", "orders", set()),
        ("RENAME shop:order:1 shop:log:1", "orders", {Right("write", "order"), Right("write", "log")}),
    ],
)
def test_a_command_uses_the_rights_that_its_service_holds(
    policy: CompiledPolicy, command: str, service: str, rights: set[Right]
) -> None:
    assert rights <= set(evidence(policy, command, service).rights)
    if not rights:
        assert evidence(policy, command, service).rights == ()


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.about)
def test_a_command_is_evidence_of_every_rule_that_it_breaks(row: Row) -> None:
    """A rule without evidence would never be ready, or be called ready by mistake."""
    asked = evidence(shop(), row.command, row.service).rules
    assert set(row.rules) <= set(asked)


def test_every_rule_has_evidence(policy: CompiledPolicy) -> None:
    asked = {rule for row in TABLE for rule in evidence(shop(), row.command, row.service).rules}
    asked |= {rule for command in CLUSTERED for rule in evidence(policy, command).rules}
    assert asked == RULES.keys()


def test_evidence_of_a_command_with_many_keys_looks_at_the_first_ones(policy: CompiledPolicy) -> None:
    keys = [b"shop:order:1"] * MANY + [b"shop:log:1"]
    found = evidence_of(policy, 0, extract([b"MGET", *keys]))
    assert found.rights == (Right("read", "order"),)
    assert found.parts == (ANYTHING,)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MGET", [b"shop:log:" + b"1" * 8_000] * 100 + [b"shop:order:1"]),
        ("PSUBSCRIBE", [b"news" + b"v" * 300] * 500 + [b"__keyspace@0__:shop:*"]),
        ("SUBSCRIBE", [b"news"] * MANY + [b"__keyspace@0__:shop:order:1"]),
    ],
)
def test_evidence_of_a_long_command_may_be_of_any_part_of_the_policy(
    name: str, words: list[bytes], policy: CompiledPolicy
) -> None:
    """It is drawn in one piece of work, so it looks at a bounded number of bytes."""
    assert ANYTHING in evidence_of(policy, 0, extract([name.encode(), *words])).parts
    assert ANYTHING not in evidence_of(policy, 0, extract([name.encode(), *words[-3:]])).parts


def cases(path: Path) -> list[tuple[str, list[bytes]]]:
    """(service, argv) of the single commands of a convention's tests."""
    found = []
    for case in yaml.safe_load(path.read_text())["tests"]:
        if "command" in case and "service" in case:
            words: Sequence[str] = case["command"]
            words = words if isinstance(words, list) else shlex.split(words)  # type: ignore[arg-type]
            found.append((case["service"], [str(word).encode("utf-8", "surrogateescape") for word in words]))
    return found


@pytest.mark.parametrize("name", ["card-relay", "container-registry", "cosky", "cubesandbox", "general"])
def test_the_cache_knows_the_evidence_that_the_command_itself_gives(name: str) -> None:
    policy = load_policy(PROJECT / "policies" / f"{name}.yaml")
    evaluator = Evaluator(policy, lambda: 0.0)
    caches = {
        service: DecisionCache(evaluator, number, PLAIN) for number, service in enumerate(policy.services)
    }
    known = 0
    for service, argv in cases(PROJECT / "policies" / f"{name}.test.yaml"):
        for _ in range(2):
            decision = caches[service].find(list(argv)).decision
        if decision is not None and decision.target is not None:
            found = evidence_of(policy, policy.number(service), extract(argv))
            # A form is of one key, so it knows the rules on several keys of none.
            assert set(decision.evidence.rules) >= set(found.rules) - {"slot.cross"}
            assert set(found.rights) >= set(decision.evidence.rights)
            known += 1
    assert known > (3 if policy.cluster else 20)
