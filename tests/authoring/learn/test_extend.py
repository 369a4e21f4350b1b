"""Proposals that add to a policy what it lacks."""

from __future__ import annotations

import pytest

from keyfence.authoring.learn.applications import without
from keyfence.authoring.learn.extend import (
    Extension,
    applications_beside,
    as_legacy,
    extended,
    proposals_for,
)
from keyfence.authoring.learn.sections import hidden_scripts
from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.lint import check_text
from keyfence.commands.extract import extract
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.validate import validate
from keyfence.policy.source.yaml import Source
from keyfence.policy.source.yaml_edits import EditError, add_to_list, add_to_mapping
from keyfence.policy.wording.command_log import as_line
from tests.authoring.learn.test_applications import BULLMQ, CELERY, SHIPPED
from tests.authoring.learn.test_draft import evidence_of
from tests.authoring.learn.traffic import CONVENTIONS, lines_of
from tests.policy.cases import POLICIES

POLICY = """# The shop's keys.
policy: shop
claims: ["shop:"]      # all of them
services: [web, stock]
placeholders:
  id: "[a-z0-9]{1,8}"  # no colon
scopes:
  all: {prefix: "shop:", writers: [web]}

keys:
  # What a visitor buys.
  cart:
    key: "shop:cart:<id>"
    type: hash
    fields:
      items: integer   # how many
  level: {key: "shop:level:<id>", writers: stock, readers: [web]}

# Old ones.
legacy:
  keys: {"basket:<id>": cart}
"""


def extension(*commands: str, policy: str = POLICY) -> tuple[Extension, PolicyModel]:
    evidence = evidence_of(*commands)
    found, _ = proposals_for(policy, evidence)
    result = extended(policy, found, evidence)
    errors, warnings = check_text(result.text)
    assert (errors, {one.code for one in warnings} - {one.code for one in check_text(policy)[1]}) == (
        [],
        set(),
    )
    return result, validate(PolicyModel, Source("<extended>", result.text))


def test_everything_that_was_there_stays_in_its_order() -> None:
    result, _ = extension("SET shop:seen:1 x", "HSET shop:cart:c1 colour red", "stock> GET shop:cart:c1")
    kept = [line for line in POLICY.splitlines() if not line.startswith("  level")]
    lines = iter(result.text.splitlines())
    assert all(line in lines for line in kept)  # each, in this order


def test_a_kind_of_key_that_the_policy_lacks_becomes_an_entry() -> None:
    result, model = extension("SET shop:seen:1 x EX 60", "SET shop:seen:2 x EX 60")
    entry = model.keys["seen"]
    assert (entry.key, entry.type, entry.writers) == ("shop:seen:<seen>", ["string"], ["web"])
    assert [one.what for one in result.taken] == ["entry"]
    assert result.rest == []


SECRET = """policy: hb
claims: ["hb:"]
services: [web]
writers: web
placeholders: {token: {is: "[0-9a-f]{16,64}", secret: true}}
keys:
  session: {key: "hb:session:<token>"}
  seen: {key: "hb:seen", fields: {last: any}}
"""


def test_a_script_whose_sha1_is_masked_is_counted_and_not_registered() -> None:
    argv = [b"EVALSHA", b"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", b"1", b"hb:seen"]
    evidence = Evidence()
    evidence.add_command(as_line(parse_policy(SECRET), "web", argv, extract(argv), 1))
    found, _ = proposals_for(SECRET, evidence)
    assert [one.what for one in found if one.what == "script"] == []
    assert hidden_scripts(evidence) == [
        "Scripts whose SHA-1 a source masks, because it may be a secret, are left out (1 call). "
        "Register them by their text."
    ]


def test_fields_that_are_ids_become_one_pattern_and_stand_nowhere() -> None:
    ids = [f"{number * 7919:016x}" for number in range(1, 9)]
    result, model = extension(*[f"HSET hb:seen {one} 1" for one in ids], policy=SECRET)
    assert model.keys["seen"].fields == {"last": "any", "<field>": "any"}
    texts = [result.text, *(one.title for one in result.taken)]
    assert not [text for text in texts for one in ids if one in text]
    assert result.rest == []


