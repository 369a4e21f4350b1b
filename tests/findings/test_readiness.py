from __future__ import annotations

import json

import pytest

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR
from keyfence.findings.proof.basis import InForce, described
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, Standing, is_ready, mode_lines, standings
from keyfence.findings.store import Store
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.loading.load import parse_policy
from tests.findings.rows import NOON, batch, look, row

QUIET = 7 * DAY
OBSERVED = {"scope.write": {"shop": "observe", "api": "observe"}}


@pytest.fixture
def url(tmp_path: object) -> str:
    return f"sqlite:///{tmp_path}/findings.db"


@pytest.fixture
def reader(database: Database) -> Reader:
    return Reader(database)


def standing(reader: Reader, now: float, modes: dict[str, dict[str, str]] = OBSERVED) -> Standing:
    """The standing of scope.write for the shop."""
    return standings(reader, modes, QUIET, now)[0]


def test_without_commands_there_is_no_traffic(store: Store, reader: Reader) -> None:
    look(store, NOON, NOON + 30 * DAY)
    assert standing(reader, NOON + 30 * DAY).readiness is Readiness.NO_TRAFFIC


def test_a_rule_is_ready_after_the_quiet_time_with_commands(store: Store, reader: Reader) -> None:
    store.write(batch(asked=5, at=NOON + DAY))
    look(store, NOON, NOON + 7 * DAY - 60)
    early = standing(reader, NOON + 7 * DAY - 60)
    assert (early.readiness, early.wait, early.asked) == (Readiness.GAP, 60.0, 5)
    look(store, NOON + 7 * DAY - 60, NOON + 7 * DAY)
    assert standing(reader, NOON + 7 * DAY).readiness is Readiness.READY


def test_time_in_which_keyfence_was_down_does_not_count(store: Store, reader: Reader) -> None:
    store.write(batch(asked=5))
    look(store, NOON, NOON + 3 * DAY)
    look(store, NOON + 5 * DAY, NOON + 8 * DAY)
    assert standing(reader, NOON + 8 * DAY).why == "observe for another 1d"


def test_traffic_before_the_quiet_time_is_no_evidence(store: Store, reader: Reader) -> None:
    store.write(batch(asked=5))
    look(store, NOON, NOON + 20 * DAY)
    assert standing(reader, NOON + 20 * DAY).readiness is Readiness.NO_TRAFFIC


def test_a_violation_within_the_quiet_time_stands_in_the_way(store: Store, reader: Reader) -> None:
    look(store, NOON, NOON + 20 * DAY)
    at = NOON + 12 * DAY
    store.write(batch(row(at=at), at=at, asked=5))
    later = NOON + 18 * DAY
    store.write(batch(at=later, asked=5))
    found = standing(reader, later)
    assert (found.readiness, found.why, found.last) == (Readiness.NOT_READY, "1 finding (billing@x)", at)
    assert standing(reader, at + 7 * DAY).readiness is Readiness.READY


@pytest.mark.parametrize("fields", [{"severity": "should"}, {"action": "waived"}])
def test_what_enforcing_would_not_refuse_does_not_stand_in_the_way(
    store: Store, reader: Reader, fields: dict[str, str]
) -> None:
    store.write(batch(row(**fields), asked=5))  # type: ignore[arg-type]
    look(store, NOON, NOON + 7 * DAY)
    assert standing(reader, NOON + 7 * DAY).readiness is Readiness.READY


def test_a_finding_that_a_policy_resolved_does_not_stand_in_the_way(store: Store, reader: Reader) -> None:
    store.write(batch(row(), asked=5))
    look(store, NOON, NOON + 7 * DAY)
    store.resolve([reader.findings()[0].id], "r2", NOON + 1)
    assert standing(reader, NOON + 7 * DAY - HOUR / 2).readiness is Readiness.READY


ADDRESSES = {"redis.address": {"shop": "observe", "api": "observe"}}
CLOSED = {"redis.address": {"shop": "enforce", "api": "observe"}}


@pytest.mark.parametrize("action", ["observed", "waived"])
def test_a_service_that_was_ever_told_addresses_of_redis_is_ready_for_nothing(
    store: Store, reader: Reader, action: str
) -> None:
    """A client of a cluster asks once, and then asks the nodes."""
    store.write(batch(row(rule="redis.address", action=action), asked=5))
    look(store, NOON, NOON + 8 * DAY)
    store.write(batch(at=NOON + 8 * DAY, asked=5))
    for now in (NOON + 6 * DAY, NOON + 8 * DAY):
        found = standing(reader, now, OBSERVED | ADDRESSES)
        assert found.readiness is Readiness.GAP
        assert found.why.endswith("where keyfence sees nothing; enforce redis.address without a waiver")


