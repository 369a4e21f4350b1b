"""A key is shown as one printable line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.show import printable
from keyfence.resp.requests import split_inline


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"cube:v1:{a}", "cube:v1:{a}"),
        ("键é".encode(), "键é"),
        (b"a\r\nb\tc", r"a\r\nb\tc"),
        (b"\x00\x1b[31m\x7f", r"\x00\x1b[31m\x7f"),
        (b"\"'\\", r"\"\'\\"),
        (b"\xff\xc3", r"\xff\xc3"),
        ("\u202e\u200b\u2028\x85".encode(), r"\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8\xc2\x85"),
        (b"x" * 128, "x" * 128),
        (b"x" * 129, "x" * 128 + "…"),
    ],
)
def test_a_key_is_shown_as(data: bytes, shown: str) -> None:
    assert printable(data) == shown


def test_a_cut_never_splits_a_character() -> None:
    data = "é键🔑".encode()
    cuts = ["…", "…", "é…", "é…", "é…", "é键…", "é键…", "é键…", "é键…", "é键🔑"]
    assert [printable(data, limit) for limit in range(10)] == cuts
    assert printable(b"\x80" * 9, 5) == r"\x80" * 5 + "…"


@given(st.binary(max_size=100), st.integers(0, 120))
def test_shown_text_is_printable_and_can_be_read_back(data: bytes, limit: int) -> None:
    shown = printable(data, limit)
    assert shown.isprintable()
    read_back = split_inline(b'"' + shown.removesuffix("…").encode() + b'"')
    if len(data) <= limit:
        assert split_inline(b'"' + shown.encode() + b'"') == [data]
    else:
        assert shown.endswith("…")
        assert read_back is not None
        assert data.startswith(read_back[0])
        assert limit - 3 <= len(read_back[0]) <= limit
