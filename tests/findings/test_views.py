"""The answers about findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyfence.commands.extract import extract
from keyfence.findings.database import Database
from keyfence.findings.filter import Filter
from keyfence.findings.finding import DAY, HOUR, State
from keyfence.findings.proof.basis import InForce, described
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.views import SUMMARY_ROWS, Views
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.wording.command_log import as_line
from tests.findings.rows import NOON, batch, look, row
from tests.findings.test_unused import POLICY


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/findings.db"


@pytest.fixture
def views(database: Database) -> Views:
    return Views(Reader(database))


def test_a_summary_has_counts_the_new_and_the_latest_findings(store: Store, views: Views) -> None:
    look(store, NOON - 3 * DAY, NOON)
    store.write(batch(row(entry="old", at=NOON - 2 * DAY), at=NOON - 2 * DAY))
    store.age(NOON)
    store.write(batch(*(row(entry=f"entry{number}", at=NOON + number) for number in range(15))))
    store.write(batch(row(service="api", entry="x", at=NOON - 60)))
    summary = views.summary()
    assert summary["states"] == {str(state): 0 for state in State} | {"new": 16, "open": 1}
    newest = [f"entry{number}" for number in range(14, 14 - SUMMARY_ROWS, -1)]
    assert [one["entry"] for one in summary["new"]] == newest
    assert [one["entry"] for one in summary["latest"]] == newest
    json.dumps(summary)


def test_an_empty_summary_has_every_state(views: Views) -> None:
    summary = views.summary()
    assert summary["states"] == {str(state): 0 for state in State}
    assert summary["new"] == summary["latest"] == []


def test_a_trend_is_rows_by_hour_with_the_commands_of_one_service_or_all(store: Store, views: Views) -> None:
    store.write(batch(row(3), asked=10))
    store.write(batch(row(1, NOON + HOUR, service="api"), at=NOON + HOUR, asked=2, service="api"))
    every = views.trend(NOON, "", NOON)
    assert [(one["hour"], one["observed"]) for one in every["violations"]] == [(NOON, 3), (NOON + HOUR, 1)]
    assert every["commands"] == {"shop": {NOON: 10}, "api": {NOON + HOUR: 2}}
    one = views.trend(NOON, "api", NOON + HOUR)
    assert (len(one["violations"]), one["commands"]) == (1, {"api": {NOON + HOUR: 2}})
    made = every["made"]
    assert views.trend(NOON, "nobody", NOON) == {"violations": [], "commands": {"nobody": {}}, "made": made}


def test_the_uses_of_rights_come_with_the_findings_of_entries(store: Store, views: Views) -> None:
    made = batch(row(3), asked=10)
    made.add_uses([("shop", "read", "order", 4)], NOON)
    store.write(made)
    assert views.uses(NOON) == {
        "uses": [{"service": "shop", "kind": "read", "name": "order", "times": 4, "last": NOON}],
        "findings": {"order": 1},
    }


def test_the_rights_of_a_service_come_with_their_uses(store: Store, views: Views, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    policy = load_policy(tmp_path / "policy.yaml")
    made = batch()
    made.add_uses([("billing", "read", "order", 4)], NOON)
    made.add_uses([("orders", "write", "order", 9)], NOON)
    made.add_uses([("billing", "legacy", "old:<id>", 2)], NOON - 40 * DAY)
    store.write(made)
    rights = views.rights(policy, "billing", NOON - DAY)["rights"]
    assert sorted((one["kind"], one["name"], one["times"], one["last"]) for one in rights) == [
        ("grant", "DEL, UNLINK", 0, None),
        ("legacy", "old:<id>", 0, NOON - 40 * DAY),
        ("read", "order", 4, NOON),
    ]
    assert views.rights(policy, "nobody", NOON)["rights"] == []


def test_owners_are_listed_once(store: Store, views: Views) -> None:
    assert views.owners() == []
    store.write(batch(row(), row(entry="other"), row(entry="third", contact="amy")))
    assert views.owners() == ["amy", "billing@x"]


def test_a_list_says_how_many_there_are_beyond_its_limit(store: Store, views: Views) -> None:
    store.write(batch(*(row(entry=f"entry{number}") for number in range(5)), asked=7))
    listed = views.listing(Filter(limit=2, sort="rule"), NOON)
    assert (len(listed["findings"]), listed["total"], listed["now"]) == (2, 5, NOON)


OWNED = """
policy: shop
owner: {{team: shop, contact: "{contact}"}}
claims: ["shop:"]
services: [shop, api]
scopes: {{shop: {{prefix: "shop:", writers: [api]}}}}
keys: {{order: {{key: "shop:order", type: string, writers: [{writers}]}}}}
"""


def under(database: Database, contact: str, writers: str) -> Views:
    policy = parse_policy(OWNED.format(contact=contact, writers=writers))
    return Views(Reader(database), InForce(policy, Modes((), policy.services)))


def test_owner_and_hint_are_those_of_the_policy_in_force(store: Store, database: Database) -> None:
    argv = [b"SET", b"shop:order", b"x"]
    old = parse_policy(OWNED.format(contact="#old", writers="api"))
    one = row(entry="order", contact="#old", hint="its writers: api")
    one["examples"][0]["command"] = as_line(old, "shop", argv, extract(argv), 1)
    store.write(batch(one))
    (found,) = under(database, "#new", "api").listing(Filter(), NOON)["findings"]
    assert found["owner"] == "#new"
    assert "api" in found["hint"]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "refused"),
        ({"action": "late"}, "late"),
        ({"severity": "should"}, "advised"),
        ({"service": "at rest"}, "no command"),
    ],
)
def test_a_finding_says_what_becomes_of_its_commands_if_its_rule_is_enforced(
    store: Store, database: Database, fields: dict[str, str], outcome: str
) -> None:
    store.write(batch(row(**fields)))  # type: ignore[arg-type]
    (found,) = under(database, "#new", "api").listing(Filter(), NOON)["findings"]
    assert found["if_enforced"] == outcome


def test_what_if_says_where_nobody_can_tell(store: Store, database: Database) -> None:
    """A rule that is disabled has no findings, so what was seen proves nothing about it."""
    policy = parse_policy(OWNED.format(contact="#new", writers="api"))
    modes = Modes([ModeRule("disabled", "scope.write", "shop")], policy.services)
    in_force = InForce(policy, modes)
    store.basis_taken(in_force.basis, json.dumps(described(policy, modes)), NOON)
    made = batch()
    made.add_uses([("shop", "rule", "scope.write", 5, in_force.basis)], NOON)
    store.write(made)
    answer = Views(Reader(database), in_force).breaks([ModeRule("enforce")], "", NOON - 1)
    assert (answer["breaks"], [one["why"] for one in answer["unjudged"]]) == ([], ["the rule was disabled"])
