from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from keyfence.findings.proof.basis import ON_KEYS, Described, described
from keyfence.findings.proof.changes import Changes
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.command_evidence import ANYTHING, CARRIED, NOWHERE, REACH, SCRIPTS
from keyfence.policy.loading.load import parse_policy

POLICY = """
policy: shop
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9]+", no: "[0-9]+"}
scopes: {shop: {prefix: "shop:", writers: [orders], readers: [billing], unregistered: allow}}
keys:
  order: {key: "shop:order:<id>", type: hash, ttl: {max: 2h}}
  log: {key: "shop:log:<id>", type: string}
"""
ORDER, LOG, SCOPE = "entry shop:order:<id>", "entry shop:log:<id>", "scope shop:…"


def basis(text: str, rules: Sequence[ModeRule] = (), waivers: Sequence[Waiver] = ()) -> Described:
    policy = parse_policy(text)
    found: Described = json.loads(json.dumps(described(policy, Modes(rules, policy.services, waivers))))
    return found


def changed(old: str, new: str, part: str, service: str = "orders") -> dict[str, str]:
    """By rule: why it may answer otherwise."""
    changes = Changes(basis(old), basis(new))
    return {rule: one.why for one in changes.of_part(service, part) for rule in one.rules}


def test_a_policy_is_not_a_change_of_itself() -> None:
    same = Changes(basis(POLICY), basis(POLICY))
    for part in (ORDER, LOG, SCOPE, NOWHERE, ANYTHING, REACH, SCRIPTS, CARRIED + ORDER):
        assert list(same.of_part("orders", part)) == []
    assert same.of_rule("orders", "scope.read") == ""
    assert same.keeps("order")


def test_a_requirement_that_changed_changes_only_its_own_rules_of_its_own_entry() -> None:
    new = POLICY.replace("ttl: {max: 2h}", "ttl: {max: 1h}")
    found = changed(POLICY, new, ORDER)
    assert found == dict.fromkeys(("ttl.required", "ttl.forbidden", "ttl.range"), "the entry order changed")
    assert changed(POLICY, new, LOG) == changed(POLICY, new, SCOPE) == {}


def test_a_right_that_changed_concerns_its_service_only() -> None:
    new = POLICY.replace('log: {key: "shop:log:<id>"', 'log: {writers: [orders], key: "shop:log:<id>"')
    assert "scope.read" in changed(POLICY, new, LOG, "billing")
    assert changed(POLICY, new, LOG, "orders") == {}
    assert "scope.read" in changed(
        POLICY, new, CARRIED + LOG, "orders"
    )  # others may read what it moves there


def test_a_new_entry_changes_what_was_seen_in_its_scope() -> None:
    new = POLICY + '  cart: {key: "shop:cart:<no>", type: string, ttl: none}\n'
    found = changed(POLICY, new, SCOPE)
    assert found["ttl.forbidden"] == "the entry cart is new"
    assert "scope.write" in found  # of a malformed key of it, which has no writers
    assert changed(POLICY, new, ORDER) == {}


def test_an_entry_that_is_gone_or_has_other_keys_changes_all_rules_on_its_keys() -> None:
    gone = changed(POLICY, POLICY.replace('  log: {key: "shop:log:<id>", type: string}\n', ""), LOG)
    other = changed(POLICY, POLICY.replace('id: "[a-z0-9]+"', 'id: "[a-z]+"'), LOG)
    assert gone.keys() == other.keys() == ON_KEYS
    assert (gone["scope.read"], other["scope.read"]) == ("the entry log is gone", "the entry log changed")


def test_a_renamed_entry_changes_nothing() -> None:
    new = POLICY.replace("  log:", "  journal:")
    assert changed(POLICY, new, LOG) == {}


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ("commands: {forbid: [GET]}\n", "command.forbidden"),
        ("databases: [0]\n", "database.forbidden"),
        ("channels: {news: {channel: 'shop:news', publishers: [orders]}}\n", "channel.write"),
        ("grants: {orders: {commands: [DEL], keys: ['shop:*'], reason: x}}\n", "scope.write"),
    ],
)
def test_what_holds_for_every_command_of_a_service_changes_its_rule(more: str, rule: str) -> None:
    changes = Changes(basis(POLICY), basis(POLICY + more))
    assert changes.of_rule("orders", rule)
    assert not changes.of_rule("orders", "key.length") or "grants" in more


def test_a_waiver_that_is_gone_and_a_rule_that_was_disabled_prove_nothing() -> None:
    waiver = Waiver("orders", "scope.write", "log")
    with_waiver, plain = basis(POLICY, waivers=[waiver]), basis(POLICY)
    disabled = basis(POLICY, [ModeRule("disabled", "scope.write", "orders")])
    assert Changes(with_waiver, plain).of_rule("orders", "scope.write")
    assert not Changes(plain, with_waiver).of_rule("orders", "scope.write")
    assert Changes(disabled, plain).of_rule("orders", "scope.write") == "the rule was disabled"
    assert not Changes(disabled, plain).of_rule("orders", "scope.read")