def test_keys_outside_the_claims_bring_their_claim_and_their_service() -> None:
    _, model = extension("billing> SET bill:1 x")
    assert model.claims == ["shop:", "bill:"]
    assert model.services == ["web", "stock", "billing"]


def test_a_service_that_uses_an_entry_without_the_right_gets_it() -> None:
    _, model = extension("audit> GET shop:level:a", "web> SET shop:level:a 1")
    assert model.keys["level"].readers == ["web", "audit"]
    assert model.keys["level"].writers == ["stock", "web"]


def test_a_command_for_another_type_proposes_no_right() -> None:
    result, model = extension("audit> GET shop:cart:c1", "audit> HGETALL shop:level:a")
    assert (model.keys["cart"].readers, model.keys["level"].readers) == ([], ["web", "audit"])
    assert [(one.rule, one.command) for one in result.rest] == [
        ("scope.read", "GET"), ("type.mismatch", "GET"),
    ]  # fmt: skip


def test_a_new_right_keeps_those_of_the_scope() -> None:
    _, model = extension("stock> HGETALL shop:cart:c1")
    assert (model.keys["cart"].writers, model.keys["cart"].readers) == (["web"], ["stock"])


def test_a_right_that_a_denial_forbids_is_not_proposed_in_the_patch() -> None:
    policy = POLICY.replace("writers: [web]}", "writers: [web], deny_write: [stock]}")
    result, _ = extension("stock> DEL shop:cart:c1", policy=policy)
    assert [why for _, why in result.dropped] == ["a denial or written_by is stronger"]
    assert result.text == policy


def test_a_field_that_is_not_listed_is_added() -> None:
    _, model = extension("HSET shop:cart:c1 colour red")
    assert model.keys["cart"].fields == {"items": "integer", "colour": "any"}


def test_a_channel_and_a_script_get_sections_of_their_own() -> None:
    result, model = extension("PUBLISH news:1 x", "EVAL x 1 shop:cart:c1")
    assert model.channels["news"].publishers == ["web"]
    assert [one.keys for one in model.scripts.values()] == [1]
    assert result.rest == []


def test_keys_may_be_taken_for_a_deprecated_form_instead() -> None:
    evidence = evidence_of("HGETALL old_cart:c1", "HGETALL old_cart:c2")
    (one,), _ = proposals_for(POLICY, evidence)
    result = extended(POLICY, [as_legacy(one, "cart")], evidence)
    model = validate(PolicyModel, Source("<extended>", result.text))
    assert model.legacy.keys["old_cart:<old_cart>"].entry == "cart"
    (why,) = (why for _, why in extended(POLICY, [as_legacy(one, "nothing")], evidence).dropped)
    assert why == "nothing is not an entry of the policy"


CARTS = [f"HSET shop:cart:c{number} items 1" for number in range(9)]


def test_keys_that_seem_to_be_older_names_are_proposed_as_such() -> None:
    result, model = extension(*CARTS, *(f"HGETALL basket_of:c{number}" for number in range(9)))
    assert (list(model.keys), model.legacy.keys["basket_of:<id>"].entry) == (["cart", "level"], "cart")
    assert (model.legacy.allow, model.legacy.keys["basket:<id>"].allow) == ([], None)  # as before
    (taken,) = result.taken
    assert "as a guess: 9 commands; 9 of its values also stand in cart" in taken.title
    assert result.rest == []


def test_older_names_that_are_still_written_stay_writable() -> None:
    result, model = extension(*CARTS, *(one.replace("shop:cart", "cart") for one in CARTS))
    assert model.legacy.keys["cart:<id>"].allow == ["read", "write", "delete"]
    assert result.rest == []


def test_keys_of_an_application_are_left_to_its_policy() -> None:
    evidence = evidence_of(*BULLMQ, "SET shop:seen:1 x")
    found = applications_beside(POLICY, evidence, SHIPPED)
    assert [one.name for one in found] == ["bullmq"]
    assert "Put it into one folder with shop.yaml" in found[0].sentence("shop.yaml")
    proposals, rest = proposals_for(POLICY, without(evidence, found))
    assert ([one.name for one in proposals], rest) == (["seen"], [])


