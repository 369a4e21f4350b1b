"""Keys in no scope: rights at the policy's top, and keys without a prefix outside the claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy

SIDEKIQ = """policy: sidekiq
services: [app, web, audit]
writers: app
readers: [web, audit]
deny_read: audit
placeholders: {name: "[a-z]+"}
scopes: {cache: {prefix: "cache:", writers: web}}
keys:
  queues: {key: queues, type: set}
  retry: {key: retry, type: zset}
  queue: {key: "queue:<name>", type: list}
  limit: {key: "rl:<ip>", type: string, writers: [web, audit]}
  page: {key: "cache:<name>", type: string}
"""


def rules(policy: CompiledPolicy, service: str, command: str) -> list[str]:
    argv = [word.encode() for word in command.split()]
    return [one.rule for one in Evaluator(policy).decide(policy.number(service), argv).violations]


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("app", "SADD queues a", []),
        ("app", "LPUSH queue:low job", []),
        ("web", "SMEMBERS queues", []),
        ("web", "SADD queues a", ["scope.write"]),
        # Denials at the policy's top apply to all these entries, also to those that set their own rights.
        ("audit", "SMEMBERS queues", ["scope.read"]),
        ("audit", "GET rl:10.0.0.7", ["scope.read"]),
        ("audit", "SET rl:10.0.0.7 1", []),
        ("web", "SET rl:10.0.0.7 1", []),
        ("app", "GET rl:10.0.0.7", ["scope.read"]),
        ("web", "SET rl:10.0.0 1", ["key.format"]),
        # A scope's entries have the scope's rights.
        ("app", "GET cache:a", ["scope.read"]),
        ("web", "SET cache:a 1", []),
        ("app", "GET other", ["key.unregistered"]),
    ],
)
def test_entries_in_no_scope_have_the_rights_at_the_policy_s_top(
    service: str, command: str, broken: list[str]
) -> None:
    assert rules(parse_policy(SIDEKIQ), service, command) == broken


def test_a_key_without_a_prefix_needs_no_claim() -> None:
    policy = parse_policy(
        SIDEKIQ.replace('"queue:<name>"', '"sk:queue:<name>"').replace('"rl:<ip>"', '"sk:rl:<ip>"')
        + 'claims: ["sk:", "cache:"]\nnames: {levels: {min: 2}, hash_tag: optional, charset: "[a-z:]"}\n'
    )
    assert rules(policy, "app", "SADD queues a") == []
    assert rules(policy, "app", "LPUSH sk:queue:low a") == []
    assert rules(policy, "app", "SADD queuesx a") == ["key.unregistered"]


def test_a_declared_placeholder_overrides_a_built_in_class() -> None:
    text = "policy: p\nservices: [a]\nwriters: a\n{}keys: {{k: {{key: 'd:<date>'}}}}\n"
    built_in, own = (
        parse_policy(text.format("")),
        parse_policy(text.format("placeholders: {date: '[a-z]+'}\n")),
    )
    for policy, day in ((built_in, "20240229"), (own, "today")):
        assert rules(policy, "a", f"GET d:{day}") == []
    assert rules(built_in, "a", "GET d:20230229") == ["key.format"]
    assert rules(own, "a", "GET d:20240229") == ["key.format"]


TEAM = """policy: {name}
claims: ["{name}:"]
services: [{name}]
writers: {name}
keys: {{{key}: {{key: {key}}}, own: {{key: "{name}:x"}}}}
"""


def folder(path: Path, **files: str) -> CompiledPolicy:
    for name, text in files.items():
        (path / f"{name}.yaml").write_text(text)
    return load_policy(path)


def test_rights_at_the_top_apply_to_their_own_file_only(tmp_path: Path) -> None:
    policy = folder(
        tmp_path,
        jobs=TEAM.format(name="jobs", key="queues"),
        shop=TEAM.format(name="shop", key="carts"),
        rest="policy: rest\nservices: [ops]\nwriters: ops\nplaceholders: {w: '.*'}\nkeys: {k: {key: <w>}}\n",
    )
    assert rules(policy, "jobs", "GET queues") == []
    assert rules(policy, "jobs", "GET jobs:x") == []
    assert rules(policy, "shop", "GET queues") == ["scope.read"]
    assert rules(policy, "ops", "GET queues") == ["scope.read"]
    assert rules(policy, "ops", "GET other") == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("shopping", "jobs.yaml:5:24: error: 'shopping' is in the claim 'shop' of"),
        ("carts", "shop.yaml:5:21: error: 'carts' is also an entry's key in"),
    ],
)
def test_a_key_without_a_prefix_belongs_to_one_file(key: str, message: str, tmp_path: Path) -> None:
    shop = TEAM.format(name="shop", key="carts").replace('claims: ["shop:"]', 'claims: ["shop"]')
    with pytest.raises(FileError) as caught:
        folder(tmp_path, jobs=TEAM.format(name="jobs", key=key), shop=shop)
    assert len(caught.value.diagnostics) == 1
    assert message in str(caught.value)
