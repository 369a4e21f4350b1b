"""A reply becomes a tree of frames that name their bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.resp.frames import MAX_DEPTH, Frame, FrameError, tree


def test_each_frame_names_its_bytes_and_its_text() -> None:
    reply = b"*3\r\n:1\r\n%1\r\n$1\r\na\r\n=6\r\ntxt:\r\n\r\n*2\r\n_\r\n$-1\r\n"
    one, pairs, nulls = tree(reply).items
    assert one == Frame(ord(":"), 4, 8, b"1")
    assert [frame.text for frame in pairs.items] == [b"a", b"txt:\r\n"]
    assert [frame.text for frame in nulls.items] == [None, None]
    assert reply[pairs.begin : pairs.end] == b"%1\r\n$1\r\na\r\n=6\r\ntxt:\r\n\r\n"


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\r\n",
        b":1",
        b"*1\r\n",
        b"*x\r\n",
        b"$3\r\nab\r\n",
        b":1\r\n:2\r\n",
        b"*1\r\n" * (MAX_DEPTH + 1) + b":1\r\n",
        b"*999999999999\r\n:1\r\n",
    ],
)
def test_anything_else_is_a_named_error(wrong: bytes) -> None:
    with pytest.raises(FrameError):
        tree(wrong)


@given(st.binary(max_size=30) | st.text(alphabet="*%$=:+-_12\r\n", max_size=30).map(str.encode))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert tree(data).end == len(data)
