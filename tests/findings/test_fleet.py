"""What the picture of a fleet says of instances, revisions, environments and modes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyfence.findings.finding import State
from keyfence.findings.fleet import SILENT_SECONDS, Known, fleet_of
from keyfence.findings.instances import Instance
from keyfence.policy.rules import RULES
from tests.findings.rows import NOON


def an_instance(name: str, environment: str = "prod", **more: Any) -> Instance:
    given: dict[str, Any] = {
        "id": f"{name}:1",
        "name": name,
        "admin": "",
        "environment": environment,
        "policy": "shop",
        "revision": "abc",
        "sequence": 0,
        "source": "fresh",
        "reason": "",
        "loaded": NOON - 3600,
        "confirmed": 0.0,
        "version": "0.1.0",
        "started": NOON - 7200,
        "modes": modes(),
        "clients": 2,
        "last": NOON,
    }
    return Instance(**given | more)


def modes(glass: Any = (), **rules: Any) -> str:
    """Every rule is observed for every service, except for `rules`: modes by service, or one of all."""
    known: dict[str, Any] = {"scope.write": "observe", "ttl.required": "observe"} | {
        name.replace("_", ".", 1): mode for name, mode in rules.items()
    }
    of = {rule: {"*": mode} if isinstance(mode, str) else mode for rule, mode in known.items()}
    return json.dumps({"rules": of, "glass": list(glass), "is_part": False})


def said(*instances: Instance) -> tuple[bool, list[str]]:
    """Whether all is well, and the sentences."""
    found = fleet_of([Known(instances, {})], NOON)
    return found["healthy"], [one["text"] for one in found["lines"]]


def health(one: Instance) -> str:
    (shown,) = fleet_of([Known([one], {})], NOON)["instances"]
    return str(shown["health"])


def test_instances_that_run_the_same_need_no_word() -> None:
    assert said(*(an_instance(f"web-{number}:9464") for number in range(5))) == (True, [])


def test_no_instance_at_all_is_no_fault() -> None:
    assert said() == (True, [])


def test_an_instance_is_silent_if_it_was_not_heard_of_for_half_a_minute() -> None:
    assert health(an_instance("a", last=NOON - SILENT_SECONDS)) == "ok"
    assert said(an_instance("a:1", last=NOON - 312)) == (
        False,
        ["a:1 (prod) is silent: it was last heard of 5m 12s ago"],
    )


def test_a_clock_that_is_ahead_makes_nobody_silent() -> None:
    assert health(an_instance("a", last=NOON + 100)) == "ok"


@pytest.mark.parametrize("source", ["refused", "stale", "copy"])
def test_an_instance_whose_policy_is_not_what_it_should_be_says_why(source: str) -> None:
    one = an_instance("a:1", "", source=source, reason="p.yaml:3:1: error: no such key")
    assert health(one) == source
    assert said(one) == (False, ["a:1: p.yaml:3:1: error: no such key"])


def test_different_revisions_in_one_environment_are_wrong() -> None:
    new = [an_instance(f"a-{number}", sequence=7) for number in range(3)]
    old = [an_instance(f"b-{number}", revision="def", loaded=NOON - 90_000) for number in range(2)]
    assert said(*new, *old) == (
        False,
        ["prod, policy shop: 3 of 5 run abc (sequence 7) since 11:00, 2 run def since 2023-11-13 11:00"],
    )


def test_a_silent_instance_counts_for_no_revision() -> None:
    healthy, lines = said(an_instance("a"), an_instance("b", revision="def", last=NOON - 60))
    assert (healthy, len(lines)) == (False, 1)
    assert "silent" in lines[0]


def test_different_policies_in_one_environment_are_not_compared() -> None:
    assert said(an_instance("a"), an_instance("b", policy="billing", revision="def")) == (True, [])


def test_different_revisions_of_two_environments_are_told_and_not_wrong() -> None:
    assert said(an_instance("a", "prod"), an_instance("b", "staging", revision="def")) == (
        True,
        ["policy shop: prod runs abc since 11:00, staging runs def since 11:00"],
    )


def test_what_one_environment_enforces_and_another_observes_is_told() -> None:
    staging = modes(scope_write="enforce", ttl_required="enforce")
    assert said(an_instance("a"), an_instance("b", "staging", modes=staging)) == (
        True,
        ["staging enforces scope.write and ttl.required, prod observes them"],
    )


def test_several_environments_with_one_mode_are_named_together() -> None:
    enforce = modes(scope_write="enforce")
    found = said(
        an_instance("a", "dev", modes=enforce), an_instance("b"), an_instance("c", "staging", modes=enforce)
    )
    assert found == (True, ["dev and staging enforce scope.write, prod observes it"])


def test_modes_of_one_service_are_told_with_its_name() -> None:
    of_web = modes(scope_write={"*": "observe", "web": "enforce"})
    found = fleet_of([Known([an_instance("a"), an_instance("b", "", modes=of_web)], {})], NOON)
    assert [one["text"] for one in found["lines"]] == [
        "the unnamed environment enforces scope.write, prod observes it, for web"
    ]
    assert found["differences"] == [
        {
            "policy": "shop",
            "rule": "scope.write",
            "service": "web",
            "modes": {"prod": "observe", "": "enforce"},
        }
    ]


def test_services_that_differ_in_the_same_way_are_one_sentence() -> None:
    of_many = {"*": "observe", **{f"web-{number}": "enforce" for number in range(200)}}
    found = said(an_instance("a"), an_instance("b", "staging", modes=modes(scope_write=of_many)))
    assert found == (
        True,
        ["staging enforces scope.write, prod observes it, for web-0, web-1, web-2 and 197 more"],
    )


def test_a_mode_that_this_keyfence_does_not_know_breaks_nothing() -> None:
    newer = modes(scope_write="rewrite")
    assert said(an_instance("a"), an_instance("b", "staging", modes=newer, source="odd")) == (
        True,
        ["prod observes scope.write, staging does not know it"],
    )


def test_a_rule_that_an_older_keyfence_lacks_is_not_known_there() -> None:
    newer = modes(new_rule="enforce")
    assert said(an_instance("a"), an_instance("b", "staging", modes=newer, version="0.2.0")) == (
        True,
        [
            "staging enforces new.rule, prod does not know it",
            "1 instance is keyfence 0.1.0, 1 instance is keyfence 0.2.0",
        ],
    )


def test_an_instance_with_other_modes_than_the_others_of_its_environment_is_told() -> None:
    others = [an_instance(f"a-{number}") for number in range(3)]
    assert said(*others, an_instance("b", modes=modes(scope_write="enforce"))) == (
        True,
        ["prod, b has other modes than most, of scope.write"],
    )


def test_an_open_break_glass_is_told_until_it_is_over() -> None:
    glass = [
        {"until": NOON + 600, "rule": "scope.write", "service": "web"},
        {"until": NOON - 1, "rule": "", "service": ""},
    ]
    assert said(an_instance("a", modes=modes(glass))) == (
        True,
        ["a (prod): break-glass is open until 12:10: violations of scope.write by web pass"],
    )


def test_an_instance_without_a_policy_is_compared_with_nobody() -> None:
    passing = an_instance("a", policy="", revision="", modes="{}")
    assert said(passing, an_instance("b")) == (True, [])


def test_all_rules_are_every_rule() -> None:
    names = [name.replace(".", "_", 1) for name in RULES]
    observed, enforced = (modes(**dict.fromkeys(names, mode)) for mode in ("observe", "enforce"))
    (line,) = said(an_instance("a", modes=observed), an_instance("b", "staging", modes=enforced))[1]
    assert line == "staging enforces every rule, prod observes them"


def test_a_long_list_of_names_is_cut() -> None:
    rules = {f"rule_{number}": "enforce" for number in range(9)}
    (line,) = said(an_instance("a", modes=modes(**dict.fromkeys(rules, "observe"))),
                   an_instance("b", "staging", modes=modes(**rules)))[1]  # fmt: skip
    assert line == "staging enforces rule.0, rule.1, rule.2 and 6 more, prod observes them"


def test_the_active_findings_of_each_store_are_told_with_its_environment() -> None:
    prod = Known([an_instance("a")], {State.NEW: 2, State.OPEN: 1, State.RESOLVED: 9})
    staging = Known([an_instance("b", "staging")], {State.OPEN: 1})
    found = fleet_of([prod, staging, Known([an_instance("c", "dev")], {State.QUIET: 3})], NOON)
    assert [one["text"] for one in found["lines"]] == [
        "prod: 3 findings are active, 2 of them new or reopened",
        "staging: 1 finding is active",
    ]
    assert found["stores"][1]["environments"] == ["staging"]
    assert found["stores"][1]["states"]["open"] == 1


def test_the_findings_of_one_store_without_an_environment_need_no_name() -> None:
    found = fleet_of([Known([an_instance("a", "")], {State.OPEN: 4})], NOON)
    assert [one["text"] for one in found["lines"]] == ["4 findings are active"]
