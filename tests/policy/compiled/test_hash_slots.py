"""Hash slots are those of Redis Cluster."""

from __future__ import annotations

import pytest

from keyfence.policy.compiled.hash_slots import hash_slot, hash_tag


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
