"""Hash slots are those of Redis Cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.compiled.hash_slots import hash_slot, hash_tag, slot_in


@pytest.mark.parametrize(
    ("key", "slot"),
    [(b"foo", 12182), (b"bar", 5061), (b"hello", 866), (b"", 0), (b"123456789", 12739), (b"{foo}:x", 12182)],
)
def test_hash_slots_are_those_of_cluster_keyslot(key: bytes, slot: int) -> None:
    assert hash_slot(key) == slot


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        (b"{user1000}.following", b"user1000"),
        (b"foo{}{bar}", b"foo{}{bar}"),  # the first braces are empty: the whole key
        (b"foo{{bar}}zap", b"{bar"),
        (b"foo{bar}{zap}", b"bar"),
        (b"foo{bar", b"foo{bar"),
        (b"}foo{", b"}foo{"),
    ],
)
def test_the_hash_tag_follows_the_cluster_specification(key: bytes, tag: bytes) -> None:
    assert hash_tag(key) == tag


@given(st.lists(st.sampled_from([*b"{}ab", 0, 255])).map(bytes) | st.binary(), st.binary(max_size=3))
def test_a_slot_is_found_in_the_midst_of_other_bytes(key: bytes, around: bytes) -> None:
    data = around + b"{" + key + b"}" + around
    start = len(around) + 1
    assert slot_in(data, start, start + len(key)) == hash_slot(key)
