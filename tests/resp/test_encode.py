"""An encoded error is always one reply, and an encoded command always one request."""

from __future__ import annotations

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from keyfence.resp.encode import command, error
from keyfence.resp.limits import IDENTIFIED
from keyfence.resp.replies import ReplyFramer
from keyfence.resp.requests import RequestReader


def test_an_error_is_one_line() -> None:
    assert error("NOPERM no") == b"-NOPERM no\r\n"
    assert error("ERR é") == b"-ERR \xc3\xa9\r\n"
    assert error("ERR a\r\nb\x00\x1b\x7f\x85\u2028") == b"-ERR a\\x0d\\x0ab\\x00\\x1b\\x7f\\x85\\u2028\r\n"


@given(st.text(st.characters()))
def test_any_error_text_makes_one_reply(text: str) -> None:
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
    assert reader.pending() == 0
