"""Which rows of metrics are there from the start, and after a reload."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.rules import RULES
from keyfence.process.serving.zeros import declare_zeros
from keyfence.session.conversation.observer import OPAQUE_REASONS
from keyfence.telemetry.counters import Counters
from tests.clients.running import ask, configure, metric
from tests.servers import Keyfence, RedisServer

Start = Callable[..., Keyfence]
SERVICES = ("A", "unknown")


def actions(modes: Modes, service: str, rule: str) -> set[str]:
    counters = Counters()
    declare_zeros(counters, modes)
    assert set(counters.rule_violations.values()) <= {0}
    return {action for one, name, action in counters.rule_violations if (one, name) == (service, rule)}


def test_each_rule_has_a_row_for_each_service() -> None:
    for service in SERVICES:
        for rule in RULES:
            assert "observed" in actions(Modes((), SERVICES), service, rule)


def test_only_actions_that_can_occur_have_rows() -> None:
    lines = [
        ModeRule("disabled", "scope.read"),
        ModeRule("enforce", "scope.write", "A"),
        ModeRule("observe"),
    ]
    modes = Modes(lines, SERVICES, [Waiver("A", "key.format")])
    assert actions(modes, "A", "scope.read") == set()
    assert actions(modes, "A", "scope.write") == {"observed", "refused"}
    assert actions(modes, "unknown", "scope.write") == {"observed"}
    assert actions(modes, "A", "key.format") == {"observed", "waived"}
    assert actions(modes, "A", "ttl.required") == {"observed", "late"}


def test_each_service_has_a_row_for_each_reason_of_an_opaque_session() -> None:
    counters = Counters()
    declare_zeros(counters, Modes((), SERVICES))
    assert counters.sessions_opaque == {
        (service, reason): 0 for service in SERVICES for reason in OPAQUE_REASONS
    }


def rows(keyfence: Keyfence) -> dict[tuple[str, ...], float]:
    """Returns the rows of keyfence_rule_violations_total."""
    return {
        (sample.labels["service"], sample.labels["rule"], sample.labels["action"]): sample.value
        for family in text_string_to_metric_families(ask(keyfence, "/metrics")[1])
        for sample in family.samples
        if sample.name == "keyfence_rule_violations_total"
    }


@pytest.mark.parametrize("more", [[], ["workers: 1"]], ids=["one process", "a worker"])
def test_a_reload_adds_rows_and_resets_none(
    more: list[str], tmp_path: Path, redis_server: RedisServer, start_keyfence: Start
) -> None:
    config = configure(tmp_path, redis_server.url, *more)
    keyfence = start_keyfence("--config", config)
    before = rows(keyfence)
    assert set(before.values()) == {0}
    assert ("CubeProxy", "scope.read", "refused") not in before
    with keyfence.client("CubeProxy") as client:
        client.hget("cube:v1:master:node:metric:n1", "cpu")
    broken = {("CubeProxy", "scope.read", "observed"): 1}
    assert rows(keyfence) == before | broken
    waivers = tmp_path / "waivers.yaml"
    until = datetime.date.today() + datetime.timedelta(days=9)
    waivers.write_text(
        f"waivers: [{{service: CubeProxy, rule: key.format, until: {until}, reason: r, owner: o}}]\n"
    )
    configure(tmp_path, redis_server.url, *more, "waivers: waivers.yaml", mode="enforce")
    status, body = ask(keyfence, "/-/reload", {})
    assert status == 200, body
    after = rows(keyfence)
    assert after.items() >= (before | broken).items()
    new = {key: value for key, value in after.items() if key not in before}
    assert new[("CubeProxy", "key.format", "waived")] == 0
    assert new[("CubeProxy", "scope.read", "refused")] == 0


def test_the_owner_of_the_policy_can_be_asked_for(
    tmp_path: Path, redis_server: RedisServer, start_keyfence: Start
) -> None:
    files = {"shop": ("team-shop", "#shop"), "pay": ("team-pay", "")}
    (tmp_path / "policies").mkdir()
    for name, (team, contact) in files.items():
        (tmp_path / "policies" / f"{name}.yaml").write_text(
            f'policy: {name}\nowner: {{team: {team}, contact: "{contact}"}}\nservices: [{name}]\n'
            f'claims: ["{name}:"]\nkeys: {{one: {{key: "{name}:one", writers: [{name}]}}}}\n'
        )
    keyfence = start_keyfence(
        *("--policy", tmp_path / "policies", "--upstream", redis_server.url),
        *("--listen", "127.0.0.1:0", "--service", "shop", "--admin", "127.0.0.1:0"),
    )
    for name, (team, contact) in files.items():
        assert metric(keyfence, "keyfence_policy_info", policy=name, owner=team, contact=contact or team) == 1
