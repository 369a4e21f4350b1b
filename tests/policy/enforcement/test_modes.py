from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.commands.model import Streamed
from keyfence.policy.enforcement.modes import (
    BreakGlass,
    ModeRule,
    Modes,
    ServiceWaivers,
    Waiver,
    advised,
    best_waiver,
    mode_faults,
)
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import PASS, Mode, Severity, Verdict, Violation

SERVICES = ("one", "two", "unknown")
NAMED = ["scope.write", "key.legacy", "ttl.required"]


def violation(rule: str, severity: Severity = "must", entry: str = "e") -> Violation:
    return Violation(rule, severity, 1, b"k", "k", entry, entry, "m", "")


def actions(
    modes: Modes,
    *violations: Violation,
    service: int = 0,
    command: str = "SET",
    glass: list[BreakGlass] | None = None,
) -> tuple[list[str], str]:
    """Returns the action on each violation, and the rule that refuses the command."""
    ruling = modes.rule_on(Verdict(violations), service, command, 100.0, glass or [])
    return [one.action for one in ruling.findings], ruling.refused_by.rule if ruling.refused_by else ""


def test_an_unconfigured_rule_is_observed() -> None:
    matrix = Modes([], SERVICES).matrix()
    assert matrix == {rule: dict.fromkeys(SERVICES, "observe") for rule in RULES}


def test_the_first_matching_line_decides() -> None:
    modes = Modes(
        [
            ModeRule("enforce", "scope.write", "one"),
            ModeRule("disabled", "scope.write"),
            ModeRule("enforce", "", "two"),
            ModeRule("observe"),
            ModeRule("enforce"),
        ],
        SERVICES,
    )
    assert modes.matrix()["scope.write"] == {"one": "enforce", "two": "disabled", "unknown": "disabled"}
    assert modes.matrix()["key.legacy"] == {"one": "observe", "two": "enforce", "unknown": "observe"}
    assert [modes.mode("scope.write", number) for number in range(3)] == ["enforce", "disabled", "disabled"]


LINES = st.builds(
    ModeRule,
    st.sampled_from(["observe", "enforce", "disabled"]),
    st.sampled_from(["", *NAMED]),
    st.sampled_from(["", *SERVICES]),
)


@given(st.lists(LINES, max_size=6))
def test_the_matrix_agrees_with_the_lines(lines: list[ModeRule]) -> None:
    modes = Modes(lines, SERVICES)
    matrix = modes.matrix()
    for rule, (number, service) in itertools.product(RULES, enumerate(SERVICES)):
        matching = (one.mode for one in lines if one.rule in ("", rule) and one.service in ("", service))
        assert matrix[rule][service] == modes.mode(rule, number) == next(matching, "observe")
    for number, service in enumerate(SERVICES):
        assert modes.enforces(number) == any(row[service] == "enforce" for row in matrix.values())


def test_a_verdict_without_violations_passes() -> None:
    assert Modes([ModeRule("enforce")], SERVICES).rule_on(Verdict(()), 0, "GET", 0.0) is PASS


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("observe", (["observed"], "")), ("enforce", (["refused"], "scope.write")), ("disabled", ([], ""))],
)
def test_each_mode_has_its_ruling(mode: Mode, expected: tuple[list[str], str]) -> None:
    assert actions(Modes([ModeRule(mode)], SERVICES), violation("scope.write")) == expected


def test_a_should_never_refuses() -> None:
    modes = Modes([ModeRule("enforce")], SERVICES)
    assert actions(modes, violation("field.unknown", "should")) == (["observed"], "")


def test_an_observed_violation_never_masks_an_enforced_one() -> None:
    modes = Modes([ModeRule("enforce", "key.legacy"), ModeRule("disabled", "key.length")], SERVICES)
    found = [violation(rule) for rule in ("key.length", "scope.write", "key.legacy", "ttl.required")]
    assert actions(modes, *found) == (["observed", "refused", "observed"], "key.legacy")


def test_the_first_enforced_violation_refuses_the_command() -> None:
    modes = Modes([ModeRule("enforce")], SERVICES)
    found = [violation("field.unknown", "should"), violation("key.legacy"), violation("scope.write")]
    assert actions(modes, *found) == (["observed", "refused", "refused"], "key.legacy")


def test_each_service_has_its_own_modes() -> None:
    modes = Modes([ModeRule("enforce", "", "one")], SERVICES)
    assert actions(modes, violation("scope.write"), service=0) == (["refused"], "scope.write")
    assert actions(modes, violation("scope.write"), service=1) == (["observed"], "")
    assert actions(modes, violation("scope.write"), service=2) == (["observed"], "")


@pytest.mark.parametrize(
    ("waiver", "is_waived"),
    [
        (Waiver("one", "scope.write"), True),
        (Waiver("one", "scope.write", "e"), True),
        (Waiver("one", "scope.write", "", "SET"), True),
        (Waiver("one", "scope.write", "e", "SET"), True),
        (Waiver("two", "scope.write"), False),
        (Waiver("one", "scope.read"), False),
        (Waiver("one", "scope.write", "other"), False),
        (Waiver("one", "scope.write", "", "GET"), False),
    ],
)
def test_a_waiver_covers_only_what_it_names(waiver: Waiver, is_waived: bool) -> None:
    modes = Modes([ModeRule("enforce")], SERVICES, [waiver])
    expected = (["waived"], "") if is_waived else (["refused"], "scope.write")
    assert actions(modes, violation("scope.write")) == expected


