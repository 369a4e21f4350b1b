"""Combinations of several parts of a policy.

Rule: together they allow neither more nor less than each part says.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Violation


def broken(policy: CompiledPolicy, service: str, command: str) -> tuple[Violation, ...]:
    return Evaluator(policy).decide(policy.number(service), command.encode().split()).violations


def rules(policy: CompiledPolicy, service: str, command: str) -> list[str]:
    return [one.rule for one in broken(policy, service, command)]


def teams(folder: Path, *files: str) -> CompiledPolicy:
    for number, text in enumerate(files):
        (folder / f"{number}.yaml").write_text(f"policy: p{number}\nservices: [x, y]\n{text}\n")
    return load_policy(folder)


@pytest.mark.parametrize("more", ["", ", ttl: {max: 1d}"])
def test_open_scopes_with_the_same_name_in_two_files_are_both_open(more: str, tmp_path: Path) -> None:
    policy = teams(
        tmp_path,
        f'claims: ["a:"]\nscopes: {{web: {{prefix: "a:", writers: x, unregistered: allow{more}}}}}',
        f'claims: ["b:"]\nscopes: {{web: {{prefix: "b:", writers: x, unregistered: allow{more}}}}}',
    )
    assert rules(policy, "x", "SET a:k 1 EX 9") == rules(policy, "x", "SET b:k 1 EX 9") == []


def test_an_open_scope_does_not_open_its_namesake_in_another_file(tmp_path: Path) -> None:
    policy = teams(
        tmp_path,
        'claims: ["a:"]\nscopes: {web: {prefix: "a:", writers: x, unregistered: allow}}',
        'claims: ["b:"]\nscopes: {web: {prefix: "b:", writers: x}}',
    )
    assert rules(policy, "x", "SET a:k 1") == []
    assert rules(policy, "x", "SET b:k 1") == ["key.unregistered"]


GRANT = "grants: {y: {commands: [DEL], keys: ['*'], owner: o, reason: r, until: 2099-01-01}}"
TWO_CLAIMS = (
    'claims: ["a:"]\nscopes: {a: {prefix: "a:"}}\n',
    'claims: ["b:"]\nscopes: {b: {prefix: "b:"}}\n',
)


def test_an_unclaimed_key_needs_a_grant_in_every_file_or_in_the_one_without_claims(tmp_path: Path) -> None:
    one, other = TWO_CLAIMS
    for name in ("one", "both", "rest", "claimed"):
        (tmp_path / name).mkdir()
    assert rules(teams(tmp_path / "one", one + GRANT, other), "y", "DEL k") == ["key.unregistered"]
    assert rules(teams(tmp_path / "both", one + GRANT, other + GRANT), "y", "DEL k") == []
    assert rules(teams(tmp_path / "rest", one, other, GRANT), "y", "DEL k") == []
    assert rules(teams(tmp_path / "claimed", one + GRANT, other, "about: the rest"), "y", "DEL k") == [
        "key.unregistered"
    ]


def test_a_denial_still_holds_for_a_replaced_entry() -> None:
    """Otherwise `should: [key.legacy]` would allow a denied write."""
    policy = parse_policy("""
policy: p
claims: ["r:"]
services: [x, y]
should: [key.legacy]
placeholders: {id: "[a-z]+"}
scopes: {all: {prefix: "r:", writers: [x, y], deny_write: y}}
keys:
  old: {key: "r:1:<id>"}
  new: {key: "r:2:<id>", replaces: old, allow: [read]}
""")
    assert rules(policy, "y", "SET r:1:a 1") == ["scope.write"]
    assert [(one.rule, one.severity) for one in broken(policy, "x", "SET r:1:a 1")] == [
        ("key.legacy", "should")
    ]
    assert rules(policy, "y", "GET r:1:a") == []


def test_a_denial_holds_for_inner_scopes_and_entries() -> None:
    policy = parse_policy("""
policy: p
services: [x, y]
placeholders: {id: "[a-z]+"}
scopes:
  outer: {prefix: "n:", writers: x, deny_write: y}
  inner: {prefix: "n:i:", writers: y, unregistered: allow}
keys: {k: {key: "n:i:k:<id>", writers: y}}
""")
    assert rules(policy, "y", "SET n:i:z 1") == rules(policy, "y", "SET n:i:k:a 1") == ["scope.write"]


def test_a_pattern_without_a_literal_prefix_makes_no_other_key_malformed() -> None:
    policy = parse_policy("""
policy: p
services: [x, y]
placeholders: {id: "[a-z]+"}
keys: {k: {key: "<id>", writers: x}}
""")
    assert rules(policy, "x", "GET a") == []
    assert rules(policy, "x", "GET A:b") == rules(policy, "y", "GET A:b") == ["key.unregistered"]


BOUND = parse_policy("""
policy: p
services: [x, y, ops]
placeholders: {id: "[a-z]+"}
bind: {ns: {x: ["{n1}"], y: ["{n2}"]}}
scopes: {all: {prefix: "<ns>:", writers: [x, y]}}
keys: {k: {key: "<ns>:k:<id>"}}
grants: {ops: {commands: [COPY], keys: ["{n*"], owner: o, reason: r, until: 2099-01-01}}
""")


def test_a_grant_lifts_every_requirement_on_its_keys() -> None:
    assert rules(BOUND, "ops", "COPY {n1}:k:a {n2}:k:a") == []
    # y could read the content that x copies there.
    assert rules(BOUND, "x", "COPY {n1}:k:a {n2}:k:a") == ["scope.write", "scope.read", "key.format"]


def test_an_exception_expires_after_its_last_day() -> None:
    policy = parse_policy("""
policy: p
claims: ["p:"]
services: [x, y]
placeholders: {id: "[a-z]+"}
scopes: {all: {prefix: "p:", writers: x}}
keys: {k: {key: "p:<id>"}}
legacy: {allow: [read], until: 2030-06-30, on_expiry: refuse, owner: o, keys: {"old:<id>": k}}
grants: {y: {commands: [DEL], keys: ["p:*"], on_expiry: refuse, owner: o, reason: r, until: 2030-06-30}}
""")
    end = 1_909_094_400.0  # 2030-07-01T00:00:00Z
    now = end - 0.001
    evaluator = Evaluator(policy, clock=lambda: now)

    def rules_at_now(service: str, command: str) -> list[str]:
        argv = command.encode().split()
        return [one.rule for one in evaluator.decide(policy.number(service), argv).violations]

    assert rules_at_now("x", "GET old:a") == rules_at_now("y", "DEL p:a") == []
    now = end
    assert rules_at_now("x", "GET old:a") == ["key.legacy"]
    assert rules_at_now("y", "DEL p:a") == ["scope.write"]
    now = end - 1  # setting the clock back does not revive it
    assert rules_at_now("x", "GET old:a") == ["key.legacy"]
