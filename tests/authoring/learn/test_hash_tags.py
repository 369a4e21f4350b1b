"""Where hash tags are proposed, and what the policy looks like with them."""

from __future__ import annotations

import shlex

from keyfence.authoring.learn.hash_tags import Pairs, Proposal, Tag, propose, written
from keyfence.commands.extract import extract
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.policy.compiled.hash_tags import tagged
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.wording.command_log import as_line, from_line

TEXT = """policy: p
claims: ["a:"]
services: [one]
placeholders: {id: "[a-z0-9]+", user: "[a-z0-9]+", item: "[a-z0-9]+"}
scopes: {a: {prefix: "a:", writers: [one]}}
keys:
  cart: {key: "a:cart:<user>", type: hash}   # of one user
  order: {key: "a:order:<user>:<id>", type: hash}
  line:
    key: a:line:<id>:<item>
    type: hash
  stock: {key: "a:stock:{<item>}", type: string}
"""
POLICY = parse_policy(TEXT)
TEXTS = {one.entry.name: one.entry.written for one in POLICY.targets if one.entry is not None}


def pairs_of(*commands: str) -> Pairs:
    """What a command log with these commands shows; a number before a command says how often."""
    pairs = Pairs()
    for command in commands:
        number, _, rest = command.partition(" ")
        argv = [word.encode() for word in shlex.split(rest)]
        pairs.add_command(POLICY, from_line(as_line(POLICY, "one", argv, extract(argv), int(number))))
    return pairs


def found(*commands: str) -> Proposal:
    return propose(TEXTS, pairs_of(*commands))


def tags(*commands: str) -> dict[str, str]:
    return {one.entry: one.after for one in found(*commands).tags}


def test_the_placeholder_that_keys_have_in_common_is_tagged_in_both() -> None:
    one = found("9 DEL a:cart:ann a:order:ann:7", "2 DEL a:cart:7 a:order:7:7")
    assert {tag.entry: tag.after for tag in one.tags} == {
        "cart": "a:cart:{<user>}",
        "order": "a:order:{<user>}:<id>",
    }
    assert one.left == []


def test_a_hash_tag_that_is_there_decides_for_the_others() -> None:
    assert tags("9 DEL a:line:7:lamp a:stock:{lamp}") == {"line": "a:line:<id>:{<item>}"}


def test_a_key_has_one_hash_tag_and_what_is_seen_most_decides() -> None:
    one = found("9 DEL a:cart:ann a:order:ann:7", "2 DEL a:order:ann:7 a:line:7:lamp")
    assert {tag.entry: tag.after for tag in one.tags} == {
        "cart": "a:cart:{<user>}",
        "order": "a:order:{<user>}:<id>",
    }
    assert one.left == [
        "2 uses of line and order stay: a key has one hash tag, and order at <user> has it elsewhere"
    ]


def test_what_no_hash_tag_helps_is_listed() -> None:
    one = found("3 DEL a:cart:ann a:cart:bob", "1 DEL a:cart:ann b:7")
    assert one.tags == []
    assert one.left == [
        "3 uses of cart stay: no placeholder has the same value in both; send a command for each key",
        "1 use of cart with keys of no entry stay: register these first",
    ]


def test_a_placeholder_with_few_values_is_no_hash_tag_if_another_one_does() -> None:
    both = [f"DEL a:order:{'ab'[user % 2]}:{user} a:line:{user}:{'ab'[user % 2]}" for user in range(20)]
    # Only two of the twenty commands more have the item in common.
    item = ["DEL a:order:a:1 a:line:2:a", "DEL a:order:b:3 a:line:4:b"]
    one = found(*(f"1 {command}" for command in (*both, *item)))
    assert {tag.entry: tag.after for tag in one.tags} == {
        "line": "a:line:{<id>}:<item>",
        "order": "a:order:<user>:{<id>}",
    }
    assert one.left == ["2 uses of line and order stay: their values differ there"]
    assert not any(tag.has_few_values for tag in one.tags)


def test_a_placeholder_with_few_values_is_proposed_as_such_if_there_is_no_other() -> None:
    one = found(*(f"9 DEL a:cart:{user} a:order:{user}:7" for user in ("ann", "bob")))
    assert [(tag.entry, tag.values, tag.has_few_values) for tag in one.tags] == [
        ("cart", 2, True),
        ("order", 2, True),
    ]


def test_two_placeholders_of_one_entry_are_no_common_place() -> None:
    one = found("9 DEL a:order:ann:bob a:order:bob:7")
    assert one.tags == []
    assert [why.partition(":")[0] for why in one.left] == ["9 uses of order stay"]
    assert tags("9 DEL a:order:ann:bob a:order:bob:7", "2 DEL a:order:ann:1 a:order:ann:2") == {
        "order": "a:order:{<user>}:<id>"
    }


def test_keys_that_share_a_hash_slot_need_nothing() -> None:
    assert not pairs_of("9 DEL a:cart:ann a:cart:ann", "9 GET a:cart:ann").seen


def test_the_policy_gets_the_tags_and_keeps_the_old_forms_and_every_comment() -> None:
    proposal = found("9 DEL a:cart:ann a:order:ann:7", "2 DEL a:line:7:lamp a:stock:{lamp}")
    text, taken, dropped = written(TEXT, proposal.tags)
    assert ({tag.entry for tag in taken}, dropped) == ({"cart", "order", "line"}, [])
    assert "# of one user" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    after = parse_policy(text)
    one, other = b"a:cart:{ann}", b"a:order:{ann}:7"
    assert hash_slot(one) == hash_slot(other)
    kinds = {key: after.target(key) for key in (one, other, b"a:cart:ann", b"a:line:7:{lamp}")}
    shown = {
        key: target and (target.kind, target.entry and target.entry.name) for key, target in kinds.items()
    }
    assert shown == {
        one: ("entry", "cart"),
        other: ("entry", "order"),
        b"a:cart:ann": ("legacy", "cart"),
        b"a:line:7:{lamp}": ("entry", "line"),
    }


def test_a_key_that_cannot_be_changed_is_left_with_the_reason() -> None:
    proposal = found("9 DEL a:cart:ann a:order:ann:7")
    moved = TEXT.replace('"a:cart:<user>"', '"a:basket:<user>"')
    _, taken, dropped = written(moved, proposal.tags)
    assert [tag.entry for tag in taken] == ["order"]
    assert dropped == ["cart is not changed: its key is written in a way that is only changed by hand"]


def test_a_hash_tag_gives_no_other_services_rights() -> None:
    text = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {shop: "[a-z]+", id: "[0-9]+"}
scopes: {a: {prefix: "a:", writers: [one]}, shops: {prefix: "a:<shop>:", writers: [two]}}
keys:
  cart: {key: "a:<shop>:cart:<id>", type: hash}
  own: {key: "a:<shop>:own:<id>", type: hash, writers: [two]}
"""
    one, other = "a:<shop>:cart:<id>", "a:<shop>:own:<id>"
    tags = [
        Tag("cart", "shop", one, tagged(one, "shop"), 9),
        Tag("own", "shop", other, tagged(other, "shop"), 9),
    ]
    after, taken, dropped = written(text, tags)
    assert [tag.entry for tag in taken] == ["own"]
    assert dropped == [
        "cart is not changed: a:{<shop>}:cart:<id> is not in the scope shops but in a, so other services "
        "would have rights on its keys; give that scope the braces too"
    ]
    assert parse_policy(after).target(b"a:x:cart:7") == parse_policy(text).target(b"a:x:cart:7")
