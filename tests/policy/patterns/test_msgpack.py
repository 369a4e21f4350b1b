"""Encoded values are well formed; truncated, extended and invalid ones are not."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.patterns.msgpack import is_msgpack


def sized(count: int, codes: list[int]) -> bytes:
    """A header with its count in the shortest of these forms."""
    for code, (limit, form) in zip(codes, ((0x100, ">BB"), (0x10000, ">BH"), (1 << 32, ">BI")), strict=True):
        if code >= 0 and count < limit:
            return struct.pack(form, code, count)
    raise ValueError(count)


def pack(value: Any) -> bytes:
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            if 0 <= value < 128 or -32 <= value < 0:
                return struct.pack(">b" if value < 0 else ">B", value)
            return struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            text = value.encode()
            head = bytes([0xA0 + len(text)]) if len(text) < 32 else sized(len(text), [0xD9, 0xDA, 0xDB])
            return head + text
        case bytes():
            return sized(len(value), [0xC4, 0xC5, 0xC6]) + value
        case list():
            head = bytes([0x90 + len(value)]) if len(value) < 16 else sized(len(value), [-1, 0xDC, 0xDD])
            return head + b"".join(map(pack, value))
        case dict():
            head = bytes([0x80 + len(value)]) if len(value) < 16 else sized(len(value), [-1, 0xDE, 0xDF])
            return head + b"".join(pack(part) for pair in value.items() for part in pair)
    raise TypeError(value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


@given(VALUES, st.data())
def test_an_encoded_value_is_well_formed_and_no_part_of_it_is(value: Any, data: st.DataObject) -> None:
    packed = pack(value)
    assert is_msgpack(packed)
    assert not is_msgpack(packed + b"\x00")
    assert not is_msgpack(packed[: data.draw(st.integers(0, len(packed) - 1))])


@given(st.binary(max_size=60))
def test_any_bytes_are_checked_without_an_error(value: bytes) -> None:
    assert is_msgpack(value) in (True, False)


EVERY_FORM = {
    "fixint": "7f", "negative fixint": "e0", "fixmap": "8101c0", "fixarray": "92c201", "fixstr": "a161",
    "nil": "c0", "false": "c2", "true": "c3", "bin 8": "c40161", "bin 16": "c5000161",
    "bin 32": "c60000000161", "ext 8": "c7010561", "ext 16": "c800010561", "ext 32": "c9000000010561",
    "float 32": "ca00000000", "float 64": "cb0000000000000000",
    "uint 8": "ccff", "uint 16": "cdffff", "uint 32": "ceffffffff",
    "uint 64": "cfffffffffffffffff", "int 8": "d0ff", "int 16": "d1ffff", "int 32": "d2ffffffff",
    "int 64": "d3ffffffffffffffff", "fixext 1": "d40561", "fixext 2": "d5056161", "fixext 4": "d60561616161",
    "fixext 8": "d705" + "61" * 8, "fixext 16": "d805" + "61" * 16, "str 8": "d90161", "str 16": "da000161",
    "str 32": "db0000000161", "array 16": "dc000101", "array 32": "dd0000000101", "map 16": "de00010101",
    "map 32": "df000000010101",
}  # fmt: skip


@pytest.mark.parametrize("form", EVERY_FORM)
def test_each_form_of_the_specification_is_well_formed(form: str) -> None:
    packed = bytes.fromhex(EVERY_FORM[form])
    assert is_msgpack(packed)
    assert not any(is_msgpack(packed[:cut]) for cut in range(len(packed)))
    assert not is_msgpack(packed + b"\xc0")


def test_wrong_lengths_cost_nothing() -> None:
    assert not is_msgpack(b"\xdd\xff\xff\xff\xff")
    assert not is_msgpack(b"\xdf\xff\xff\xff\xff" + b"\x00" * 100)
    assert not is_msgpack(b"\xdb\xff\xff\xff\xffx")


def test_nesting_has_no_limit() -> None:
    assert is_msgpack(b"\x91" * 100_000 + b"\xc0")
    assert not is_msgpack(b"\x91" * 100_000)
