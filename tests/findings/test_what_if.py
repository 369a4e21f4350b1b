from __future__ import annotations

import pytest

from keyfence.findings.database import Database
from keyfence.findings.finding import HOUR
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.what_if import what_if
from keyfence.policy.enforcement.modes import ModeRule, parse_mode
from tests.findings.rows import NOON, batch, row


@pytest.fixture
def url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/findings.db"


@pytest.fixture
def reader(store: Store, database: Database) -> Reader:
    redis_py = [{"address": "10.0.0.7", "library": "redis-py", "version": "5.0.1"}, {"address": "10.0.0.8"}]
    store.write(batch(row(3, clients=redis_py), row(5, service="api"), row(2, rule="ttl.required")))
    store.write(batch(row(4, entry="waived", action="waived"), row(4, entry="advice", severity="should")))
    later = NOON + 2 * HOUR
    store.write(batch(row(1, later, entry="late", action="late"), row(7, later), at=later))
    return Reader(database)


def broken(reader: Reader, *modes: str, service: str = "", since: float = 0.0) -> list[tuple[str, str, int]]:
    rules = [parse_mode(text, service) for text in modes]
    found = what_if(reader, rules, service, since)
    return [(one.finding.service, one.finding.rule, one.times) for one in found]


def test_what_a_rule_would_refuse_is_listed_by_frequency(reader: Reader) -> None:
    assert broken(reader, "scope.write=enforce") == [("shop", "scope.write", 10), ("api", "scope.write", 5)]
    assert broken(reader, "scope.write=enforce", service="api") == [("api", "scope.write", 5)]
    assert broken(reader, "scope.read=enforce") == []


def test_every_rule_can_be_tried_at_once(reader: Reader) -> None:
    assert len(broken(reader, "*=enforce")) == 3


def test_only_what_was_seen_since_counts(reader: Reader) -> None:
    assert broken(reader, "*=enforce", since=NOON + HOUR) == [("shop", "scope.write", 7)]


def test_the_first_mode_that_matches_decides(reader: Reader) -> None:
    modes = [ModeRule("observe", "scope.write", "shop"), ModeRule("enforce")]
    assert {(one.finding.service, one.finding.rule) for one in what_if(reader, modes, "", 0.0)} == {
        ("api", "scope.write"),
        ("shop", "ttl.required"),
    }


def test_libraries_are_named_with_their_versions(reader: Reader) -> None:
    (one,) = what_if(reader, [ModeRule("enforce", "scope.write", "shop")], "shop", 0.0)
    assert one.libraries == ("redis-py 5.0.1",)
    assert one.as_object()["libraries"] == ["redis-py 5.0.1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("scope.write", "write RULE=enforce"),
        ("scope.write=observe", "write RULE=enforce"),
        ("scope.rite=enforce", "'scope.rite' is not a rule; did you mean scope.write"),
    ],
)
def test_a_mode_that_is_none_is_an_error_with_its_remedy(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_mode(text)
