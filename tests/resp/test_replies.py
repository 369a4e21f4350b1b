"""Replies end where hiredis finds their end, in any pieces; malformed replies raise an error."""

from __future__ import annotations

import math
import tracemalloc

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.resp.replies import MAX_BULK_REPLY, MAX_DEPTH, MAX_ELEMENTS, ReplyError, ReplyFramer
from tests.resp.pieces import CUTS, cut

SIMPLE = [
    b"+OK\r\n",
    b"+\r\n",
    b"-ERR no\r\n",
    b":0\r\n",
    b":-12\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12345\r\n",
]
STRINGS = [
    b"$3\r\nabc\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"$9\r\n\r\n+OK\r\n\r\n\r\n",
    b"!5\r\nERR x\r\n",
    b"=5\r\ntxt:a\r\n",
]
NESTED = [
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n:1\r\n$1\r\na\r\n",
    b"*2\r\n*2\r\n:1\r\n*0\r\n*1\r\n*-1\r\n",
    b"%0\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
    b"~0\r\n",
    b"~2\r\n+a\r\n~1\r\n#f\r\n",
]
ATTRIBUTES = [
    b"|1\r\n+ttl\r\n:3\r\n+OK\r\n",
    b"|0\r\n:1\r\n",
    b"|1\r\n+a\r\n*1\r\n:1\r\n|1\r\n+b\r\n_\r\n*1\r\n|1\r\n|1\r\n+c\r\n:1\r\n+d\r\n%1\r\n+e\r\n:1\r\n:7\r\n",
]
REPLIES = [*SIMPLE, *STRINGS, *NESTED, *ATTRIBUTES]
PUSH = b">2\r\n+message\r\n$2\r\n\r\n\r\n"


def kind_of(frame: bytes) -> int:
    """The expected `kind`: the first byte, or 0 if an attribute comes first."""
    return 0 if frame[:1] == b"|" else frame[0]


@pytest.mark.parametrize("reply", [*REPLIES, PUSH], ids=repr)
def test_a_reply_ends_at_its_last_byte_wherever_it_is_split(reply: bytes) -> None:
    is_push = reply is PUSH
    for first in range(len(reply) + 1):
        for second in range(first, len(reply) + 1):
            framer = ReplyFramer()
            completed = at = 0
            for piece in (reply[:first], reply[first:second], reply[second:]):
                assert framer.advance(piece, 0, 2, True) == len(piece)
                completed += framer.completed
                at += len(piece)
                assert framer.at_boundary == (at in (0, len(reply)))
                assert framer.push == (is_push and at == len(reply))
                if at and reply not in ATTRIBUTES:
                    assert framer.kind == reply[0]
            assert completed == (not is_push)


def test_the_kind_is_that_of_the_frame_after_its_attributes() -> None:
    framer = ReplyFramer()
    assert framer.kind == 0
    framer.advance(b"+OK\r\n|1\r\n+a\r\n", 0, 9)
    assert (framer.kind, framer.at_boundary) == (0, False)
    framer.advance(b":1\r\n", 0, 9)
    assert (framer.kind, framer.at_boundary) == (0, False)
    framer.advance(b"~", 0, 9)
    assert framer.kind == ord("~")


def test_the_scan_stops_after_the_requested_replies_and_continues_there() -> None:
    data = b"".join(REPLIES)
    ends = [sum(map(len, REPLIES[: number + 1])) for number in range(len(REPLIES))]
    for step in (1, 2, 5):
        framer = ReplyFramer()
        at = done = 0
        while at < len(data):
            at = framer.advance(data, at, step)
            done += framer.completed
            assert at == ends[done - 1]
        assert done == len(REPLIES)
    assert framer.advance(data, 0, 0) == 0


def test_the_scan_skips_pushes_or_stops_after_each() -> None:
    data = PUSH + b"+1\r\n" + PUSH + PUSH + b"+2\r\n" + PUSH
    framer = ReplyFramer()
    assert framer.advance(data, 0, 2) == len(data) - len(PUSH)
    assert (framer.completed, framer.push) == (2, False)
    assert framer.advance(data, len(data) - len(PUSH), 1) == len(data)
    assert (framer.completed, framer.push, framer.at_boundary) == (0, True, True)
    framer = ReplyFramer()
    at = 0
    seen = []
    while at < len(data):
        start, at = at, framer.advance(data, at, 1, stop_after_push=True)
        seen.append((data[start:at], framer.completed, framer.push))
    assert seen == [
        (PUSH, 0, True),
        (b"+1\r\n", 1, False),
        (PUSH, 0, True),
        (PUSH, 0, True),
        (b"+2\r\n", 1, False),
        (PUSH, 0, True),
    ]


