from __future__ import annotations

import json

import pytest

from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR, State, finding_id
from keyfence.findings.gate.sources import of_answers, of_rows, of_store
from keyfence.findings.proof.basis import InForce, described
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.views import Views
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.loading.load import parse_policy
from keyfence.telemetry.reports.by_command import tally_of_log
from keyfence.telemetry.tally import Row
from tests.findings.gate.findings import NOON, example, finding


@pytest.fixture
def reader(database: Database) -> Reader:
    return Reader(database)


def row(at: float, action: str = "observed") -> Row:
    return Row(
        service="shop",
        rule="scope.write",
        severity="must",
        command="SET",
        entry="order",
        shape="",
        count=1,
        actions={action: 1},
        first=at,
        last=at,
        clients=[{"address": "10.0.0.7"}],
        example="order:7",
        hint="its writers: billing",
        contact="#billing",
        examples=[example()],
    )


def write(reader: Reader, at: float, *, asked: int = 1, violations: int = 0) -> None:
    made = Batch()
    if asked:
        made.add_uses([("shop", "rule", rule, asked) for rule in ("internal.error", "scope.write")], at)
        made.add_uses([("shop", "write", "order", asked)], at)
    made.add_rows([row(at)] * violations, at)
    Store(reader.database, "here:1").write(made)


# -- a store


def test_a_store_tells_how_many_commands_each_rule_was_asked_of(reader: Reader) -> None:
    write(reader, NOON, asked=7)
    found = of_store(reader, 0.0)
    assert found.asked == {("shop", "internal.error"): 7, ("shop", "scope.write"): 7}
    assert (found.commands, found.is_silent) == (7, False)


def test_an_empty_store_is_silent(reader: Reader) -> None:
    assert of_store(reader, 0.0).is_silent


@pytest.mark.parametrize(("after", "is_silent"), [(0.0, False), (1.0, True), (HOUR, True)])
def test_a_run_in_the_same_hour_as_earlier_traffic_is_silent(
    after: float, is_silent: bool, reader: Reader
) -> None:
    write(reader, NOON)
    assert of_store(reader, NOON + after).is_silent is is_silent


def test_the_time_of_the_last_command_is_the_latest_of_all_writers(reader: Reader) -> None:
    write(reader, NOON + 9)
    write(reader, NOON + 5)
    assert not of_store(reader, NOON + 9).is_silent


def test_a_batch_that_waited_keeps_the_time_of_its_last_command(reader: Reader) -> None:
    waiting, later = Batch(), Batch()
    waiting.add_uses([("shop", "rule", "internal.error", 1)], NOON)
    later.add_uses([("shop", "rule", "internal.error", 1)], NOON + 30)
    waiting.add_batch(later)
    Store(reader.database, "here:1").write(waiting)
    assert not of_store(reader, NOON + 30).is_silent
    assert of_store(reader, NOON + 31).is_silent


def test_a_store_tells_when_a_finding_was_reopened(reader: Reader) -> None:
    write(reader, NOON, violations=1)
    store, id_ = Store(reader.database, "here:1"), finding().id
    store.resolve([id_], "r2", NOON + 100)
    write(reader, NOON + DAY, violations=1)
    assert of_store(reader, NOON + 200).reopened == {id_: NOON + DAY}
    assert of_store(reader, NOON + 2 * DAY).reopened == {}


# -- policies that have changed


def describe(reader: Reader, in_force: InForce, at: float) -> None:
    assert in_force.policy is not None
    assert in_force.modes is not None
    parts = json.dumps(described(in_force.policy, in_force.modes))
    Store(reader.database, "here:1").basis_taken(in_force.basis, parts, at)


def in_force(writers: str, *modes: ModeRule) -> InForce:
    policy = parse_policy(
        "policy: shop\nclaims: ['order:']\nservices: [shop, api]\nplaceholders: {id: '[0-9]+'}\n"
        f"keys: {{order: {{key: 'order:<id>', writers: [{writers}]}}}}\n"
    )
    return InForce(policy, Modes(modes, policy.services))


def use(reader: Reader, of: InForce, at: float) -> None:
    """`shop` writes orders under a policy."""
    made = Batch()
    made.add_uses([("shop", "rule", "scope.write", 3, of.basis)], at)
    made.add_uses([("shop", "part", "entry order:<id>", 3, of.basis)], at)
    Store(reader.database, "here:1").write(made)


def unjudged(reader: Reader, since: float = 0.0) -> set[tuple[str, str]]:
    return {(one.service, one.rule) for one in of_store(reader, since).unjudged}


