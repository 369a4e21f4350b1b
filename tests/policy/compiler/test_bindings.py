"""Bound placeholders: owners of values, one value for each command; and keys that only scripts write."""

from __future__ import annotations

import string
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.compiled.tenants import differing
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.policy.evaluations import admits

SHA = "a" * 40
POLICY = f"""
policy: mesh
claims: ["mesh-", "old-"]
services: [app, web, admin]
bind:
  ns: {{app: ["mesh-{{one}}", "mesh-{{two}}"], web: "mesh-{{two}}", admin: ["mesh-{{sys}}"]}}
placeholders: {{id: "[a-z]{{1,8}}"}}
scopes: {{space: {{prefix: "<ns>:", writers: [app, admin], readers: [web]}}}}
keys:
  item: {{key: "<ns>:item:<id>"}}
  note: {{key: "<ns>:note:<id>", written_by: [put, bump]}}
  index: {{key: "<ns>:index", writers: [web], written_by: put}}
legacy: {{allow: [read], keys: {{"old-<ns>:<id>": item}}}}
channels: {{items: {{channel: "<ns>:item:<id>", publishers: [app], subscribers: [web, app]}}}}
scripts:
  put: {{sha1: {SHA}, keys: ["<ns>"], writes: ["<ns>:note:<ARGV.1>", "<ns>:index"], reads: ["<ns>:item:*"]}}
functions:
  bump: {{keys: 1}}
"""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(POLICY))


def rules(evaluator: Evaluator, service: str, command: str) -> list[str]:
    argv = [word.encode() for word in command.split()]
    verdict = evaluator.decide(evaluator.policy.number(service), argv)
    return [violation.rule for violation in verdict.violations]


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("app", "SET mesh-{one}:item:a 1", []),
        ("app", "SET mesh-{two}:item:a 1", []),
        ("app", "SET mesh-{sys}:item:a 1", ["scope.write"]),
        ("admin", "SET mesh-{sys}:item:a 1", []),
        ("admin", "GET mesh-{one}:item:a", ["scope.read"]),
        ("web", "GET mesh-{two}:item:a", []),
        ("web", "GET mesh-{one}:item:a", ["scope.read"]),
        ("web", "SET mesh-{two}:item:a 1", ["scope.write"]),
        ("app", "GET mesh-{three}:item:a", ["key.format"]),
        ("app", "GET mesh-{one}:item:A", ["key.format"]),
        ("web", "GET mesh-{one}:item:A", ["scope.read", "key.format"]),
        ("app", "GET mesh-{one}:other", ["key.unregistered"]),
        ("admin", "GET mesh-{one}:other", ["scope.read", "key.unregistered"]),
        # A legacy form has the rights of its value.
        ("web", "GET old-mesh-{two}:a", []),
        ("web", "GET old-mesh-{one}:a", ["key.legacy"]),
        # Channels too.
        ("web", "SUBSCRIBE mesh-{two}:item:a", []),
        ("web", "SUBSCRIBE mesh-{one}:item:a", ["channel.read"]),
        ("app", "PSUBSCRIBE mesh-{one}:item:*", []),
        ("web", "PSUBSCRIBE mesh-{one}:item:*", ["channel.read"]),
        ("app", "SCAN 0 MATCH mesh-{one}:item:*", []),
        ("app", "SCAN 0 MATCH mesh-{sys}:item:*", ["scan.scope"]),
        ("app", "SCAN 0 MATCH mesh-*", ["scan.scope"]),
    ],
)
def test_a_value_belongs_to_its_services(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, command) == broken


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        ("MGET mesh-{one}:item:a mesh-{one}:item:b", []),
        ("MGET mesh-{one}:item:a mesh-{two}:item:b", ["key.format"]),
        ("RENAME mesh-{two}:item:a mesh-{one}:item:a", ["key.format"]),
        (f"EVALSHA {SHA} 1 mesh-{{one}} a", []),
        (f"EVALSHA {SHA} 1 mesh-{{sys}} a", ["scope.read", "scope.write", "scope.write"]),
        (f"EVALSHA {SHA} 1 mesh-{{three}} a", ["script.keys", "scope.read", "scope.write", "scope.write"]),
    ],
)
def test_a_bound_placeholder_has_one_value_within_a_command(
    evaluator: Evaluator, command: str, broken: list[str]
) -> None:
    found = rules(evaluator, "app", command)
    if command.startswith("EVALSHA"):
        found = [rule for rule in found if not (rule == "scope.write" and "{one}" in command)]
    assert found == broken