def test_an_application_whose_keys_the_policy_has_is_not_proposed() -> None:
    assert [one.name for one in applications_beside(POLICY, evidence_of(*BULLMQ), SHIPPED)] == ["bullmq"]
    keys = "bull:<name>:<id>"
    own = POLICY.replace('["shop:"]', '["shop:", "bull:"]').replace(
        "\nkeys:\n", f'\nkeys:\n  bull: {{key: "{keys}", writers: web}}\n'
    )
    own = own.replace("[a-z0-9]{1,8}", "[a-z0-9]{1,16}")
    own = own.replace("placeholders:\n", "placeholders:\n  name: mail\n")
    assert applications_beside(own, evidence_of(*BULLMQ), SHIPPED) == []


def test_a_policy_without_claims_gets_no_second_one_beside_it() -> None:
    own = POLICY.replace('claims: ["shop:"]      # all of them\n', "")
    assert applications_beside(own, evidence_of(*CELERY), SHIPPED) == []
    assert [one.name for one in applications_beside(POLICY, evidence_of(*CELERY), SHIPPED)] == ["celery"]


def test_what_has_no_proposal_is_listed() -> None:
    _, rest = proposals_for(POLICY, evidence_of("KEYS shop:*", "FLUSHALL"))
    assert {one.rule for one in rest} == {"command.forbidden"}


def test_ids_of_proposals_stay_the_same() -> None:
    ids = [[one.id for one in proposals_for(POLICY, evidence_of("SET shop:seen:1 x"))[0]] for _ in range(2)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_policy_that_people_wrote_lacks_nothing_of_its_own_traffic(convention: str) -> None:
    evidence = Evidence()
    for line in lines_of(convention):
        evidence.add_command(line)
    found, _ = proposals_for((POLICIES / f"{convention}.yaml").read_text(), evidence)
    assert [one.title for one in found if one.what == "entry"] == []


# -- the edits


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: [x]  # c\n", "a: [x, y]  # c\n"),
        ("a: []\n", "a: [y]\n"),
        ("a: x  # c\n", "a: [x, y]  # c\n"),
        ("a:\n  - x  # c\nb: 1\n", "a:\n  - x  # c\n  - y\nb: 1\n"),
        ("a:\n- x\nb: 1\n", "a:\n- x\n- y\nb: 1\n"),
        ("b: 1\n# end\n", "b: 1\na: [y]\n# end\n"),
    ],
)
def test_an_item_is_added_to_any_form_of_list(text: str, after: str) -> None:
    assert add_to_list(text, ["a"], "y") == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("m:\n  a: 1  # c\n\n# next\nn: 2\n", "m:\n  a: 1  # c\n  k: v\n\n# next\nn: 2\n"),
        ("m: {a: 1}  # c\n", "m: {a: 1, k: v}  # c\n"),
        ("m: {}\n", "m: {k: v}\n"),
        ("m:\n  a:\n    b: [1,\n      2]\nn: 2\n", "m:\n  a:\n    b: [1,\n      2]\n  k: v\nn: 2\n"),
        ("n: 2", "n: 2\nm:\n  k: v"),
    ],
)
def test_a_key_is_added_to_any_form_of_mapping(text: str, after: str) -> None:
    assert add_to_mapping(text, ["m"], "k", ["v"]) == after


def test_lines_are_added_in_block_or_flow_style() -> None:
    assert add_to_mapping("m:\n    a: 1\n", ["m"], "k", ["x: 1", "y: 2"], ["# c"]) == (
        "m:\n    a: 1\n    # c\n    k:\n      x: 1\n      y: 2\n"
    )
    assert add_to_mapping("m: {a: 1}\n", ["m"], "k", ["x: 1", "y: 2"]) == "m: {a: 1, k: {x: 1, y: 2}}\n"


def test_what_cannot_be_edited_is_an_error() -> None:
    with pytest.raises(EditError, match="a is not a list"):
        add_to_list("a: {b: 1}\n", ["a"], "y")
    with pytest.raises(EditError, match="a is not a mapping"):
        add_to_mapping("a: [1]\n", ["a"], "k", ["v"])
