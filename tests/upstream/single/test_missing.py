"""Whether a replica's reply shows that the key is there."""

from __future__ import annotations

import pytest

from keyfence.resp import encode
from keyfence.upstream.single.missing import is_blank, may_be_blank

# Of commands with one key that is missing, in RESP2 and RESP3.
BLANK = [
    *(b"$-1\r\n", b"_\r\n", b"$0\r\n\r\n", b":0\r\n", b":-2\r\n", b"+none\r\n", b"*0\r\n", b"%0\r\n"),
    *(b"~0\r\n", b"*-1\r\n", b"*2\r\n$-1\r\n$-1\r\n", b"*2\r\n:0\r\n:0\r\n", b"*1\r\n*-1\r\n", b"#f\r\n"),
    *(b"*1\r\n:-2\r\n", b"*1\r\n_\r\n", b"-NOPERM no\r\n", b"-ERR no such key\r\n"),
]
SHOWING = [
    *(b"$1\r\nx\r\n", b":1\r\n", b"+string\r\n", b"*1\r\n$1\r\nx\r\n", b"%1\r\n$1\r\na\r\n$1\r\nb\r\n"),
    *(b"*2\r\n$-1\r\n$1\r\nx\r\n", b",1.5\r\n", b"#t\r\n", b"*2\r\n:0\r\n:1\r\n", b"$6\r\n$-1\r\n\r\n\r\n"),
]


def one_key() -> bytes:
    return encode.command(b"HMGET", b"k", b"a", b"b")


@pytest.mark.parametrize("reply", BLANK)
def test_a_reply_that_a_missing_key_gets_shows_nothing(reply: bytes) -> None:
    assert is_blank(reply, one_key)
    assert all(may_be_blank(reply[:end], one_key) for end in range(1, len(reply)))


@pytest.mark.parametrize("reply", SHOWING)
def test_a_reply_with_anything_in_it_shows_that_the_key_is_there(reply: bytes) -> None:
    assert not is_blank(reply, one_key)


def test_the_beginning_of_a_long_reply_shows_it_already() -> None:
    for reply in (b"$9\r\nx", b"*900\r\n$3\r\nab", b"%4\r\n$-1\r\n$1\r\n"):
        assert not may_be_blank(reply, one_key)


@pytest.mark.parametrize(
    ("request_", "reply", "shows"),
    [
        ([b"MGET", b"a", b"b"], b"*2\r\n$1\r\nx\r\n$-1\r\n", False),
        ([b"mget", b"a", b"b"], b"*2\r\n$1\r\nx\r\n_\r\n", False),
        ([b"MGET", b"a", b"b"], b"*2\r\n$1\r\nx\r\n$0\r\n\r\n", True),
        ([b"EXISTS", b"a", b"b"], b":1\r\n", False),
        ([b"EXISTS", b"a", b"b"], b":2\r\n", True),
        ([b"EXISTS", b"a"], b":1\r\n", True),
    ],
)
def test_each_key_of_several_has_to_be_there(request_: list[bytes], reply: bytes, shows: bool) -> None:
    def request() -> bytes:
        return encode.command(*request_)

    assert is_blank(reply, request) is not shows
    assert may_be_blank(reply[:-3], request)
