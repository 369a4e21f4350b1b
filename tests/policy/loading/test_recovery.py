"""The faults that `check` reports for a file with several kinds of faults, without those that only follow."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.policy.loading.recovery import Recovered
from keyfence.policy.source.yaml import Source
from tests.policy.cases import POLICIES

HEAD = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}"}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
"""


def errors(text: str) -> list[str]:
    found = Recovered(Source("f", HEAD + text, keep_going=True)).errors
    return [str(one).removeprefix("f:").replace(" error:", "") for one in found]


def test_a_malformed_part_hides_no_other_fault() -> None:
    assert errors('colour: red\nkeys: {k: {key: "b:<id>", readers: one}, l: {key: "a:<idd>"}}\n') == [
        "6:1: unknown key 'colour'; did you mean cluster?",
        "7:17: 'b:<id>' is outside the policy's claims (a:); list 'b:' under claims too",
        "7:51: 'a:<idd>': placeholder <idd> is not declared (at offset 2); did you mean id?",
    ]


def test_a_duplicate_key_hides_no_other_fault() -> None:
    assert errors("owner: {team: a, team: b}\nshould: [nonsense]\n") == [
        "6:18: duplicate key 'team'; the first one is in line 6",
        "7:10: 'nonsense' is not a rule",
    ]


@pytest.mark.parametrize(
    "text",
    [
        'keys: {k: {type: hash}}\nlegacy: {keys: {"o:<id>": k}}\n',
        'keys: {k: {key: "a:<id>", key: x}}\n',
    ],
)
def test_a_fault_that_only_follows_is_not_reported(text: str) -> None:
    assert len(errors(text)) == 1


def test_names_of_a_malformed_section_are_not_reported_as_unknown() -> None:
    text = 'keys: {k: {key: "a:<x>", writers: [q], type: hsh}}\n'
    whole = (HEAD + text).replace("[one, two]", "one").replace('{id: "[a-z]{1,9}"}', "x")
    found = [str(one) for one in Recovered(Source("f", whole, keep_going=True)).errors]
    assert found == [
        "f:3:11: error: expected a list, not 'one'",
        "f:4:15: error: expected a mapping (name: value), not 'x'",
        "f:6:46: error: 'hsh' is not admitted here; did you mean hash?",
    ]


def test_faults_of_several_files_are_reported_together() -> None:
    one = (
        "policy: a\nclaims: ['a:']\nservices: [x]\nnonsense: 1\nkeys: {k: {key: 'a:<id>', writers: [x, w]}}\n"
    )
    two = "policy: b\nclaims: ['b:']\nservices: y\nkeys: {k: {key: 'b:k', writers: [x, y], type: hs}}\n"
    sources = [Source(name, text, keep_going=True) for name, text in (("a", one), ("b", two))]
    assert [
        f"{fault.place.file}:{fault.place.line}:{fault.place.column}" for fault in Recovered(*sources).errors
    ] == [
        "a:4:1",
        "b:3:11",
        "b:4:47",
        "a:5:17",
    ]


def test_places_stay_correct_after_list_items_are_taken_out() -> None:
    assert errors('keys: {k: {key: "a:<id>", type: [hsh, list], writers: [nobody, one, too]}}\n') == [
        "6:34: 'hsh' is not admitted here; did you mean hash?",
        "6:56: 'nobody' is not listed under services; known: one, two, unknown",
        "6:69: 'too' is not listed under services; did you mean two?",
    ]


def test_the_correct_rest_is_compiled() -> None:
    salvaged = Recovered(Source("f", HEAD + 'keys: {k: {key: "a:<id>"}, l: {key: "<none>"}}\n'))
    assert len(salvaged.errors) == 1
    assert salvaged.policy is not None
    assert [target.name for target in salvaged.policy.targets if target.kind == "entry"] == ["k"]


def test_recovery_ends_if_nothing_of_a_file_is_left() -> None:
    salvaged = Recovered(Source("f", "a: b"))
    assert salvaged.policy is None
    assert [one.message for one in salvaged.errors] == ["'policy' is missing"]


def test_a_pattern_that_multiplies_states_is_reported_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from keyfence.policy.compiler import pipeline as compiler
    from keyfence.policy.patterns.determinize import classify

    monkeypatch.setattr(compiler, "classify", lambda patterns: classify(patterns, max_states=200))
    text = 'placeholders2: x\nkeys: {k: {key: "a:<w>:b:<w2>"}, l: {key: "a:x:<id>"}}\n'
    head = HEAD.replace('id: "[a-z]{1,9}"', 'id: "[a-z]{1,9}", w: ".*a.{7}", w2: ".*b.{7}"')
    found = Recovered(Source("f", head + text)).errors
    assert [(one.place.line, one.place.column, one.message) for one in found][-1:] == [
        (
            7,
            17,
            "'a:<w>:b:<w2>' takes part in most of more than 200 states: <w>, <w2> may hold a colon; "
            "exclude it",
        )
    ]


# -- one fault gives one error


def with_one_fault(policy: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(the fault, a policy with this fault and no other)."""
    changes: list[tuple[tuple[str, ...], object]] = []
    for name in policy.get("placeholders", {}):
        changes.append((("placeholders", name), "[a"))
    for name, scope in policy.get("scopes", {}).items():
        changes.append((("scopes", name, "writers"), ["nobody"]))
        if scope["prefix"]:
            changes.append((("scopes", name, "prefix"), ""))
    for name in policy.get("keys", {}):
        changes += [(("keys", name, "key"), "a<"), (("keys", name, "type"), "heap")]
    for name, services in policy.get("bind", {}).items():
        changes += [(("bind", name, service), [""]) for service in services]
        changes += [(("bind", name), {}), (("bind", name), {"nobody": ["cosky-x"]})]
    for name in policy.get("scripts", {}):
        changes += [(("scripts", name, "sha1"), "x"), (("scripts", name, "keys"), ["<nope>"])]
    for path, value in changes:
        changed = copy.deepcopy(policy)
        part = changed
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value
        yield f"{'.'.join(path)}: {value}", changed


SHIPPED = sorted(set(POLICIES.glob("*.yaml")) - set(POLICIES.glob("*.test.yaml")))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_one_fault_gives_one_error(file: Path) -> None:
    policy = yaml.load(file.read_text(), yaml.BaseLoader)
    for what, changed in with_one_fault(policy):
        text = yaml.safe_dump(changed, sort_keys=False)
        found = Recovered(Source(str(file), text, keep_going=True)).errors
        assert len(found) == 1, (what, [one.message for one in found])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("scopes: {all: {prefix: '', writers: [one]}}", "2:24: an empty prefix covers every key"),
        ("claims: ['c:']\nscopes: {s: {prefix: 'x:', writers: [one]}}", "3:22: 'x:' is outside the policy's"),
        ("readers: [nobody]", "2:11: 'nobody' is not listed under services"),
    ],
)
def test_a_faulty_scope_causes_no_errors_in_its_entries(text: str, error: str) -> None:
    text = f"policy: p\n{text}\nservices: [one]\nkeys: {{a: {{key: a}}, b: {{key: b}}}}\n"
    found = Recovered(Source("f", text, keep_going=True)).errors
    assert len(found) == 1
    assert str(found[0]).removeprefix("f:").replace(" error:", "").startswith(error)
