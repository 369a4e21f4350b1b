"""What two keys have in common, and where a hash tag goes."""

from __future__ import annotations

import pytest

from keyfence.policy.compiled.hash_tags import (
    MAX_KEY,
    Link,
    Place,
    by_shape,
    links,
    place_of,
    tagged,
    tagged_shape,
    worth,
)
from keyfence.policy.loading.load import parse_policy

POLICY = parse_policy("""policy: p
claims: ["a:"]
services: [one]
placeholders: {id: "[a-z0-9]+", user: "[a-z0-9]+"}
scopes: {a: {prefix: "a:", writers: [one]}}
keys:
  cart: {key: "a:cart:<user>", type: hash}
  order: {key: "a:order:<user>:<id>", type: hash}
""")


def linked(*places: Place) -> tuple[Link, ...]:
    return tuple(one.link for one in links(*places))


def test_a_key_of_an_entry_has_its_placeholders() -> None:
    place = place_of(POLICY, b"a:order:ann:7")
    assert (place.entry, dict(place.values)) == ("order", {"user": b"ann", "id": b"7"})


def test_any_other_key_has_none() -> None:
    assert place_of(POLICY, b"a:other:7") == ("", b"a:other:7", ())
    assert len(place_of(POLICY, b"b" * 5000).key) == MAX_KEY


def test_placeholders_with_one_value_are_linked() -> None:
    order, cart = place_of(POLICY, b"a:order:ann:7"), place_of(POLICY, b"a:cart:ann")
    assert linked(order, cart) == (("user", "user"),)
    assert linked(order, place_of(POLICY, b"a:cart:7")) == (("id", "user"),)
    assert linked(order, place_of(POLICY, b"a:cart:bob")) == ()


def test_keys_of_one_kind_are_linked_by_one_place_only() -> None:
    ann, bob, other = (
        place_of(POLICY, key) for key in (b"a:order:ann:bob", b"a:order:bob:7", b"a:order:ann:7")
    )
    assert linked(ann, bob) == ()
    assert linked(ann, other) == (("user", "user"),)
    one, two = (by_shape(place_of(POLICY, key), "u:<int>:<int>") for key in (b"u:1:2", b"u:2:3"))
    assert linked(one, two) == ()


def test_a_key_of_no_entry_has_the_segments_that_vary() -> None:
    one = by_shape(place_of(POLICY, b"user:42:mail"), "user:<int>:mail")
    other = by_shape(place_of(POLICY, b"mail:user:42"), "mail:user:<int>")
    assert linked(one, other) == (("2", "3"),)
    assert by_shape(one, "other").values == ()


@pytest.mark.parametrize(
    ("text", "placeholder", "expected"),
    [
        ("a:<user>:<id>", "user", "a:{<user>}:<id>"),
        ("a:<path...>:x", "path", "a:{<path...>}:x"),
        ("a:<user>", "id", "a:<user>"),
        ("a:{<user>}:<id>", "id", "a:{<user>}:<id>"),  # a key has one hash tag
    ],
)
def test_the_hash_tag_stands_round_the_placeholder(text: str, placeholder: str, expected: str) -> None:
    assert tagged(text, placeholder) == expected


def test_in_a_shape_it_stands_round_the_segment() -> None:
    assert tagged_shape("user:<int>:mail", "2") == "user:{<int>}:mail"
    assert tagged_shape("user:{<int>}:mail", "2") == "user:{<int>}:mail"
    assert tagged_shape("user", "2") == "user"


def test_the_trace_of_a_link_tells_how_many_values_it_had() -> None:
    traces = [
        links(place_of(POLICY, b"a:cart:%d" % user), place_of(POLICY, b"a:order:%d:x" % user))[0].trace
        for user in (1, 2, 3, 1)
    ]
    assert (traces[0] | traces[1] | traces[2] | traces[3]).bit_count() == 3


def test_a_hash_tag_with_few_values_is_worth_less_however_often_it_was_seen() -> None:
    assert worth(10, 60) > worth(1000, 3) > worth(999, 3) > worth(999, 2)
