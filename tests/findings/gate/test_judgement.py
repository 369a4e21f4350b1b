from __future__ import annotations

import pytest

from keyfence.findings.finding import DAY, State
from keyfence.findings.gate.formats import as_junit, headline
from keyfence.findings.gate.judgement import Outcome, blocking, judge
from tests.findings.gate.findings import NOON, evidence, finding, judged, unjudged

ACTIVE = [State.NEW, State.OPEN, State.REOPENED]
CLOSED = [State.WAIVED, State.QUIET, State.RESOLVED]


@pytest.mark.parametrize("state", ACTIVE)
def test_without_a_baseline_every_active_finding_is_new(state: State) -> None:
    answer = judged(finding(state))
    assert answer.outcome is Outcome.NEW
    assert [one.state for one in answer.new] == [state]


@pytest.mark.parametrize("state", CLOSED)
def test_a_finding_that_is_waived_quiet_or_resolved_does_not_fail(state: State) -> None:
    answer = judged(finding(state))
    assert answer.outcome is Outcome.CLEAN
    assert answer.closed == {str(one): int(one is state) for one in CLOSED}


def test_a_should_is_listed_and_does_not_fail() -> None:
    answer = judged(finding(severity="should"))
    assert answer.outcome is Outcome.CLEAN
    assert (len(answer.new), len(answer.advice)) == (0, 1)


def test_no_traffic_is_not_clean() -> None:
    assert judged(commands=0).outcome is Outcome.SILENT


def test_findings_count_more_than_silence() -> None:
    """What Redis was asked about late may be found in a run without commands."""
    assert judged(finding(), commands=0).outcome is Outcome.NEW


def test_what_nobody_can_tell_is_not_clean() -> None:
    assert judged(unjudged=[unjudged()]).outcome is Outcome.UNKNOWN
    assert judged(finding(), unjudged=[unjudged()]).outcome is Outcome.NEW


def test_the_exit_codes_are_0_1_and_3() -> None:
    assert {str(outcome): outcome.exit_code for outcome in Outcome} == {
        "clean": 0,
        "new findings": 1,
        "no traffic": 3,
        "not known": 3,
    }


def test_findings_of_a_baseline_are_known() -> None:
    old, new = finding(), finding(command="DEL")
    answer = judge(evidence(old, new), baseline=blocking([old]))
    assert (answer.outcome, answer.new, answer.known) == (Outcome.NEW, (new,), 1)
    assert judge(evidence(old), baseline=blocking([old])).outcome is Outcome.CLEAN


def test_a_known_finding_that_is_not_seen_is_named() -> None:
    gone = finding(command="DEL")
    answer = judge(evidence(finding()), baseline=blocking([gone, finding()]))
    assert [one.id for one in answer.unseen] == [gone.id]


def test_a_known_finding_that_is_only_waived_now_was_seen() -> None:
    known = blocking([finding()])
    assert judge(evidence(finding(State.WAIVED)), baseline=known).unseen == ()


def test_a_baseline_lists_what_fails_a_gate_that_knows_nothing() -> None:
    findings = [finding(state, command=state) for state in (*ACTIVE, *CLOSED)]
    findings.append(finding(severity="should", command="HSET"))
    assert [one.command for one in blocking(findings)] == [str(state) for state in ACTIVE]
    assert judge(evidence(*findings), baseline=blocking(findings)).outcome is Outcome.CLEAN


@pytest.mark.parametrize(("first", "is_new"), [(NOON - 1, False), (NOON, True), (NOON + 1, True)])
def test_since_a_time_what_was_first_seen_then_is_new(first: float, is_new: bool) -> None:
    one = finding(State.OPEN, first=first, last=NOON + DAY)
    answer = judge(evidence(one), since=NOON)
    assert answer.outcome is (Outcome.NEW if is_new else Outcome.CLEAN)
    assert answer.known == int(not is_new)


@pytest.mark.parametrize(("at", "is_new"), [(NOON - 1, False), (NOON, True)])
@pytest.mark.parametrize("state", [State.REOPENED, State.OPEN])
def test_since_a_time_what_was_reopened_then_is_new(state: State, at: float, is_new: bool) -> None:
    """A reopened finding is open a day later, and still new since."""
    one = finding(state, first=NOON - 30 * DAY)
    answer = judge(evidence(one, reopened={one.id: at}), since=NOON)
    assert bool(answer.new) is is_new


def test_new_findings_are_in_the_order_of_rules_and_services_with_the_most_frequent_first() -> None:
    findings = [
        finding(rule="ttl.required", service="a"),
        finding(service="b", command="DEL", counts={"observed": 2}),
        finding(service="b", command="SET", counts={"observed": 9}),
        finding(service="a"),
    ]
    order = [(one.rule, one.service, one.command) for one in judged(*findings).new]
    assert order == [
        ("scope.write", "a", "SET"),
        ("scope.write", "b", "SET"),
        ("scope.write", "b", "DEL"),
        ("ttl.required", "a", "SET"),
    ]


def test_each_rule_that_was_asked_of_a_service_is_a_case() -> None:
    late = finding(rule="ttl.required")
    assert judged(finding(), late).cases() == {
        ("shop", "internal.error"): [],
        ("shop", "scope.write"): [finding()],
        ("shop", "ttl.required"): [late],
    }


def test_a_log_that_leaves_violations_out_proves_nothing() -> None:
    judgement = judged(dropped=5)
    assert judgement.outcome is Outcome.UNKNOWN
    assert judgement.outcome.exit_code == 3
    assert headline(judgement).startswith(
        "not known: no new findings, but the decision log leaves out 5 violations"
    )
    assert "leaves out 5 violations" in as_junit(judgement)
    assert judged(finding(), dropped=5).outcome is Outcome.NEW
