"""What a candidate policy would change about the findings of one command."""

from __future__ import annotations

from typing import Literal

import pytest

from keyfence.policy.engine.changes import changes, masked_by
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import PASS, Finding, Ruling, Violation
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


# -- masked by the other policy

POLICY = """policy: p
services: [a]
placeholders: {{token: {{is: "[a-z0-9]+", secret: {secret}}}}}
keys: {{login: {{key: "p:login:<token>", type: string, writers: [a]}}}}
"""
OPEN = parse_policy(POLICY.format(secret="false"))
SECRET = parse_policy(POLICY.format(secret="true"))


def made(key: bytes | None, shown: str, rule: str = "scope.write", shape: str = "") -> Finding:
    one = Violation(rule, "must", 1, key, shown, "login", shape, f"says {shown}", f"use {shown}")
    return Finding(one, "observed")


def test_a_policy_without_secrets_masks_nothing() -> None:
    one = made(b"p:login:topsecret", "p:login:topsecret")
    assert masked_by(OPEN, one) is one


def test_a_key_that_is_masked_shows_neither_itself_nor_a_hint() -> None:
    masked = masked_by(SECRET, made(b"p:login:topsecret", "p:login:topsecret")).violation
    assert masked.shown == "p:login:<token>"
    assert "topsecret" not in repr(masked)


def test_a_key_that_the_policy_shows_too_stays_as_it_is() -> None:
    one = made(b"p:login", "p:login")
    assert masked_by(SECRET, one) == one
    alike = made(b"p:login:topsecret", "p:login:<token>")
    assert masked_by(SECRET, alike) == alike


def test_a_key_that_the_two_mask_differently_shows_nothing() -> None:
    masked = masked_by(SECRET, made(b"p:login:topsecret", "p:<x>:topsecret")).violation
    assert masked.shown == "<masked>"
    assert "topsecret" not in repr(masked)


def test_the_first_line_of_a_script_is_masked_too() -> None:
    one = made(None, "return 'topsecret123'", rule="script.unregistered", shape="a" * 40)
    assert "topsecret" not in masked_by(SECRET, one).violation.shown
