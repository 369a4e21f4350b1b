"""The shipped policies pass their test files."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.authoring.lint import check_policy
from keyfence.authoring.testing import Runner
from tests.policy.cases import POLICIES

FILES = sorted(POLICIES.glob("*.test.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_shipped_policy_passes_its_tests(file: Path) -> None:
    runner = Runner()
    result = runner.run(file)
    assert [str(failure) for one in result.results for failure in one.failures] == []
    missing = {section.name: section.missing for section in runner.coverage[result.policy].sections()}
    assert (missing.get("entries", []), missing["rules"]) == ([], [])  # a grammar has no entries


@pytest.mark.parametrize(
    "policy", sorted(p for p in POLICIES.glob("*.yaml") if ".test." not in p.name), ids=lambda file: file.name
)
def test_a_shipped_policy_has_no_errors_and_a_test_file(policy: Path) -> None:
    errors, _, _ = check_policy(policy)
    assert errors == []
    assert policy.with_suffix(".test.yaml") in FILES