def test_what_is_told_of_addresses_can_be_enforced_once_it_is_quiet(store: Store, reader: Reader) -> None:
    made = batch(row(rule="redis.address"))
    made.add_uses([("shop", "rule", "redis.address", 5, "r1")], NOON + 8 * DAY)
    store.write(made)
    look(store, NOON, NOON + 8 * DAY)
    assert standing(reader, NOON + 8 * DAY, ADDRESSES).readiness is Readiness.READY


def test_a_waiver_for_addresses_keeps_the_way_open(store: Store, reader: Reader) -> None:
    store.write(batch(row(rule="redis.address", action="waived")))
    policy = parse_policy(POLICY)
    waived = InForce(policy, Modes((), policy.services, [Waiver("shop", "redis.address")]))
    describe(store, waived, NOON)
    seen(store, waived.basis, NOON, "entry shop:cart:<id>")
    look(store, NOON, NOON + 7 * DAY)
    (found, *_) = standings(reader, OBSERVED | CLOSED, QUIET, NOON + 7 * DAY, waived)
    assert found.bypassed


def test_time_in_which_a_service_knew_addresses_does_not_count_after_the_rule_is_enforced(
    store: Store, reader: Reader
) -> None:
    look(store, NOON, NOON + 7 * DAY)
    told = NOON + 7 * DAY - 60
    store.write(batch(row(rule="redis.address", at=told), at=told, asked=5))
    found = standing(reader, NOON + 7 * DAY, OBSERVED | CLOSED)
    assert (found.readiness, found.wait) == (Readiness.GAP, QUIET - 60)
    assert found.why.endswith("because the service knew addresses of Redis until then")
    refused = batch(row(rule="redis.address", at=told + DAY, action="refused"), at=told + DAY, asked=5)
    look(store, NOON + 7 * DAY, NOON + 14 * DAY)
    store.write(refused)
    assert standing(reader, NOON + 14 * DAY, OBSERVED | CLOSED).readiness is Readiness.READY


def test_evidence_begins_again_when_addresses_are_refused_and_not_when_they_were_told(
    store: Store, reader: Reader
) -> None:
    policy = parse_policy(POLICY)
    enforced = [ModeRule("enforce", "redis.address", "shop")]
    open_, closed = (InForce(policy, Modes(rules, policy.services)) for rules in ((), enforced))
    describe(store, open_, NOON)
    store.write(batch(row(rule="redis.address")))
    for service in ("shop", "api"):
        seen(store, open_.basis, NOON + 8 * DAY, "entry shop:cart:<id>", service)
    describe(store, closed, NOON + 8 * DAY)
    seen(store, closed.basis, NOON + 8 * DAY + 60, "entry shop:cart:<id>")
    modes = OBSERVED | CLOSED

    def found(now: float) -> dict[str, Readiness]:
        return {one.service: one.readiness for one in standings(reader, modes, QUIET, now, closed)[:2]}

    early = NOON + 8 * DAY + 120
    look(store, NOON, early)
    assert found(early) == {"shop": Readiness.GAP, "api": Readiness.READY}
    look(store, early, NOON + 15 * DAY)
    assert found(NOON + 15 * DAY)["shop"] is Readiness.READY


def test_a_service_that_gets_no_addresses_has_no_gap(store: Store, reader: Reader) -> None:
    store.write(batch(row(rule="redis.address", action="refused"), asked=5))
    look(store, NOON, NOON + 7 * DAY)
    modes = OBSERVED | {"redis.address": {"shop": "enforce", "api": "observe"}}
    assert standing(reader, NOON + 7 * DAY, modes).readiness is Readiness.READY


def test_modes_come_before_evidence(store: Store, reader: Reader) -> None:
    store.write(batch(row(), asked=5))
    for mode, readiness in (("enforce", Readiness.ENFORCED), ("disabled", Readiness.DISABLED)):
        found = standing(reader, NOON, {"scope.write": {"shop": mode}})
        assert found.readiness is readiness


POLICY = """
policy: shop
claims: ["shop:"]
services: [shop, api]
placeholders: {id: "[a-z0-9]+"}
scopes: {shop: {prefix: "shop:", writers: [shop, api]}}
keys:
  cart: {key: "shop:cart:<id>", type: string}
  order: {key: "shop:order:<id>", type: string}
"""


def seen(store: Store, basis: str, at: float, place: str, service: str = "shop") -> None:
    """A service used keys of a place, under a basis."""
    made = batch(at=at)
    rules = ("ttl.required", "scope.write", "type.mismatch")
    made.add_uses([(service, "rule", rule, 5, basis) for rule in rules], at)
    made.add_uses([(service, "part", place, 5, basis)], at)
    store.write(made)


def describe(store: Store, in_force: InForce, at: float) -> None:
    policy, modes = in_force.policy, in_force.modes
    assert policy is not None
    assert modes is not None
    store.basis_taken(in_force.basis, json.dumps(described(policy, modes)), at)


