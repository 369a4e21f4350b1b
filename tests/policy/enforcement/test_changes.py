"""What a candidate policy would change about the findings of one command."""

from __future__ import annotations

from typing import Literal

import pytest

from keyfence.policy.enforcement.changes import changes
from keyfence.policy.verdict import PASS, Finding, Ruling
from tests.telemetry.violations import violation

Action = Literal["observed", "refused", "waived"]


def ruling(*found: tuple[str, Action]) -> Ruling:
    findings = tuple(Finding(violation(rule=rule), action) for rule, action in found)
    return Ruling(findings, next((one.violation for one in findings if one.action == "refused"), None))


def found(in_force: Ruling, candidate: Ruling) -> list[tuple[str, str, str]]:
    return [
        (change, finding.violation.rule, finding.action) for change, finding in changes(in_force, candidate)
    ]


def test_equal_rulings_change_nothing() -> None:
    assert found(PASS, PASS) == []
    one = ruling(("scope.write", "refused"), ("key.legacy", "observed"))
    assert found(one, one) == [("same", "scope.write", "refused"), ("same", "key.legacy", "observed")]


def test_a_rule_that_one_of_the_two_finds_is_new_or_gone() -> None:
    old, new = ruling(("scope.read", "observed")), ruling(("scope.write", "refused"))
    assert found(old, new) == [("new", "scope.write", "refused"), ("gone", "scope.read", "observed")]
    assert found(PASS, new) == [("new", "scope.write", "refused")]
    assert found(old, PASS) == [("gone", "scope.read", "observed")]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("observed", "refused", "stricter"),
        ("waived", "refused", "stricter"),
        ("refused", "observed", "milder"),
        ("refused", "waived", "milder"),
        ("observed", "waived", "same"),
    ],
)
def test_of_a_rule_that_both_find_the_refusal_decides(before: Action, after: Action, change: str) -> None:
    assert found(ruling(("type.mismatch", before)), ruling(("type.mismatch", after))) == [
        (change, "type.mismatch", after)
    ]


def test_one_refusal_of_several_findings_of_a_rule_counts() -> None:
    old = ruling(("scope.write", "waived"), ("scope.write", "refused"))
    new = ruling(("scope.write", "refused"))
    assert found(old, new) == [("same", "scope.write", "refused")]
    assert found(new, ruling(("scope.write", "waived"))) == [("milder", "scope.write", "waived")]