KEYS = ["user:1", "user:17", "user:x", "user:17:cart", "team:a", "team:b", "a" * 40, ""]
WAIVERS = st.builds(
    Waiver,
    st.sampled_from(SERVICES[:2]),
    st.sampled_from(NAMED),
    st.sampled_from(["", "", "e", "other"]),
    st.sampled_from(["", "SET", "GET"]),
    st.sampled_from(["", "", "user:<int>", "user:*", "user:1?", "team:[ab]", "<id>:<id>", "*"]),
)


@given(
    st.lists(WAIVERS, max_size=12),
    st.sampled_from(SERVICES[:2]),
    st.sampled_from(NAMED),
    st.sampled_from(["", "e"]),
    st.sampled_from(["SET", "DEL"]),
    st.sampled_from(KEYS),
)
def test_a_violation_is_waived_if_one_of_all_waivers_covers_it(
    waivers: list[Waiver], service: str, rule: str, entry: str, command: str, key: str
) -> None:
    modes = Modes([], SERVICES, waivers)
    found = violation(rule, entry=entry)._replace(key=key.encode())
    expected = best_waiver(waivers, Waiver(service, rule, entry, command), key.encode())
    assert modes.waived(found, service, command) == (expected is not None)


def test_few_of_many_waivers_are_looked_at() -> None:
    many = [Waiver("one", "scope.write", keys=f"user:{at}:*") for at in range(500)]
    many += [Waiver("one", "scope.write", entry=f"entry-{at}") for at in range(500)]
    held = ServiceWaivers([*many, Waiver("one", "scope.write", "e", keys="user:<int>:cart")])
    assert len(held.near(Waiver("one", "scope.write", "e"), b"user:17:cart")) == 2
    assert len(held.near(Waiver("one", "scope.write", "entry-7"), b"team:17")) == 1
    assert held.near(Waiver("one", "scope.write", "e"), b"team:17") == []


def test_a_waiver_does_not_enable_a_disabled_rule() -> None:
    modes = Modes([ModeRule("disabled")], SERVICES, [Waiver("one", "scope.write")])
    assert actions(modes, violation("scope.write")) == ([], "")


@pytest.mark.parametrize(
    ("glass", "is_open"),
    [
        (BreakGlass(101.0), True),
        (BreakGlass(100.0), False),
        (BreakGlass(101.0, "scope.write"), True),
        (BreakGlass(101.0, "key.legacy"), False),
        (BreakGlass(101.0, "", "one"), True),
        (BreakGlass(101.0, "", "two"), False),
        (BreakGlass(101.0, "scope.write", "one"), True),
    ],
)
def test_break_glass_observes_until_its_end(glass: BreakGlass, is_open: bool) -> None:
    modes = Modes([ModeRule("enforce")], SERVICES)
    expected = (["observed"], "") if is_open else (["refused"], "scope.write")
    assert actions(modes, violation("scope.write"), glass=[glass]) == expected


def test_one_open_break_glass_of_several_is_enough() -> None:
    modes = Modes([ModeRule("enforce")], SERVICES)
    glass = [BreakGlass(50.0), BreakGlass(101.0, "scope.write")]
    assert actions(modes, violation("scope.write"), violation("key.legacy"), glass=glass) == (
        ["observed", "refused"],
        "key.legacy",
    )


def test_modes_with_unknown_names_are_faults() -> None:
    rules = [ModeRule("observe", "scope.writ", "ones"), ModeRule("observe", "x.y"), ModeRule("observe")]
    assert mode_faults(rules, SERVICES) == [
        (0, "rule", "'scope.writ' is not a rule; did you mean scope.write?"),
        (0, "service", "'ones' is not a service of the policy; did you mean one?"),
        (1, "rule", "'x.y' is not a rule"),
    ]


def test_advised_parts_are_listed_by_rule() -> None:
    policy = parse_policy(
        'policy: p\nservices: [a]\nclaims: ["p:"]\nshould: [field.unknown]\n'
        'scopes: {s: {prefix: "p:", writers: a, should: [key.unregistered, ttl.required]}}\n'
        'keys: {k: {key: "p:k", should: [type.mismatch, field.unknown]}}\n'
        "names: {lowercase: yes, should: {levels: {max: 3}, max_length: 20}}\n"
    )
    assert advised(policy) == {
        "key.format": ["names.levels"],
        "key.unregistered": ["s"],
        "key.length": ["names.max_length"],
        "type.mismatch": ["k"],
        "ttl.required": ["k", "s"],
    }


def test_a_key_of_which_only_the_beginning_is_held_is_waived_like_others() -> None:
    modes = Modes([], SERVICES, [Waiver("one", "slot.cross", keys="big:*")])
    held = violation("slot.cross")._replace(key=Streamed(b"big:x", 10_000_000))
    assert modes.waived(held, "one", "DEL")