def in_force(text: str) -> InForce:
    policy = parse_policy(text)
    return InForce(policy, Modes((), policy.services))


def test_a_reload_begins_the_window_again_for_what_changed_and_says_so(store: Store, reader: Reader) -> None:
    old, new = in_force(POLICY), in_force(POLICY.replace('<id>", type', '<id>", ttl: {max: 1h}, type', 1))
    describe(store, old, NOON)
    seen(store, old.basis, NOON + 7 * DAY, "entry shop:cart:<id>")
    seen(store, old.basis, NOON + 7 * DAY, "entry shop:order:<id>", "api")
    look(store, NOON, NOON + 8 * DAY)
    modes = {rule: dict.fromkeys(("shop", "api"), "observe") for rule in ("ttl.required", "scope.write")}

    def found(now: float, of: InForce) -> dict[tuple[str, str], Standing]:
        return {(one.service, one.rule): one for one in standings(reader, modes, QUIET, now, of)}

    before = found(NOON + 8 * DAY, old)
    assert {one.readiness for one in before.values()} == {Readiness.READY}
    describe(store, new, NOON + 8 * DAY)
    after = found(NOON + 8 * DAY, new)
    began = after["shop", "ttl.required"]
    assert began.readiness is Readiness.GAP
    assert began.why.endswith("its window began again at 2023-11-21 12:00:00Z because the entry cart changed")
    others = {pair: one.readiness for pair, one in after.items() if pair != ("shop", "ttl.required")}
    assert set(others.values()) == {Readiness.READY}
    look(store, NOON + 8 * DAY, NOON + 15 * DAY)
    seen(store, new.basis, NOON + 9 * DAY, "entry shop:cart:<id>")
    assert found(NOON + 15 * DAY, new)["shop", "ttl.required"].readiness is Readiness.READY


def test_evidence_of_the_policy_before_does_not_count_within_the_hour_in_which_the_window_begins(
    store: Store, reader: Reader
) -> None:
    """Uses are counted by hour, and the window begins within an hour."""
    old, new = in_force(POLICY), in_force(POLICY.replace("type: string", "type: hash"))
    describe(store, old, NOON)
    seen(store, old.basis, NOON + 600, "entry shop:cart:<id>")
    describe(store, new, NOON + 660)
    now = NOON + 600 + QUIET + 1200
    look(store, NOON, now)
    modes = {"type.mismatch": {"shop": "observe"}, "scope.write": {"shop": "observe"}}
    changed, kept = standings(reader, modes, QUIET, now, new)
    assert (changed.readiness, changed.asked) == (Readiness.NO_TRAFFIC, 0)
    assert kept.readiness is Readiness.READY
    (short, _) = standings(reader, modes, 3.0, NOON + 700, new)
    assert (short.readiness, short.asked) == (Readiness.NO_TRAFFIC, 0)


def test_evidence_under_a_policy_that_is_not_known_does_not_count(store: Store, reader: Reader) -> None:
    seen(store, "gone", NOON + DAY, "entry shop:cart:<id>")
    look(store, NOON, NOON + 7 * DAY)
    now = in_force(POLICY)
    describe(store, now, NOON + DAY)
    (one,) = standings(reader, {"scope.write": {"shop": "observe"}}, QUIET, NOON + 7 * DAY, now)
    assert (one.readiness, one.wait) == (Readiness.GAP, DAY)
    assert "it is not known what policy was in force before" in one.why


def of(rule: str, service: str, readiness: Readiness) -> Standing:
    return Standing(service, rule, readiness, 1, (), (), None, 0.0)


def test_everything_is_ready_only_if_something_was_asked() -> None:
    ready = of("scope.write", "a", Readiness.READY)
    silent = of("scope.read", "a", Readiness.NO_TRAFFIC)
    assert is_ready([ready, silent])
    assert is_ready([of("scope.write", "a", Readiness.ENFORCED)])
    assert not is_ready([silent])
    assert not is_ready([])
    for other in (Readiness.GAP, Readiness.NOT_READY):
        assert not is_ready([ready, of("scope.read", "b", other)])


def test_the_lines_of_modes_enforce_what_is_ready_and_nothing_else() -> None:
    found = [
        of("scope.read", "a", Readiness.READY),
        of("scope.read", "b", Readiness.ENFORCED),
        of("scope.write", "a", Readiness.READY),
        of("scope.write", "b", Readiness.NO_TRAFFIC),
        of("ttl.required", "a", Readiness.NOT_READY),
    ]
    assert mode_lines(found) == [
        {"rule": "scope.read", "mode": "enforce"},
        {"rule": "scope.write", "service": "a", "mode": "enforce"},
    ]