def test_the_message_names_both_values(evaluator: Evaluator) -> None:
    argv = [b"MGET", b"mesh-{one}:item:a", b"mesh-{two}:item:b"]
    (violation,) = evaluator.decide(0, argv).violations
    assert violation.message == "MGET mesh-{two}:item:b has the ns mesh-{two}, an earlier key mesh-{one}"
    assert violation.position == 2


def test_in_a_cluster_mixed_values_are_a_violation_of_slot_cross() -> None:
    evaluator = Evaluator(parse_policy(POLICY + "cluster: true\n"))
    assert rules(evaluator, "app", "MGET mesh-{one}:item:a mesh-{two}:item:b") == ["slot.cross"]


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("app", "GET mesh-{one}:note:a", []),
        ("app", "SET mesh-{one}:note:a 1", ["scope.write"]),
        ("app", "DEL mesh-{one}:note:a", ["scope.write"]),
        ("app", "FCALL bump 1 mesh-{one}:note:a", []),
        ("web", "FCALL bump 1 mesh-{two}:note:a", ["scope.write"]),
        ("web", "SADD mesh-{two}:index a", ["scope.write"]),
        ("web", "EVAL nobody's 1 mesh-{two}:index", ["script.unregistered", "scope.write"]),
    ],
)
def test_only_the_listed_scripts_write_keys_with_written_by(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    assert rules(evaluator, service, command) == broken


def test_the_hint_names_the_scripts(evaluator: Evaluator) -> None:
    (violation,) = evaluator.decide(0, [b"DEL", b"mesh-{one}:note:a"]).violations
    assert violation.message == "app may not DEL mesh-{one}:note:a: only scripts write it"
    assert violation.hint == "it is written by bump, put"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bind: {ns: {nix: [a]}}", "2:13: error: 'nix' is not listed under services; known: one, unknown"),
        ("bind: {id: {one: [a]}}", "2:8: error: the placeholder id is declared already; choose another name"),
        ("bind: {scope: {one: [a]}}", "2:8: error: the placeholder scope is declared already"),
        ("bind: {ns: {}}", "2:8: error: no service has a value of <ns>"),
        ("bind: {ns: {one: ['']}}", "2:19: error: an empty value would bind every key; write the value"),
        (
            f"keys: {{k: {{key: 'a:k', writers: one, written_by: pt}}}}\nscripts: {{put: {{sha1: {SHA}}}}}",
            "2:50: error: 'pt' is registered under neither scripts nor functions; did you mean put?",
        ),
    ],
)
def test_a_fault_of_a_binding_is_reported_at_its_place(text: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(f'policy: p\n{text}\nservices: [one]\nplaceholders: {{id: "[a-z]"}}\n', "p.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "keys: {k: {key: 'p:<ns...>', writers: one}}",
        "keys: {k: {key: 'p:<ns...>:k', writers: one}}",
        "channels: {c: {channel: 'p:<ns...>', publishers: one}}",
        "keys: {k: {key: 'p:k', writers: one}}\nlegacy: {keys: {'old:<ns...>': k}}",
        "keys: {k: {key: 'p:k', writers: one}}\ninstead: {'old:<ns...>': k}",
    ],
)
def test_a_bound_placeholder_of_several_segments_is_an_error(line: str) -> None:
    text = f"policy: p\nclaims: ['p:']\nservices: [one, two]\nbind: {{ns: {{one: [a], two: [b]}}}}\n{line}\n"
    with pytest.raises(FileError, match=r"keys do not show whose value <ns\.\.\.> stands for; write <ns>"):
        parse_policy(text)


def test_a_key_may_not_stand_for_too_many_patterns() -> None:
    values = ", ".join(f"v{number}" for number in range(40))
    text = f"policy: p\nservices: [a]\nbind: {{x: {{a: [{values}]}}, y: {{a: [{values}]}}}}\n"
    with pytest.raises(FileError, match="stands for more than 1000 patterns; bind fewer values in one key"):
        parse_policy(text + "keys: {k: {key: 'k:<x>:<y>', writers: a}}\n")


words = st.text(string.ascii_lowercase + "{}<>\\", min_size=1, max_size=5)


