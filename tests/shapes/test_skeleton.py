"""Keys with the same skeleton have the same shape, and a skeleton keeps what related keys share."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.shapes.shapes import Shapes, take_apart
from keyfence.shapes.skeleton import LONGEST, skeleton

WORDS = ["user", "users", "session", "cart", "v1", "V12", "v1234", "v12a", "foo_bar", "Meta", "eventsByTag"]
WORDS += ["aBcD", "bcdfghk", "xqzvbkw", "cafe", "id", "T", "Z", "ab", "cd"]
# The parts of keys. Each part is drawn again for every key, so that keys with similar parts are compared.
PIECES = st.one_of(
    st.sampled_from(WORDS),
    st.integers(0, 10**6).map(str),
    st.text("0123456789", min_size=1, max_size=22),
    st.text("0123456789abcdef", min_size=1, max_size=18),
    st.text("0123456789ABCDEF", min_size=1, max_size=18),
    st.text("abcXYZ019", min_size=1, max_size=12),
    st.text("ab1", min_size=1, max_size=4),
    st.uuids().map(str),
    st.uuids(version=4).map(lambda one: str(one).upper()),
    st.dates().map(str),
    st.dates().map(lambda one: one.strftime("%Y%m%d")),
    st.dates().map(lambda one: one.strftime("%Y.%m_%d")),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.decimals(-1000, 1000, places=2).map(str),
    st.datetimes().map(lambda one: one.isoformat()),
    st.sampled_from(["a@example.org", "00:1a:2b:3c:4d:5e", "", "é", "\x01", "<*>", "<int>"]),
)
JOINTS = st.sampled_from(["-", "_", ".", "/", "--", "=", "", "", ",", "+", "~"])
SEPARATORS = st.sampled_from([":", ":", ":", ":", "|", "#", " ", "::", "{", "}:"])


@st.composite
def keys(draw: st.DrawFn) -> bytes:
    text = draw(PIECES)
    for _ in range(draw(st.integers(0, 5))):
        text += draw(st.one_of(SEPARATORS, JOINTS, JOINTS)) + draw(PIECES)
    return text.encode()


SEEN: dict[bytes, tuple[bytes, tuple[list[str], list[str]]]] = {}


def agree(key: bytes) -> None:
    mark = skeleton(key)
    if not mark:
        return
    found = take_apart(key)
    parts = (found.frame, found.words)
    other, before = SEEN.setdefault(mark, (key, parts))
    assert parts == before, (key, other)


@settings(max_examples=500)
@given(keys())
def test_keys_with_the_same_skeleton_are_split_alike(key: bytes) -> None:
    agree(key)


@settings(max_examples=300)
@given(keys(), st.randoms(use_true_random=False))
def test_keys_with_other_digits_and_the_same_skeleton_are_split_alike(
    key: bytes, chance: random.Random
) -> None:
    agree(key)
    for _ in range(5):
        agree(bytes(_varied(byte, chance) for byte in key))


def _varied(byte: int, chance: random.Random) -> int:
    if chance.random() < 0.6:
        return byte
    if chr(byte) in "0123456789abcdef":
        return ord(chance.choice("0123456789abcdef"))
    return byte


@settings(max_examples=500)
@given(st.text("ab1290-_.vT:", max_size=14))
def test_short_keys_of_special_characters_with_the_same_skeleton_are_split_alike(text: str) -> None:
    agree(text.encode())


@given(st.binary(max_size=LONGEST + 10))
def test_any_key_has_a_skeleton_no_longer_than_itself(key: bytes) -> None:
    assert len(skeleton(key)) <= len(key)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bench:user:000000123456", "bench:user:7"),
        ("jwt_active:42", "jwt_active:31337"),
        (f"session:{uuid.UUID(int=3**70)}", f"session:{uuid.UUID(int=5**55)}"),
        ("cube:v1:proxy:7c8f12", "cube:v1:proxy:a11b2c3"),
        ("lock:sandbox-12", "lock:sandbox-4711"),
        ("user17:cart", "user4:cart"),
        ("host:10.0.0.1:up", "host:192.168.12.1:up"),
        ("report:2024-01-02", "report:2025-12-31"),
        ("job_7f3a", "job_81bc"),
        ("blob:9f86d081884c7d65", "blob:60303ae22b998861bce3b28f33eec1be"),
    ],
)
def test_related_keys_have_the_same_skeleton(one: str, other: str) -> None:
    assert skeleton(one.encode()) == skeleton(other.encode()) != b""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user:1", "cart:1"),
        ("api:v1:7", "api:v2:7"),
        ("report:20240102", "report:20241399"),  # a date, a number
        ("a:12345678", "a:1234567f"),
    ],
)
def test_unrelated_keys_have_different_skeletons(one: str, other: str) -> None:
    assert skeleton(one.encode()) != skeleton(other.encode())


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\xff\x00",
        "ключ:1".encode(),
        b"mail:a.b@example.org",
        b"at:2024-01-02T03:04:05",
        b"net:fe80::1",
        b"mac:00:1a:2b:3c:4d:5e",
        b"x" * (LONGEST + 1),
    ],
)
def test_an_ambiguous_key_has_no_skeleton(key: bytes) -> None:
    assert skeleton(key) == b""


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["user", "cart", "job"]), st.integers(0, 10**9)), min_size=40))
def test_the_final_shape_of_a_key_is_that_of_all_keys_with_its_skeleton(
    drawn: list[tuple[str, int]],
) -> None:
    shapes = Shapes(trusting=True)
    settled: dict[bytes, str] = {}
    for word, number in drawn:
        key = f"{word}:{number}:state".encode()
        shape = shapes.shape(key)
        mark = skeleton(key)
        if mark in settled:
            assert shape == settled[mark]
        elif (known := shapes.settled(key)) is not None:
            settled[mark] = known
