"""What the proxy says itself is one reply or one request, whatever went into it."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.encode import command, error, printable
from proxy.wire.limits import IDENTIFIED
from proxy.wire.replies import ReplyFramer
from proxy.wire.requests import RequestReader, split_inline


def test_an_error_is_one_line() -> None:
    assert error("NOPERM no") == b"-NOPERM no\r\n"
    assert error("ERR é") == b"-ERR \xc3\xa9\r\n"
    assert error("ERR a\r\nb\x00\x1b\x7f\x85\u2028") == b"-ERR a\\x0d\\x0ab\\x00\\x1b\\x7f\\x85\\u2028\r\n"


@given(st.text(st.characters()))
def test_an_error_is_one_reply_whatever_its_text(text: str) -> None:
    data = error(text)
    framer = ReplyFramer()
    assert framer.advance(data, 0, 9) == len(data)
    assert (framer.completed, framer.kind) == (1, ord("-"))
    assert data.count(b"\r") == data.count(b"\n") == 1
    reader = hiredis.Reader()
    reader.feed(data)
    assert isinstance(reader.gets(), hiredis.ReplyError)


def test_a_surrogate_in_an_error_is_escaped() -> None:
    assert error("ERR \udcff") == b"-ERR \\udcff\r\n"


def test_a_command_takes_bytes_text_and_numbers() -> None:
    assert command("SET", b"k\r\n", 12) == b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$2\r\n12\r\n"
    assert command("GET", "é") == b"*2\r\n$3\r\nGET\r\n$2\r\n\xc3\xa9\r\n"


@given(st.lists(st.one_of(st.binary(), st.integers()), min_size=1))
def test_a_command_is_read_as_one_request(args: list[bytes | int]) -> None:
    reader = RequestReader(IDENTIFIED)
    reader.feed(command(*args))
    assert reader.next() == [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
    assert reader.pending == 0


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
def test_what_is_shown_of_a_key(data: bytes, shown: str) -> None:
    assert printable(data) == shown


def test_what_is_shown_is_not_cut_within_a_character() -> None:
    data = "é键🔑".encode()
    cuts = ["…", "…", "é…", "é…", "é…", "é键…", "é键…", "é键…", "é键…", "é键🔑"]
    assert [printable(data, limit) for limit in range(10)] == cuts
    assert printable(b"\x80" * 9, 5) == r"\x80" * 5 + "…"


@given(st.binary(max_size=100), st.integers(0, 120))
def test_what_is_shown_is_printable_and_can_be_read_back(data: bytes, limit: int) -> None:
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
