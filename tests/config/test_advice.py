"""Warnings about settings that work against the policy in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.config.advice import advice, hidden_modes, unread_sessions
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.loading.load import parse_policy

POLICY = """policy: p
services: [web, api, mail, batch, idle]
claims: ["a:"]
scopes: {a: {prefix: "a:", writers: [web]}}
"""
ON_A_CLUSTER = parse_policy(POLICY + "cluster: true\n")
UPSTREAM = 'policy: p\nupstream: {cluster: ["a:6379"], expose: single}\n'


def texts(folder: Path, text: str) -> list[str]:
    file = folder / "keyfence.yaml"
    file.write_text(UPSTREAM + text)
    return [one.message for one in advice(load_settings(str(file), Overrides()), ON_A_CLUSTER)]


def test_enforcing_a_rule_against_what_is_sent_in_parts_is_told(tmp_path: Path) -> None:
    found = texts(tmp_path, "split: {web: MGET}\nmodes: [{mode: enforce}]\n")
    assert found == [
        "commands of web may be sent in parts, and slot.cross is enforced there, so keyfence refuses them; "
        "write {mode: observe, rule: slot.cross, service: web} at the top of modes, or take it out of split"
    ]
    (found,) = texts(tmp_path, "split: {'*': MGET, idle: []}\nmodes: [{mode: enforce}]\n")
    assert found.startswith("commands of web, api, mail and 2 more may be sent in parts")
    assert "for each of them write {mode: observe, rule: slot.cross, service: NAME}" in found


@pytest.mark.parametrize(
    "text",
    [
        "split: {web: MGET}",
        "modes: [{mode: enforce}]",
        "split: {web: []}\nmodes: [{mode: enforce}]",
        "split: {web: MGET}\nmodes: [{mode: enforce, service: api}]",
        "split: {web: MGET}\nmodes: [{mode: observe, rule: slot.cross, service: web}, {mode: enforce}]",
    ],
)
def test_nothing_is_told_where_the_parts_are_sent(tmp_path: Path, text: str) -> None:
    assert texts(tmp_path, text) == []


def test_nothing_is_told_where_the_policy_allows_several_hash_slots(tmp_path: Path) -> None:
    file = tmp_path / "keyfence.yaml"
    file.write_text(UPSTREAM + "split: {web: MGET}\nmodes: [{mode: enforce}]")
    settings = load_settings(str(file), Overrides())
    assert advice(settings, parse_policy(POLICY)) == []
    assert advice(settings, None) == []


def hidden(folder: Path, text: str) -> list[str]:
    file = folder / "keyfence.yaml"
    file.write_text(UPSTREAM + text)
    return [str(one) for one in hidden_modes(load_settings(str(file), Overrides()))]


def test_a_line_of_modes_that_an_earlier_one_hides_is_told(tmp_path: Path) -> None:
    (found,) = hidden(tmp_path, "modes:\n- {mode: observe}\n- {mode: enforce, rule: scope.write}\n")
    assert found == (
        f"{tmp_path}/keyfence.yaml:5:3: warning: line 2 of modes never decides: line 1 matches all that it "
        "matches, and the first one that matches decides; move it up"
    )
    of_service = "{mode: observe, service: web}"
    assert hidden(tmp_path, f"modes: [{of_service}, {{mode: enforce, rule: scope.write}}]") == []
    assert hidden(tmp_path, "modes: [{mode: enforce}, {mode: enforce, rule: scope.write}]") == []


def unread(folder: Path, text: str) -> list[str]:
    file = folder / "keyfence.yaml"
    file.write_text(UPSTREAM + text)
    found = unread_sessions(load_settings(str(file), Overrides()), ON_A_CLUSTER)
    assert all(one.code == "unread-sessions" for one in found)
    return [str(one) for one in found]


def test_enforced_rights_of_sessions_that_may_pass_unread_are_told_once(tmp_path: Path) -> None:
    (found,) = unread(tmp_path, "modes:\n- {mode: enforce, rule: scope.write, service: web}\n")
    assert found == (
        f"{tmp_path}/keyfence.yaml:4:3: warning: scope.write is enforced for web, and session.opaque is not: "
        "after MULTI, SUBSCRIBE and DISCARD, every command passes unread; write {mode: enforce, "
        "rule: session.opaque, service: web} at the top of modes; without command.unknown, "
        "script.unregistered and script.keys in enforce, commands can reach keys unseen too"
    )
    (found,) = unread(tmp_path, "modes: [{mode: disabled, rule: session.opaque}, {mode: enforce}]\n")
    assert "scope.read is enforced for web, api, mail and 3 more" in found
    assert "unseen too" not in found


@pytest.mark.parametrize(
    "modes",
    [
        "[]",
        "[{mode: enforce}]",
        "[{mode: enforce, rule: ttl.range}]",
        "[{mode: enforce, rule: session.opaque}, {mode: enforce, rule: key.format, service: web}]",
    ],
)
def test_nothing_is_told_where_sessions_are_read_or_no_rights_are_enforced(
    tmp_path: Path, modes: str
) -> None:
    assert unread(tmp_path, f"modes: {modes}\n") == []
