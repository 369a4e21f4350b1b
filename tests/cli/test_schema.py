"""JSON Schemas for editors: they match the models, and admit every file that keyfence ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import yaml

from keyfence.cli.schema import KINDS, schema
from tests.cli.test_main import keyfence
from tests.policy.cases import POLICIES
from tests.servers import PROJECT

SHIPPED = PROJECT / "docs" / "schemas"


class Loader(yaml.SafeLoader):
    """Parses YAML as editors do: a date is text."""

    yaml_implicit_resolvers: ClassVar[Any] = {
        first: [(tag, expression) for tag, expression in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def faults(kind: str, text: str) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema(kind))
    return [f"{list(one.path)}: {one.message}" for one in validator.iter_errors(yaml.load(text, Loader))]


def kind_of(file: Path) -> str:
    if file.name.endswith(".test.yaml"):
        return "tests"
    return "policy" if file.is_relative_to(POLICIES) else "config"


FILES = [*sorted(POLICIES.rglob("*.yaml")), *sorted((PROJECT / "examples").glob("*.yaml"))]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_shipped_file_matches_its_schema(file: Path) -> None:
    assert faults(kind_of(file), file.read_text()) == []
    first = file.read_text().splitlines()[0]
    up = "../" * len(file.relative_to(PROJECT).parents[1:])
    assert first == f"# yaml-language-server: $schema={up}docs/schemas/{kind_of(file)}.json"


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schemas_match_the_models(kind: str) -> None:
    made = json.dumps(schema(kind), indent=1) + "\n"
    remedy = f"run: keyfence schema {kind} > docs/schemas/{kind}.json"
    assert (SHIPPED / f"{kind}.json").read_text() == made, remedy
    assert keyfence("schema", kind).out == made


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_valid(kind: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(kind))


HEAD = "policy: p\nservices: [one]\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("policy", HEAD + "key: {}"),
        ("policy", HEAD + "should: [nonsense]"),
        ("policy", HEAD + "cluster: maybe"),
        ("policy", HEAD + "keys: {k: {key: a, type: hsh}}".replace("type: hsh", "typ: hash")),
        ("policy", HEAD + "legacy: {until: tomorrow}"),
        ("policy", HEAD + "keys: {k: {key: a, ttl: {max: 60}}}"),
        ("policy", HEAD + "keys: {k: {key: a, max_value: much}}"),
        ("policy", HEAD + "keys: {k: {key: a, max_fields: 0}}"),
        ("config", "modes: [{mode: sometimes}]"),
        ("config", "identify: {passwords: {u: secret}}"),
        ("waivers", "waivers: [{rule: scope.read}]"),
        ("tests", "policy: p.yaml\ntests: [{service: one, comand: PING}]"),
    ],
)
def test_a_faulty_file_does_not_match_its_schema(kind: str, text: str) -> None:
    assert len(faults(kind, text)) >= 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "policy",
            HEAD + "cluster: yes\nkeys: {k: {key: a, writers: one, ttl: none, maxlen: 5, about: 12:34}}",
        ),
        (
            "policy",
            HEAD + "placeholders: {id: '[a]', t: {is: '[b]', secret: true}}\nlegacy: {until: 2027-06-30}",
        ),
        (
            "policy",
            HEAD + "keys: {k: {key: a, writers: one, max_value: 64kb, max_fields: 5}}\n"
            "scopes: {s: {prefix: b, writers: one, max_value: 512, max_members: 7}}",
        ),
        ("config", "split: [MGET, DEL]"),
        ("config", "split: MGET"),
        ("config", "split: {app: [MGET, DEL], '*': EXISTS}"),
        ("tests", "policy: p.yaml\nnow: 2030-01-01\ntests: [{service: o, command: [GET, k], after: 6s}]"),
    ],
)
def test_the_schema_admits_what_keyfence_reads(kind: str, text: str) -> None:
    assert faults(kind, text) == []


def test_fields_have_descriptions() -> None:
    made: dict[str, Any] = schema("policy")
    assert made["$defs"]["PlaceholderModel"]["properties"]["secret"]["description"].startswith("masked")
    assert "default" in made["$defs"]["TtlModel"]["properties"]
