"""The table of what an entry may require."""

from __future__ import annotations

import dataclasses

from keyfence.policy.compiled.policy import Entry
from keyfence.policy.compiled.requirements import ON_CONTENT, REQUIREMENTS, requirements_of
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.rules import PARTS, RULES, rules_with

# What an entry is called, and what follows from its requirements.
OTHERS = {"name", "text", "is_plain", "about", "written", "number", "on_content"}


def test_every_attribute_of_an_entry_is_a_requirement_or_decides_nothing() -> None:
    """A requirement without a row would be enforced and cached, and would be evidence of nothing."""
    also = {name for one in REQUIREMENTS.values() for name in one.also}
    assert {one.name for one in dataclasses.fields(Entry)} == {*REQUIREMENTS, *also, *OTHERS}


def test_an_entry_lists_the_requirements_that_it_has() -> None:
    policy = """
policy: p
services: [a]
writers: [a]
placeholders: {id: "[0-9]+"}
keys:
  all:
    key: "all:<id>"
    commands: {forbid: [SORT]}
    max_length: 100
    values: integer
    fields: {a: any}
    members: integer
    scores: "0..1"
    max_value: 1kb
    max_fields: 1
    max_members: 1
    maxlen: 5
    ttl: {max: 1h}
  none: {key: "none:<id>"}
"""
    whole, none = (one.entry for one in parse_policy(policy).targets if one.kind == "entry")
    assert whole is not None
    assert none is not None
    assert [one.item for one in requirements_of(whole)] == [one for one in REQUIREMENTS if one != "types"]
    assert whole.on_content == ON_CONTENT
    assert list(requirements_of(none)) == []
    assert none.on_content == ()


def test_the_rules_of_a_requirement_are_decided_by_its_part_of_the_policy() -> None:
    """Otherwise evidence of the rule would outlive a change of the requirement."""
    assert all(rule.parts for rule in RULES.values() if rule.stage in ("rights", "form", "type", "content"))
    for one in REQUIREMENTS.values():
        assert one.part in PARTS
        assert one.types or one.item in ("commands", "types", "max_length", "ttl")
    ttl, content, size = (set(rules_with(part)) for part in ("ttl", "content", "size"))
    assert ttl == {"ttl.required", "ttl.forbidden", "ttl.range"}
    assert content == {"field.unknown", "value.invalid"}
    assert size == {"value.size", "key.members", "stream.maxlen"}
