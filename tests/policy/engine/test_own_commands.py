"""Who may use the commands that keyfence answers itself, and what they are to all others."""

from __future__ import annotations

import datetime

import pytest

from keyfence.commands.extract import extract
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain

BASE = """
policy: shop
services: [web, ops, every]
claims: ["shop:"]
scopes: {all: {prefix: "shop:", writers: web, commands: {forbid: [SORT]}}}
"""
WHOAMI = [b"KEYFENCE", b"WHOAMI"]
CLIENTS = [b"keyfence", b"show", b"clients"]
BARE = [b"KEYFENCE"]


def policy(*lines: str) -> CompiledPolicy:
    return parse_policy(BASE + "\n".join(lines))


def broken(one: CompiledPolicy, service: str, argv: list[bytes]) -> str:
    """The rule that a command breaks; "" if keyfence answers it."""
    evaluator, number = Evaluator(one), one.number(service)
    verdict = evaluator.evaluate(Asker(number), argv, extract(argv))
    assert verdict.allowed == evaluator.checks.permissions.answers(number, argv, None)
    return "" if verdict.allowed else verdict.violations[0].rule


def test_a_grant_lets_one_service_use_them_without_any_right_on_keys() -> None:
    one = policy("grants: {ops: {commands: [KEYFENCE]}}")
    for argv in (WHOAMI, CLIENTS, BARE):
        assert broken(one, "ops", argv) == ""
        assert broken(one, "web", argv) == "command.unknown"


def test_a_subcommand_can_be_granted_alone() -> None:
    one = policy('grants: {ops: {commands: ["keyfence  whoami"]}}')
    assert broken(one, "ops", WHOAMI) == ""
    assert broken(one, "ops", CLIENTS) == broken(one, "ops", BARE) == "command.unknown"


def test_what_all_services_are_allowed_can_be_forbidden_by_subcommand() -> None:
    one = policy('commands: {allow: [KEYFENCE], forbid: ["KEYFENCE SHOW"]}')
    for service in ("web", "ops", "unknown"):
        assert broken(one, service, WHOAMI) == ""
        assert broken(one, service, CLIENTS) == "command.unknown"
    one = policy('commands: {allow: ["KEYFENCE SHOW"], forbid: [KEYFENCE]}')
    assert broken(one, "web", CLIENTS) == ""
    assert broken(one, "web", WHOAMI) == "command.unknown"


def test_a_star_does_not_grant_them() -> None:
    one = policy('grants: {every: {commands: "*", keys: "*", channels: "*"}}')
    verdict = Evaluator(one).evaluate(Asker(one.number("every")), WHOAMI, extract(WHOAMI))
    assert verdict.allowed, "as any unknown command, it goes to Redis"
    assert not Evaluator(one).checks.permissions.answers(one.number("every"), WHOAMI, None)


def test_a_lapsed_grant_may_end_them() -> None:
    one = policy("grants: {ops: {commands: [KEYFENCE], until: 2001-01-01, on_expiry: refuse}}")
    day = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC).timestamp()
    for now, allowed in ((day - 1, True), (day + 2 * 86_400, False)):
        evaluator = Evaluator(one, lambda now=now: now)
        assert evaluator.evaluate(Asker(one.number("ops")), WHOAMI, extract(WHOAMI)).allowed is allowed
        assert evaluator.checks.permissions.answers(one.number("ops"), WHOAMI, None) is allowed


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("commands: {allow: [KEYFENSE]}", "did you mean KEYFENCE"),
        ("keys: {a: {key: 'shop:a', commands: {forbid: [KEYFENCE]}}}", "'KEYFENCE' is not a command"),
    ],
)
def test_a_name_that_cannot_be_meant_is_a_fault(lines: str, message: str) -> None:
    with pytest.raises(FileError) as fault:
        policy(lines)
    assert message in str(fault.value.diagnostics[0])


def test_explain_names_the_command_and_offers_the_grant() -> None:
    granted = policy("grants: {ops: {commands: [KEYFENCE]}}")
    assert explain(granted, "ops", CLIENTS)["command"] == "KEYFENCE SHOW"
    (remedy,) = explain(granted, "web", CLIENTS)["remedies"]
    assert remedy["add"] == {"grants": {"web": {"commands": ["KEYFENCE"]}}}
    assert explain(policy("grants: {web: {commands: [KEYFENCE]}}"), "web", CLIENTS)["verdict"] == "allow"
