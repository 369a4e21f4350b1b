from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.findings.proof.shapes import channels_of, keys_of, keys_of_entry, only_name_of
from keyfence.policy.enforcement.waiver_keys import keys_of_shape, waiver_keys
from keyfence.policy.loading.load import parse_policy
from keyfence.shapes.shapes import Shapes

POLICY = parse_policy("""
policy: shop
claims: ["shop:"]
services: [orders]
placeholders: {no: "[0-9]{1,9}"}
scopes: {shop: {prefix: "shop:", writers: [orders]}}
keys: {cart: {key: "shop:cart:<no>"}}
channels: {news: {channel: "ev:<no>", publishers: [orders]}}
""")
PIECES = st.sampled_from(
    [*("user", "a1", "-5", "1.5", "٣", "२०२४-०१-०२", "2024-01-02", "1.2.3.4", "١.٢.٣.٤", "v٣", "cart٣"), "é"]
)


SECRECY = parse_policy("""
policy: shop
claims: ["shop:"]
services: [orders]
placeholders: {token: {is: "[!-9;-z]{2,64}", secret: true}}
keys: {session: {key: "shop:session:<token>", writers: [orders]}}
""").secrecy
ODD = st.sampled_from(
    ["Ab1!", "a|b", "00ff00ff", "hunter 22", "\0", "cart", "session", "x" * 300, "A1" * 300]
)


@given(st.lists(st.one_of(PIECES, ODD), min_size=1, max_size=4), st.sampled_from(":|/_"), st.booleans())
def test_every_key_belongs_to_the_keys_of_its_shape(
    pieces: list[str], separator: str, has_secrets: bool
) -> None:
    key = separator.join(["user", *pieces]).encode()
    shapes = Shapes(trusting=True, secrecy=SECRECY if has_secrets else None)
    keys = keys_of_shape(shapes.shape(key))
    assert not keys or waiver_keys(keys).matches(key)


def test_samples_have_a_name_of_each_target_that_a_shape_meets() -> None:
    found = {
        one.target and (one.target.kind, one.target.name)
        for one in (*keys_of(POLICY, "shop:cart:<int>"), *keys_of(POLICY, "user:<int>"))
    }
    assert found == {("entry", "cart"), ("malformed", "cart"), None}
    heard = {one.target and one.target.kind for one in channels_of(POLICY, "ev:<int>")}
    assert heard == {"channel", "malformed"}


@pytest.mark.parametrize("shape", ["other", "<*>", "shop:<more>", "shop:cart:<bytes>", ""])
def test_a_shape_whose_names_are_not_known_well_enough_has_no_samples(shape: str) -> None:
    assert keys_of(POLICY, shape) == []
    assert channels_of(POLICY, shape) == []


def test_a_shape_without_placeholders_stands_for_one_name() -> None:
    assert only_name_of("shop:news:*") == b"shop:news:*"
    assert only_name_of(r"shop:\x3cint>") == b"shop:<int>"
    assert only_name_of("shop:<int>") is None
    assert only_name_of("other") is None


def test_an_entry_has_a_key_of_its_form_and_malformed_ones() -> None:
    """The first malformed key that comes to mind, `shop:cart:1`, is none."""
    found = keys_of_entry(POLICY, "cart")
    assert [(POLICY.target(key), key) for key, _ in found] == [(target, key) for key, target in found]
    assert {target.kind for _, target in found if target is not None} == {"entry", "malformed"}
    assert keys_of_entry(POLICY, "gone") == []
