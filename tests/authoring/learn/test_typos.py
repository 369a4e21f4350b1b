"""Words that look mistyped, and those that do not."""

from __future__ import annotations

import pytest

from keyfence.authoring.learn.draft import draft, suspects
from keyfence.authoring.learn.extend import extended, proposals_for
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import Source
from tests.authoring.learn.test_draft import evidence_of

ORDERS = [f"HSET hb:order:{number} state new" for number in range(40)]


def found(*commands: str) -> list[tuple[str, str]]:
    """The words that look mistyped, each with the one that was meant."""
    return [(one.word, one.nearest) for one in suspects(evidence_of(*ORDERS, *commands))]


@pytest.mark.parametrize(
    ("command", "typo"),
    [
        ("HSET bh:order:1 state new", ("bh:", "hb:")),
        ("HSET hbb:order:1 state new", ("hbb:", "hb:")),
        ("HSET hb{order}:1 state new", ("hb{", "hb:")),
        ("SET nb:quote:1 x", ("nb:", "hb:")),  # another kind, by the same service
        ("stock> HSET hv:order:1 state new", ("hv:", "hb:")),  # another service, with the same kind
        ("HSET hb:ordre:1 state new", ("ordre", "order")),
        ("HSET hb:orders:1 state new", ("orders", "order")),
        ("PUBLISH bh:order x", ("bh:", "hb:")),
        ("HSET HB:order:1 state new", ("HB:", "hb:")),  # only in case
        ("HSET hb:Order:1 state new", ("Order", "order")),
    ],
)
def test_a_rare_word_one_edit_from_a_frequent_one_looks_mistyped(command: str, typo: tuple[str, str]) -> None:
    assert found(command) == [typo]


@pytest.mark.parametrize(
    "commands",
    [
        [f"SET hc:health:{number} x" for number in range(40)],  # as frequent
        ["stock> SET hc:health:1 x"],  # another service, with other keys
        ["SET cache:order:1 x"],  # more than one edit
        ["SADD hb:orders 1"],  # another type, without an id
        ["stock> HSET hb:ordre:1 state new"],  # a service that does not use the frequent word
        ["HSET hb2:order:1 state new"],  # another number
    ],
)
def test_other_words_do_not(commands: list[str]) -> None:
    assert found(*commands) == []


TENANTS = ("acme", "globex")
TAGGED = [f"HSET hb:{{{tenant}}}:cart:{number} a 1" for tenant in TENANTS for number in range(20)]


@pytest.mark.parametrize(
    "commands",
    [
        ["HSET hb:acme:cart:1 a 1", "HSET hb:globex:cart:2 a 1"],
        ["stock> HGETALL hb:acme:cart:1"],  # another service
    ],
)
def test_rare_keys_without_the_braces_of_frequent_ones_look_mistyped(commands: list[str]) -> None:
    found = suspects(evidence_of(*TAGGED, *commands, "SET hb:flags 1"))
    assert [(one.word, one.nearest) for one in found] == [("hb:<…>:cart:<…>", "hb:{<…>}:cart:<…>")]
    assert "hb:flags" not in found[0].names


@pytest.mark.parametrize(
    "commands",
    [
        ["HSET hb:stock:cart:1 a 1"],  # no tenant
        ["HSET hb:acme:order:1 a 1"],  # nothing like it has braces
        ["HSET hb:{acme}:cart:next a 1"],  # the same braces
        ["HSET hb:{acme:cart}:1 a 1"],  # other braces
        [f"HSET hb:acme:cart:{number} a 1" for number in range(11)],  # too many
        [f"HGETALL hb:acme:cart:{number}" for number in range(6)],  # only read, as older names are
    ],
)
def test_other_keys_without_braces_do_not(commands: list[str]) -> None:
    assert suspects(evidence_of(*TAGGED, *commands)) == []


def test_keys_with_wrong_case_or_braces_become_no_claim_scope_or_entry() -> None:
    wrong = ["HSET HB:{acme}:cart:1 a 1", "HSET hb:acme:cart:1 a 1", "HSET hb:globex:cart:1 a 1"]
    drafted = draft(evidence_of(*TAGGED, *wrong, "SET hb:flags 1"))
    model = validate(PolicyModel, Source("<draft>", drafted.text))
    assert (model.claims, list(model.keys)) == (["hb:"], ["flags", "cart"])
    assert [scope.prefix for scope in model.scopes.values()] == ["hb:"]
    assert {one.mistake for one in drafted.refused} == {"typo of hb:", "typo of hb:{<…>}:cart:<…>"}


def test_what_looks_mistyped_gets_no_claim_no_scope_and_no_entry_and_is_said() -> None:
    drafted = draft(evidence_of(*ORDERS, "HSET bh:order:1 state new"))
    model = validate(PolicyModel, Source("<draft>", drafted.text))
    assert (model.claims, list(model.scopes), list(model.keys)) == (["hb:"], ["hb"], ["order"])
    assert any("Keys with bh: are left out" in note for note in drafted.notes)
    assert [one.mistake for one in drafted.refused] == ["typo of hb:"]


def test_somebody_may_say_that_a_word_is_right() -> None:
    drafted = draft(
        evidence_of(*ORDERS, "HSET bh:order:1 state new"), is_right=lambda typo: typo.word == "bh:"
    )
    assert validate(PolicyModel, Source("<draft>", drafted.text)).claims == ["bh:", "hb:"]
    assert drafted.refused == []


def test_a_policy_is_not_extended_by_what_looks_mistyped() -> None:
    policy = 'policy: hb\nclaims: ["hb:"]\nservices: [web]\nwriters: web\nkeys: {a: {key: "hb:a"}}\n'
    evidence = evidence_of("SET bh:a x", "SET hb:b x")
    proposals, _ = proposals_for(policy, evidence)
    result = extended(policy, proposals, evidence)
    assert [one.name for one in result.taken] == ["b"]
    ((left, why),) = result.dropped
    assert (left.name, why) == ("a-2", "it looks like a typo of hb:, and --interactive asks about it")
