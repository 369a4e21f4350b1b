from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR
from keyfence.findings.history.book import BREAK_GLASS, MODES, START, WAIVERS, Book
from keyfence.findings.history.book import POLICY as IN_FORCE
from keyfence.findings.news import digest as module
from keyfence.findings.news.digest import Bounds, Digest, digest_of
from keyfence.findings.proof.basis import InForce
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.views import Views
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.loading.load import load_policy
from tests.findings.rows import NOON, batch, look, row

DAILY = Bounds(NOON - DAY, NOON, DAY)


def alone(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Findings without common causes."""
    return [{**one, "cause": ""} for one in findings]


def of(database: Database, bounds: Bounds = DAILY) -> Digest:
    return digest_of(Views(Reader(database)), bounds, alone).digest


def entries(rows: list[dict[str, Any]]) -> list[str]:
    return [one["entry"] for one in rows]


# -- findings


def test_new_findings_come_with_names_and_counts_and_without_keys(store: Store) -> None:
    store.write(batch(row(3, NOON - HOUR, key="order:secret-7"), row(9, NOON - 2 * DAY, entry="old")))
    (one,) = of(store.database)["new"]
    assert (one["service"], one["rule"], one["entry"], one["owner"]) == (
        "shop",
        "scope.write",
        "order",
        "billing@x",
    )
    assert (one["state"], one["count"], one["at"]) == ("new", 3, NOON - HOUR)
    assert "secret-7" not in str(of(store.database))
    assert "10.0.0.7" not in str(of(store.database))


def test_those_with_most_violations_come_first(store: Store) -> None:
    store.write(batch(*(row(times, NOON - HOUR, entry=f"e{times}") for times in (2, 9, 4))))
    assert entries(of(store.database)["new"]) == ["e9", "e4", "e2"]


def test_a_long_list_is_cut_and_what_is_cut_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FINDINGS", 2)
    store.write(batch(*(row(times, NOON - HOUR, entry=f"e{times}") for times in (2, 9, 4))))
    found = of(store.database)
    assert (entries(found["new"]), found["more"]) == (["e9", "e4"], {"new": 1})


def test_what_is_closed_in_its_time_is_better_and_not_new(store: Store) -> None:
    changed = store.write(batch(row(at=NOON - 2 * HOUR), row(at=NOON - 2 * HOUR, entry="cart")))
    first = next(one.finding for one in changed)
    store.resolve([first], "r2", NOON - HOUR)
    found = of(store.database)
    assert len(found["new"]) == 1
    (better,) = found["better"]
    assert (better["id"], better["state"]) == (first, "resolved")
    assert better["why"] == "revision r2 of the policy allows all of it"


def test_what_is_seen_again_is_reopened(store: Store) -> None:
    (changed,) = store.write(batch(row(at=NOON - 3 * DAY)))
    store.resolve([changed.finding], "r1", NOON - 2 * DAY)
    store.write(batch(row(at=NOON - HOUR)))
    found = of(store.database)
    assert (len(found["new"]), [one["state"] for one in found["reopened"]]) == (0, ["reopened"])


def test_what_was_better_and_is_seen_again_is_not_told_as_better(store: Store) -> None:
    (changed,) = store.write(batch(row(at=NOON - 3 * DAY)))
    store.resolve([changed.finding], "r1", NOON - HOUR)
    store.reopen([changed.finding], "r2", NOON + 60)
    assert of(store.database)["better"] == []


def test_each_change_is_told_once_even_if_it_is_written_late(store: Store) -> None:
    store.write(batch(row(at=NOON - HOUR)))
    views = Views(Reader(store.database))
    first = digest_of(views, DAILY, alone)
    store.write(batch(row(at=NOON - 2 * HOUR, entry="late")))  # its store was away until now
    store.write(batch(row(at=NOON + HOUR, entry="next")))
    second = digest_of(views, Bounds(NOON, NOON + DAY, DAY, first.event), alone)
    assert entries(first.digest["new"]) == ["order"]
    assert sorted(entries(second.digest["new"])) == ["late", "next"]
    third = digest_of(views, Bounds(NOON + DAY, NOON + 2 * DAY, DAY, second.event), alone)
    assert third.digest["new"] == []


def test_a_change_after_the_end_waits_for_the_next_digest(store: Store) -> None:
    store.write(batch(row(at=NOON - HOUR), row(at=NOON + 1, entry="next")))
    views = Views(Reader(store.database))
    first = digest_of(views, DAILY, alone)
    second = digest_of(views, Bounds(NOON, NOON + DAY, DAY, first.event), alone)
    assert (entries(first.digest["new"]), entries(second.digest["new"])) == (["order"], ["next"])


# -- waivers, break-glass and modes, as instances write them into the history


def history(store: Store, at: float, *changes: tuple[str, Mapping[str, Any]], until: float = NOON) -> Book:
    """The history of an instance that made these changes at a time, and has looked at commands until."""
    now = at
    book = Book("web-1:7", clock=lambda: now)
    book.note("ann", (START, {}), (IN_FORCE, {"name": "shop", "should": []}), *changes)
    now = until
    book.look("looking", "", at, until)
    write(store, book, until)
    return book


def write(store: Store, book: Book, at: float) -> None:
    rows, head, tail = book.waiting()
    store.history_taken(rows, head, tail, int(at * 1000))
    book.written(rows)


def day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def waiver(until: float, **fields: str) -> dict[str, str]:
    told = {"service": "web", "rule": "scope.write", "owner": "web-team", "reason": "known"}
    return {**told, "until": day(until), **fields}


def test_waivers_are_told_before_they_end_and_once_they_have(store: Store) -> None:
    waivers = [
        waiver(NOON - DAY, entry="cart"),  # the last day was yesterday
        waiver(NOON, entry="order"),
        waiver(NOON + 9 * DAY),
        waiver(NOON - 9 * DAY),
    ]
    history(store, NOON - DAY, (WAIVERS, {"in_force": waivers}))
    found = of(store.database)
    assert [(one["on"], one["owner"]) for one in found["lapsed"]] == [("cart", "web-team")]
    assert [(one["on"], day(one["until"] - 1)) for one in found["ending"]] == [("order", day(NOON))]


def test_a_break_glass_that_is_open_is_told(store: Store) -> None:
    opened = [{"rule": "", "service": "web", "until": int((NOON + HOUR) * 1000), "who": "ann"}]
    of_age = [{"rule": "", "service": "", "until": 0, "who": "the policy's age"}]
    history(store, NOON - HOUR, (BREAK_GLASS, {"change": "opened", "open": [*opened, *of_age]}))
    (one,) = of(store.database)["ending"]
    assert (one["what"], one["service"], one["reason"], one["until"]) == (
        "break-glass",
        "web",
        "ann",
        NOON + HOUR,
    )


def test_an_instance_that_is_gone_has_no_waivers(store: Store) -> None:
    waivers = {"in_force": [waiver(NOON)]}
    stopped = history(store, NOON - 3 * HOUR, (WAIVERS, waivers), until=NOON - HOUR)
    assert len(of(store.database)["ending"]) == 1
    stopped.stop("ann")
    write(store, stopped, NOON)
    assert of(store.database)["ending"] == []
    history(store, NOON - 9 * HOUR, (WAIVERS, waivers), until=NOON - 8 * HOUR)  # was killed
    assert of(store.database)["ending"] == []


def test_two_instances_with_one_waiver_tell_it_once(store: Store) -> None:
    for _ in range(2):
        history(store, NOON - HOUR, (WAIVERS, {"in_force": [waiver(NOON)]}))
    assert len(of(store.database)["ending"]) == 1


def modes(**enforced: list[str]) -> dict[str, Any]:
    rules = {name.replace("_", "."): services for name, services in enforced.items()}
    return {"services": ["web", "api"], "enforce": rules, "disabled": {}}


def test_a_rule_that_is_enforced_since_is_told_with_its_time(store: Store) -> None:
    book = history(store, NOON - 3 * DAY, (MODES, modes(scope_read=["*"])), until=NOON - 2 * HOUR)
    book._clock = lambda: NOON - 2 * HOUR
    book.note("ann", (MODES, modes(scope_write=["web"], scope_read=["api"])))
    book.look("looking", "", NOON - 2 * HOUR, NOON)
    write(store, book, NOON)
    found = of(store.database)
    assert found["enforced"] == [{"rule": "scope.write", "service": "web", "at": NOON - 2 * HOUR}]
    assert found["relaxed"] == [{"rule": "scope.read", "service": "web", "at": NOON - 2 * HOUR}]


def test_a_restart_changes_no_mode(store: Store) -> None:
    history(store, NOON - 2 * DAY, (MODES, modes(scope_write=["*"])), until=NOON - 3 * HOUR)
    history(store, NOON - 2 * HOUR, (MODES, modes(scope_write=["*"])))
    found = of(store.database)
    assert (found["enforced"], found["relaxed"]) == ([], [])


# -- rules that are ready


def test_rules_are_ready_by_the_policy_in_force(store: Store, policy: CompiledPolicy) -> None:
    in_force = InForce(policy, Modes((), policy.services))
    made = batch(at=NOON - HOUR)
    made.add_uses([("web", "rule", "scope.write", 5, in_force.basis)], NOON - HOUR)
    store.write(made)
    look(store, NOON - 9 * DAY, NOON)
    views = Views(Reader(store.database), in_force)
    told = {("scope.write", "web")}
    (one,) = digest_of(views, DAILY, alone).digest["ready"]
    (again,) = digest_of(views, DAILY._replace(ready=frozenset(told)), alone).digest["ready"]
    assert (one["rule"], one["service"], one["new"], again["new"]) == ("scope.write", "web", True, False)
    assert of(store.database)["ready"] is None  # without a policy, nobody knows


POLICY = """policy: p
claims: ["a:"]
services: [web]
scopes: {s: {prefix: "a:", writers: [web]}}
"""


@pytest.fixture
def policy(tmp_path: Path) -> CompiledPolicy:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)