def test_an_empty_push_and_one_with_attributes_are_pushes() -> None:
    for push in (b">0\r\n", b"|1\r\n+a\r\n+b\r\n" + PUSH):
        framer = ReplyFramer()
        assert framer.advance(push + b"+OK\r\n", 0, 1, True) == len(push)
        assert (framer.completed, framer.push) == (0, True)


# --- against hiredis -------------------------------------------------------------------------------------


def bulk(prefix: bytes) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=30).map(lambda body: prefix + b"%d\r\n%b\r\n" % (len(body), body))


def aggregate(prefix: bytes, parts: list[bytes], per_element: int = 1) -> bytes:
    count = len(parts) // per_element
    return b"%b%d\r\n" % (prefix, count) + b"".join(parts[: count * per_element])


NUMBERS = st.integers(-(2**63), 2**63 - 1).map(lambda number: b":%d\r\n" % number)
DOUBLES = st.floats().map(
    lambda number: b",%b\r\n" % ("nan" if math.isnan(number) else repr(number)).encode()
)
# hiredis does not know `!`, and reads an attribute as a separate reply.
KNOWN = [reply for reply in (*SIMPLE, *STRINGS) if reply[:1] != b"!"]
SCALARS = st.one_of(
    st.sampled_from([*KNOWN, b"*-1\r\n", b"#f\r\n", b",inf\r\n"]), bulk(b"$"), NUMBERS, DOUBLES
)
KEYS = st.one_of(st.sampled_from([b"+a\r\n", b"+b\r\n"]), bulk(b"$"), NUMBERS)


def deeper(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """hiredis builds Python values, so a map's keys and a set's members must be hashable."""
    pairs = st.lists(st.tuples(KEYS, inner).map(b"".join), max_size=3)
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: aggregate(b"*", parts)),
        st.lists(KEYS, max_size=4).map(lambda parts: aggregate(b"~", parts)),
        pairs.map(lambda parts: b"%%%d\r\n" % len(parts) + b"".join(parts)),
    )


ANY_REPLY = st.recursive(SCALARS, deeper, max_leaves=8).filter(lambda reply: reply.count(b"*") < 8)