def test_a_store_tells_what_the_policy_in_force_has_not_judged(reader: Reader) -> None:
    loose, strict = in_force("shop, api"), in_force("api")
    describe(reader, loose, NOON)
    use(reader, loose, NOON + 1)
    assert unjudged(reader) == set()
    describe(reader, strict, NOON + 2)
    assert ("shop", "scope.write") in unjudged(reader)
    assert unjudged(reader, since=NOON + 1) == set()
    describe(reader, loose, NOON + 3)  # and back
    assert unjudged(reader) == set()


def test_a_policy_in_force_is_known_for_as_long_as_evidence_is_kept(reader: Reader) -> None:
    loose, strict = in_force("shop, api"), in_force("api")
    describe(reader, strict, NOON)
    describe(reader, loose, NOON + DAY)
    use(reader, loose, NOON + 30 * DAY)
    describe(reader, strict, NOON + 40 * DAY)
    Store(reader.database, "here:1").prune(60 * DAY, NOON + 80 * DAY)
    assert ("shop", "scope.write") in unjudged(reader)


def test_a_rule_that_is_disabled_in_force_does_not_concern_the_gate(reader: Reader) -> None:
    disabled = in_force("shop", ModeRule("disabled", "scope.write", "shop"))
    describe(reader, disabled, NOON)
    use(reader, disabled, NOON + 1)
    assert unjudged(reader) == set()


def test_a_running_keyfence_has_not_judged_what_an_older_policy_resolved(reader: Reader) -> None:
    write(reader, NOON, asked=0, violations=1)
    now = in_force("api")
    assert now.policy is not None
    store, views = Store(reader.database, "here:1"), Views(reader, now)
    store.resolve([finding().id], "r2", NOON + 1)
    assert [one["rule"] for one in views.evidence(0.0)["unjudged"]] == ["scope.write"]
    store.still_resolved([finding().id], now.policy.revision)
    assert views.evidence(0.0)["unjudged"] == []


# -- a running keyfence


def test_the_answers_of_a_running_keyfence_say_the_same_as_its_store(reader: Reader) -> None:
    write(reader, NOON, asked=7, violations=2)
    answer = json.loads(json.dumps(Views(reader).evidence(NOON)))
    findings = [json.loads(json.dumps(one.as_object())) for one in reader.findings()]
    assert of_answers(findings, answer, NOON) == of_store(reader, NOON)


def test_a_finding_on_two_pages_of_answers_counts_once(reader: Reader) -> None:
    write(reader, NOON, violations=1)
    objects = [one.as_object() for one in reader.findings()]
    assert len(of_answers([*objects, *objects], Views(reader).evidence(0.0), 0.0).findings) == 1


def test_an_answer_with_another_id_is_not_believed(reader: Reader) -> None:
    write(reader, NOON, violations=1)
    (value,) = (one.as_object() for one in reader.findings())
    with pytest.raises(ValueError, match="has another id than its names give"):
        of_answers([value | {"id": "f-000000000000"}], Views(reader).evidence(0.0), 0.0)


# -- a decision log


def line(**fields: object) -> str:
    return json.dumps(
        {
            "time": "2027-06-30T08:00:00Z",
            "decision": "d-82b2029b",
            "service": "shop",
            "client": "10.0.0.7:1",
            "command": "SET",
            "rule": "scope.write",
            "severity": "must",
            "entry": "order",
            "key": "order:7",
            "hint": "its writers: billing",
            "position": 1,
            "action": "observed",
            "merged": 0,
            "dropped": 0,
            **fields,
        }
    )


def rows(*lines: str) -> list[Row]:
    tally, _ = tally_of_log(lines, pytest.fail)
    return [row for _, row in tally.rows()]


def test_a_decision_log_gives_a_finding_with_the_id_that_a_store_gives() -> None:
    (one,) = of_rows(rows(line(), line(merged=4)), 0.0).findings
    assert one.id == finding_id(("shop", "scope.write", "SET", "order", ""))
    assert (one.total, one.state, one.examples[0]["decision"]) == (6, State.NEW, "d-82b2029b")


def test_an_empty_decision_log_is_silent() -> None:
    found = of_rows(rows(), 0.0)
    assert (found.is_silent, found.commands) == (True, None)
    assert not of_rows(rows(line()), 0.0).is_silent


def test_a_decision_log_without_lines_since_a_time_is_silent() -> None:
    assert of_rows(rows(line()), 1_814_356_000.0).is_silent


def test_what_a_waiver_covers_is_waived_in_a_decision_log_too() -> None:
    waived = of_rows(rows(line(action="waived")), 0.0).findings[0]
    both = of_rows(rows(line(action="waived"), line(action="observed")), 0.0).findings[0]
    assert (waived.state, both.state) == (State.WAIVED, State.NEW)
