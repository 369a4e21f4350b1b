"""The policies that keyfence ships, held against their test files."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.policy.check import check_policy
from proxy.policy.explain import explain
from proxy.policy.load import load_policy
from tests.policy.cases import POLICIES, Case, read_cases

FILES = sorted(POLICIES.glob("*.test.yaml"))
CASES = [(policy, case) for file in FILES for policy, cases in [read_cases(file)] for case in cases]


@pytest.fixture(scope="module")
def compiled() -> dict[Path, object]:
    return {policy: load_policy(policy) for policy in {policy for policy, _ in CASES}}


@pytest.mark.parametrize(
    ("policy", "case"), CASES, ids=lambda value: str(value) if isinstance(value, Case) else ""
)
def test_the_policy_says_what_its_document_says(policy: Path, case: Case, compiled: dict) -> None:
    told = explain(compiled[policy], case.service, case.argv)
    broken = [violation["rule"] for violation in told["violations"]]
    assert told["verdict"] == case.verdict, told["violations"]
    if case.whole:
        assert broken == case.rules
    elif case.rules:
        assert broken[0] == case.rules[0], told["violations"]
    if case.entry:
        assert told["entry"] == case.entry


@pytest.mark.parametrize(
    "policy", sorted(p for p in POLICIES.glob("*.yaml") if ".test." not in p.name), ids=str
)
def test_a_shipped_policy_has_no_errors(policy: Path) -> None:
    errors, _, _ = check_policy(policy)
    assert errors == []


@pytest.mark.parametrize("file", FILES, ids=str)
def test_every_entry_has_an_allow_and_a_violation(file: Path) -> None:
    path, cases = read_cases(file)
    policy = load_policy(path)
    seen: dict[str, set[str]] = {}
    for case in cases:
        told = explain(policy, case.service, case.argv)
        for access in told["accesses"]:
            if access["entry"]:
                seen.setdefault(access["entry"], set()).add(told["verdict"])
    entries = {target.name for target in policy.targets if target.kind == "entry"}
    assert {name: seen.get(name, set()) for name in entries} == {
        name: {"allow", "violation"} for name in entries
    }