@settings(max_examples=150)
@given(st.lists(ANY_REPLY, max_size=8), CUTS)
def test_after_each_piece_as_many_replies_have_ended_as_for_hiredis(
    replies: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(replies)
    framer = ReplyFramer()
    oracle = hiredis.Reader(notEnoughData=Ellipsis)
    for piece in cut(stream, cuts):
        oracle.feed(piece)
        expected = 0
        while oracle.gets() is not Ellipsis:
            expected += 1
        assert framer.advance(piece, 0, 100) == len(piece)
        assert framer.completed == expected
    assert framer.at_boundary


@settings(max_examples=300)
@given(st.lists(st.one_of(ANY_REPLY, st.sampled_from([*ATTRIBUTES, PUSH])), max_size=8), CUTS, st.booleans())
def test_the_same_frames_are_found_in_any_pieces(frames: list[bytes], cuts: list[int], stop: bool) -> None:
    framer = ReplyFramer()
    found: list[bytes] = []
    begun = b""
    for piece in cut(b"".join(frames), cuts):
        at = 0
        while at < len(piece):
            start, at = at, framer.advance(piece, at, 1, stop)
            begun += piece[start:at]
            if framer.at_boundary:
                found.append(begun)
                begun = b""
    pushes = [frame for frame in frames if frame is PUSH]
    if stop or not pushes:
        assert found == frames
    assert b"".join([*found, begun]) == b"".join(frames)


# --- malformed replies ------------------------------------------------------------------------------------

DEEP = b"*1\r\n" * MAX_DEPTH
ERRORS = {
    b"$?\r\n": "streamed types are not supported",
    b"*?\r\n": "streamed types are not supported",
    b"%?\r\n": "streamed types are not supported",
    b";4\r\nabcd\r\n": "streamed types are not supported",
    b".\r\n": "streamed types are not supported",
    b"hello\r\n": "no type begins with b'h'",
    b"\r\n": "no type begins with b'\\r'",
    b"\x00": "no type begins with b'\\x00'",
    b"*1\r\n\xff": "no type begins with b'\\xff'",
    b"$\r\n": "no length after b'$'",
    b"$01\r\n": "no length after b'$'",
    b"$+1\r\n": "no length after b'$'",
    b"$-2\r\n": "no length after b'$'",
    b"$-0\r\n": "no length after b'$'",
    b"$1 \r\n": "no length after b'$'",
    b"$1\na\r\n": "no length after b'$'",
    b"$1\rx": None,
    b"$1\rx\r\n": "no length after b'$'",
    b"$" + b"1" * 31: "no length after b'$'",
    b"$secret\r\n": "no length after b'$'",
    b"*-2\r\n": "no length after b'*'",
    b"!-1\r\n": "no length after b'!'",
    b"=-1\r\n": "no length after b'='",
    b"%-1\r\n": "no length after b'%'",
    b"~-1\r\n": "no length after b'~'",
    b">-1\r\n": "no length after b'>'",
    b"|-1\r\n": "no length after b'|'",
    b"$1\r\nabc": "no CRLF after a bulk string",
    b"$1\r\na\rx": "no CRLF after a bulk string",
    b"$1\r\na\n\n": "no CRLF after a bulk string",
    b"$%d\r\n" % MAX_BULK_REPLY: None,
    b"$%d\r\n" % (MAX_BULK_REPLY + 1): "a bulk string of 4294967297 bytes",
    b"*%d\r\n" % MAX_ELEMENTS: None,
    b"%%%d\r\n" % MAX_ELEMENTS: None,
    b"*%d\r\n" % (MAX_ELEMENTS + 1): "an aggregate of 2147483649 elements",
    b"*999999999999999999\r\n": "an aggregate of 999999999999999999 elements",
    b"*9999999999999999999\r\n": "no length after b'*'",
    DEEP: None,
    DEEP + b"*0\r\n": None,
    DEEP + b"*1\r\n": f"aggregates nested deeper than {MAX_DEPTH}",
    b"*1\r\n>1\r\n": "a push frame inside a reply",
    b"|1\r\n+a\r\n>1\r\n": "a push frame inside a reply",
}


def error_of(data: bytes, size: int) -> str | None:
    """The error for `data` in pieces of `size`, without the prefix that all errors share."""
    framer = ReplyFramer()
    text = None
    try:
        for at in range(0, len(data), size):
            framer.advance(data[at : at + size], 0, 1000)
    except ReplyError as error:
        text = str(error)
    if text is None:
        return None
    with pytest.raises(ReplyError) as again:
        framer.advance(b"+OK\r\n", 0, 1)
    assert str(again.value) == text
    return text.removeprefix("the server's reply cannot be followed: ")


@pytest.mark.parametrize(("data", "text"), ERRORS.items(), ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("size", [1000, 1])
def test_a_malformed_reply_raises_an_error(data: bytes, text: str | None, size: int) -> None:
    assert error_of(data, size) == text


@settings(max_examples=500)
@given(
    st.lists(
        st.sampled_from(
            [*REPLIES, PUSH, b"*", b"$", b"|1\r\n", b">", b"2", b"-", b"1\r\n", b"\r", b"\n", b"x", b"?"]
        ),
        max_size=8,
    ).map(b"".join)
)
def test_garbage_gives_the_same_error_whole_and_byte_by_byte(data: bytes) -> None:
    assert error_of(data, 1) == error_of(data, len(data) or 1)


def test_a_start_outside_the_data_is_refused() -> None:
    for start in (-1, 6):
        with pytest.raises(ValueError, match="outside the data"):
            ReplyFramer().advance(b"+OK\r\n", start, 1)


def test_nothing_is_kept_of_a_large_reply() -> None:
    chunk = b"x" * 1_000_000
    framer = ReplyFramer()
    tracemalloc.start()
    try:
        framer.advance(b"*2\r\n+", 0, 1)
        for _ in range(20):
            assert framer.advance(chunk, 0, 1) == len(chunk)
        framer.advance(b"\r\n$20000000\r\n", 0, 1)
        for _ in range(20):
            assert framer.advance(chunk, 0, 1) == len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000
    assert (framer.advance(b"\r\n+next", 0, 9), framer.completed, framer.at_boundary) == (7, 1, False)