@given(st.lists(words, min_size=2, max_size=4, unique=True), st.data())
def test_a_service_has_rights_only_on_keys_with_its_own_values(
    values: list[str], data: st.DataObject
) -> None:
    """Compared with a naive reading: a service may use keys with its own values, and no others."""
    mine = data.draw(st.sets(st.sampled_from(values), min_size=1))
    listed = ", ".join(f"'{value}'" for value in sorted(mine))
    others = ", ".join(f"'{value}'" for value in values)
    policy = parse_policy(
        f"policy: p\nservices: [me, all]\nbind: {{ns: {{me: [{listed}], all: [{others}]}}}}\n"
        "keys: {k: {key: '<ns>/k', writers: [me, all]}}\n"
    )
    evaluator = Evaluator(policy)
    for value in values:
        argv = [b"GET", value.encode() + b"/k"]
        assert (evaluator.decide(0, argv).violations == ()) == (value in mine)
        assert evaluator.decide(1, argv).violations == ()
    for one, other in combinations(values, 2):
        argv = [b"MGET", one.encode() + b"/k", other.encode() + b"/k"]
        assert evaluator.decide(1, argv).violations
        assert not admits(evaluator, 1, argv)


@given(st.lists(st.lists(st.tuples(st.sampled_from("xy"), st.binary(max_size=1)), max_size=2), max_size=5))
def test_the_first_differing_value_is_reported(pairs: list[list[tuple[str, bytes]]]) -> None:
    first: dict[str, bytes] = {}
    seen: dict[str, bytes] = {}
    for one in pairs:
        found = differing(first, tuple(one))
        for name, value in one:
            if seen.setdefault(name, value) != value:
                assert found == (name, value, seen[name])
                return
        assert found is None


VERSIONS = """
policy: two
services: [app, old]
placeholders: {id: "[a-z]+"}
scopes: {v1: {prefix: "v1:", writers: [app], readers: [old]}, v2: {prefix: "v2:", writers: [app]}}
keys:
  item: {key: "v1:item:<id>", type: string}
  item-v2: {key: "v2:item:<id>", type: hash, replaces: item, ALLOW}
"""


@pytest.mark.parametrize(
    ("allow", "service", "command", "broken"),
    [
        ("allow: [read, write, delete]", "app", "SET v1:item:a 1", []),
        ("allow: [read, write, delete]", "app", "HSET v2:item:a f 1", []),
        ("allow: [read, write, delete]", "app", "HGETALL v1:item:a", ["type.mismatch"]),
        ("allow: [read, delete]", "app", "SET v1:item:a 1", ["key.legacy"]),
        ("allow: [read, delete]", "app", "GET v1:item:a", []),
        ("allow: [read, delete]", "app", "DEL v1:item:a", []),
        ("allow: [read, delete]", "old", "GET v1:item:a", []),
        ("allow: [read, delete]", "old", "DEL v1:item:a", ["scope.write"]),
        ("allow: [read, delete]", "old", "HGETALL v2:item:a", ["scope.read"]),
        ("about: x", "app", "SET v1:item:a 1", ["key.legacy"]),
        ("about: x", "app", "GET v1:item:a", []),
        ("allow: []", "app", "GET v1:item:a", ["key.legacy"]),
        ("allow: [write]", "app", "SET v1:item:a 1", []),
        ("allow: [write]", "app", "GETDEL v1:item:a", ["key.legacy"]),
    ],
)
def test_two_versions_stand_side_by_side(allow: str, service: str, command: str, broken: list[str]) -> None:
    assert rules(Evaluator(parse_policy(VERSIONS.replace("ALLOW", allow))), service, command) == broken


def test_the_old_version_s_hint_is_the_new_one() -> None:
    evaluator = Evaluator(parse_policy(VERSIONS.replace("ALLOW", "about: x")))
    (violation,) = evaluator.decide(0, [b"SET", b"v1:item:a", b"1"]).violations
    assert violation.message == "app may not SET v1:item:a, which is replaced"
    assert violation.hint == "use v2:item:<id>"


@pytest.mark.parametrize("name", ["itm", "item-v2"])
def test_an_entry_replaces_another_entry(name: str) -> None:
    text = VERSIONS.replace("replaces: item, ALLOW", f"replaces: {name}")
    with pytest.raises(FileError, match=f"'{name}' is not another entry under keys; did you mean item?"):
        parse_policy(text)
