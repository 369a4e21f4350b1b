"""Requests are read with the same boundaries and arguments in any pieces; malformed ones are refused."""

from __future__ import annotations

import contextlib
import gc
import itertools
import socket
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import hiredis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.resp import requests
from keyfence.resp.encode import command
from keyfence.resp.limits import IDENTIFIED, UNIDENTIFIED, ProtocolError, RequestLimits, RequestTooLarge
from keyfence.resp.requests import PLACES, RequestReader, StreamedBulk, split_inline
from tests.resp.pieces import CUTS, cut, in_steps
from tests.servers import RedisServer

Requests = list[tuple[list[bytes], bytes]]


def read(pieces: Iterable[bytes], limits: RequestLimits = IDENTIFIED) -> tuple[Requests, str, RequestReader]:
    """Return the requests with their bytes, the error that ended them, and the reader."""
    reader = RequestReader(limits)
    found: Requests = []
    for piece in pieces:
        reader.feed(piece)
        try:
            while (arguments := reader.next()) is not None:
                found.append((arguments, reader.span(reader.start, reader.end)))
        except ProtocolError as error:
            return found, str(error), reader
    return found, "", reader


def read_with_peek(pieces: Iterable[bytes], limits: RequestLimits = IDENTIFIED) -> tuple[Requests, str]:
    """The same, but peek at each request first, and compare the offsets with the arguments."""
    reader = RequestReader(limits)
    found: Requests = []
    for piece in pieces:
        reader.feed(piece)
        try:
            while True:
                peeked = reader.peek()
                seen = (reader.start, reader.end)
                arguments = reader.reparse() if peeked else reader.next()
                if arguments is None:
                    break
                if peeked:
                    assert seen == (reader.start, reader.end)
                    assert_seen(reader, arguments)
                found.append((arguments, reader.span(reader.start, reader.end)))
        except ProtocolError as error:
            return found, str(error)
    return found, ""


def assert_seen(reader: RequestReader, arguments: list[bytes]) -> None:
    """The peeked offsets show these arguments."""
    data = reader.data()
    assert reader.count == len(arguments)
    assert data[reader.name_at : reader.name_end] == arguments[0]
    if len(arguments) > 1:
        assert data[reader.key_at : reader.key_end] == arguments[1]
    assert [data[PLACES[2 * at] : PLACES[2 * at + 1]] for at in range(reader.count)] == arguments


def error_of(data: bytes, limits: RequestLimits = IDENTIFIED) -> str:
    """The error for `data`, without the prefix that all errors share."""
    found, error, _ = read([data], limits)
    assert not found
    prefix, _, text = error.partition(": ")
    assert prefix == "Protocol error"
    return text


STREAM = (
    b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\n\r\n*1\r\n$4\r\n\r\n\r\n"
    b'PING\r\n\r\n*0\r\n*-1\r\nECHO "a b"\n*1\r\n$0\r\n\r\n  \n*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n'
)
ARGUMENTS = [
    [b"SET", b"k", b"\r\n*1\r\n$4\r\n\r\n"],
    [b"PING"],
    [],
    [],
    [],
    [b"ECHO", b"a b"],
    [b""],
    [],
    [b"ECHO", b"\r\n"],
]


def test_each_request_is_returned_with_its_own_bytes() -> None:
    found, error, reader = read([STREAM])
    assert not error
    assert [arguments for arguments, _ in found] == ARGUMENTS
    assert b"".join(span for _, span in found) == STREAM
    assert reader.pending() == 0


def test_splitting_the_stream_twice_anywhere_changes_nothing() -> None:
    whole, _, _ = read([STREAM])
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            found, error, reader = read([STREAM[:first], STREAM[first:second], STREAM[second:]])
            assert (found, error, reader.pending()) == (whole, "", 0)


def test_a_prefix_of_a_stream_raises_no_error_and_counts_its_pending_bytes() -> None:
    for size in range(len(STREAM)):
        found, error, reader = read(in_steps(STREAM[:size], 1))
        consumed = b"".join(span for _, span in found)
        assert not error
        assert STREAM.startswith(consumed)
        assert reader.pending() == size - len(consumed)
        assert reader.next() is None


ARGV = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@given(st.lists(ARGV, max_size=8), CUTS)
def test_encoded_requests_are_read_back_in_any_pieces(requests: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(command(*arguments) for arguments in requests)
    found, error, _ = read(cut(stream, cuts))
    assert not error
    assert [arguments for arguments, _ in found] == requests
    assert [span for _, span in found] == [command(*arguments) for arguments in requests]


# Fragments that resemble the protocol and are mostly malformed.
SCRAPS = [
    b"*",
    b"$",
    b"1",
    b"2",
    b"0",
    b"-",
    b"+",
    b"\r\n",
    b"\r",
    b"\n",
    b"a",
    b'"',
    b"'",
    b" ",
    b"\0",
    b"\\x",
]
PARTS = [b"*1\r\n", b"*2\r\n$1\r\na\r\n", b"$1\r\na\r\n", b"*-1\r\n", b"$-1\r\n", b"PING\r\n", b"1" * 30]
FRAGMENTS = st.lists(st.sampled_from([*SCRAPS, *PARTS]), max_size=24).map(b"".join)


@settings(max_examples=500)
@given(FRAGMENTS, CUTS)
def test_garbage_gives_the_same_error_after_the_same_requests_in_any_pieces(
    stream: bytes, cuts: list[int]
) -> None:
    limits = replace(IDENTIFIED, max_inline=24, max_request=60, max_bulk=11, max_arguments=3)
    whole, error, reader = read([stream], limits)
    found, same_error, same_reader = read(cut(stream, cuts), limits)
    assert (found, same_error) == (whole, error)
    consumed = b"".join(span for _, span in whole)
    assert stream.startswith(consumed)
    assert reader.rest() == stream[len(consumed) :]
    # The pieces that came after the error were not fed.
    assert stream[len(consumed) :].startswith(same_reader.rest())


def in_one(requests: list[list[bytes]]) -> bytes:
    return b"".join(command(*arguments) for arguments in requests)


SHORT = replace(IDENTIFIED, max_arguments=3, max_bulk=20, max_request=50)


@given(st.lists(FRAGMENTS | st.lists(ARGV, max_size=4).map(in_one), max_size=4), CUTS, st.booleans())
def test_peek_and_next_read_the_same_requests(parts: list[bytes], cuts: list[int], short: bool) -> None:
    limits = SHORT if short else IDENTIFIED
    pieces = cut(b"".join(parts), cuts)
    assert read_with_peek(pieces, limits) == read(pieces, limits)[:2]


@pytest.mark.parametrize(
    "data",
    [
        b"*2\r\n$3\r\nGET\r\n$02\r\nab\r\n",
        b"*2\r\n$3\r\nGET\r\n$2\r\nabc\r\n",
        b"*2\r\n$3\r\nGET\r\n$-1\r\n",
        b"*2\r\n$3\r\nGET\r\n$2\r\nab\r",
        b"*0\r\n",
        b"*2\r\n$3\r\nGET\r\n$999999\r\n",
        b"GET a\r\n",
        b"*1\r\n*4\r\nPING\r\n",
    ],
    ids=repr,
)
def test_peek_accepts_only_complete_plain_requests(data: bytes) -> None:
    reader = RequestReader(IDENTIFIED)
    reader.feed(data)
    assert not reader.peek()


@given(st.lists(ARGV, min_size=1, max_size=5), st.integers(1, 64))
def test_hiredis_reads_the_same_requests(requests: list[list[bytes]], size: int) -> None:
    stream = b"".join(command(*arguments) for arguments in requests)
    oracle = hiredis.Reader()
    oracle.feed(stream)
    expected = [oracle.gets() for _ in requests]
    assert [arguments for arguments, _ in read(in_steps(stream, size))[0]] == expected


@given(st.lists(ARGV, min_size=1, max_size=8), CUTS)
def test_one_span_covers_all_requests_between_two_feeds(requests: list[list[bytes]], cuts: list[int]) -> None:
    stream = b"".join(command(*arguments) for arguments in requests)
    reader = RequestReader(IDENTIFIED)
    taken = b""
    for piece in cut(stream, cuts):
        reader.feed(piece)
        offsets = []
        while reader.next() is not None:
            offsets.append((reader.start, reader.end))
        assert all(left[1] == right[0] for left, right in pairwise(offsets))
        if offsets:
            taken += reader.span(offsets[0][0], offsets[-1][1])
    assert taken == stream


@given(st.lists(ARGV, min_size=1, max_size=6), CUTS, st.integers(0, 5))
def test_feeding_ahead_of_reading_loses_nothing(
    requests: list[list[bytes]], cuts: list[int], taken: int
) -> None:
    stream = b"".join(command(*arguments) for arguments in requests)
    reader = RequestReader(IDENTIFIED)
    spans = b""
    for number, piece in enumerate(cut(stream, cuts)):
        reader.feed(piece)
        if number % 3 == taken % 3:
            for _ in range(taken):
                if reader.next() is not None:
                    spans += reader.span(reader.start, reader.end)
    while reader.next() is not None:
        spans += reader.span(reader.start, reader.end)
    assert spans == stream


def test_any_part_of_a_request_can_be_spanned_even_if_it_began_in_an_earlier_piece() -> None:
    request = command("SET", "key", "value")
    for at in range(1, len(request)):
        reader = RequestReader(IDENTIFIED)
        reader.feed(request[:at])
        assert reader.next() is None
        reader.feed(request[at:])
        assert reader.next() == [b"SET", b"key", b"value"]
        assert reader.end - reader.start == len(request)
        for first in range(len(request)):
            for last in range(first, len(request) + 1):
                assert reader.span(reader.start + first, reader.start + last) == request[first:last]


def test_the_rest_is_returned_once_and_the_reader_starts_over() -> None:
    tail = b"*2\r\n$3\r\nGET\r\n$100\r\nab"
    for size in (1, 3, 1000):
        found, _, reader = read(in_steps(b"PING\r\n" + tail, size))
        assert [arguments for arguments, _ in found] == [[b"PING"]]
        assert reader.rest() == tail
        assert (reader.rest(), reader.pending(), reader.next()) == (b"", 0, None)
        reader.feed(b"PING\r\n")
        assert reader.next() == [b"PING"]


def test_the_rest_after_an_error_has_all_bytes_not_returned() -> None:
    _, error, reader = read([b"PING\r\n", b"*1\r\n$1", b"\r\nabc"])
    assert error
    reader.feed(b"more")
    assert reader.pending() == 15
    assert reader.rest() == b"*1\r\n$1\r\nabcmore"
    with pytest.raises(ProtocolError):
        reader.next()


def test_letting_go_frees_read_bytes_and_keeps_unread_ones() -> None:
    reader = RequestReader(IDENTIFIED)
    reader.feed(command("PING"))
    assert reader.next() == [b"PING"]
    reader.let_go()
    assert reader.data() == b""
    reader.feed(command("PING") + command("ECHO", "a")[:9])
    assert reader.next() == [b"PING"]
    assert reader.next() is None
    reader.let_go()
    reader.feed(command("ECHO", "a")[9:])
    assert reader.next() == [b"ECHO", b"a"]
    assert reader.span(reader.start, reader.end) == command("ECHO", "a")


def test_after_an_error_every_call_raises_it_again() -> None:
    reader = RequestReader(IDENTIFIED)
    reader.feed(b"*x\r\n")
    for data in (b"", b"PING\r\n", b"*1\r\n$4\r\nPING\r\n"):
        reader.feed(data)
        with pytest.raises(ProtocolError, match=r"^Protocol error: invalid multibulk length$"):
            reader.next()


def test_after_a_request_too_large_every_call_raises_the_same_error_class() -> None:
    reader = RequestReader(replace(IDENTIFIED, max_request=100))
    reader.feed(b"*1\r\n$100\r\n")
    for _ in range(2):
        with pytest.raises(RequestTooLarge, match="request of more than 100 bytes"):
            reader.next()


# --- what a real server answers to the same bytes -----------------------------------------------------------

AS_REDIS = {
    b"*x\r\n": "invalid multibulk length",
    b"*\r\n": "invalid multibulk length",
    b"*+1\r\n": "invalid multibulk length",
    b"*01\r\n": "invalid multibulk length",
    b"*00\r\n": "invalid multibulk length",
    b"* 1\r\n": "invalid multibulk length",
    b"*1 \r\n": "invalid multibulk length",
    b"*-0\r\n": "invalid multibulk length",
    b"*-\r\n": "invalid multibulk length",
    b"*--1\r\n": "invalid multibulk length",
    b"*1\n$4\r\nPING\r\n": "invalid multibulk length",
    b"*1_0\r\n": "invalid multibulk length",
    b"*2147483648\r\n": "invalid multibulk length",
    b"*9223372036854775807\r\n": "invalid multibulk length",
    b"*9223372036854775808\r\n": "invalid multibulk length",
    b"*18446744073709551617\r\n": "invalid multibulk length",
    b"*-9223372036854775809\r\n": "invalid multibulk length",
    b"*" + b"1" * 40 + b"\r\n": "invalid multibulk length",
    b"*1\r\n$x\r\n": "invalid bulk length",
    b"*1\r\n$\r\n": "invalid bulk length",
    b"*1\r\n$-1\r\n": "invalid bulk length",
    b"*1\r\n$-0\r\n": "invalid bulk length",
    b"*1\r\n$04\r\nPING\r\n": "invalid bulk length",
    b"*1\r\n$+4\r\nPING\r\n": "invalid bulk length",
    b"*1\r\n$4 \r\nPING\r\n": "invalid bulk length",
    b"*1\r\n$536870913\r\n": "invalid bulk length",
    b"*1\r\n$18446744073709551620\r\nPING\r\n": "invalid bulk length",
    b"*1\r\nPING\r\n": "expected '$', got 'P'",
    b"*1\r\n:1\r\n": "expected '$', got ':'",
    b"*1\r\n*1\r\n$4\r\nPING\r\n": "expected '$', got '*'",
    b"*1\r\n\r\n": "expected '$', got ' '",
    b"*" + b"1" * 65537: "too big mbulk count string",
    b"*1\r\n$" + b"1" * 65537: "too big bulk count string",
    b"a" * 65537: "too big inline request",
    b'ECHO "a\r\n': "unbalanced quotes in request",
    b"ECHO 'a\r\n": "unbalanced quotes in request",
    b'ECHO "a"b\r\n': "unbalanced quotes in request",
    b"ECHO 'a'\"b\"\r\n": "unbalanced quotes in request",
    b'ECHO "a\\"\r\n': "unbalanced quotes in request",
}


def ids(value: object) -> str | None:
    return repr(value[:24]) if isinstance(value, bytes) else None


@pytest.mark.parametrize(("data", "text"), AS_REDIS.items(), ids=ids)
def test_errors_have_the_wording_of_redis(data: bytes, text: str) -> None:
    assert error_of(data) == text


def talk(server: RedisServer, data: bytes) -> bytes:
    """Send `data`, shut down writing, and return everything the server answers."""
    said = b""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server.socket_path))
        client.sendall(data)
        with contextlib.suppress(OSError):  # the server may have closed the connection
            client.shutdown(socket.SHUT_WR)
        while part := client.recv(65536):
            said += part
    return said


@pytest.mark.parametrize(("data", "text"), AS_REDIS.items(), ids=ids)
def test_a_server_gives_the_same_error(data: bytes, text: str, redis_server: RedisServer) -> None:
    assert talk(redis_server, data) == f"-ERR Protocol error: {text}\r\n".encode()


UNAUTHENTICATED = {
    b"*11\r\n": "unauthenticated multibulk length",
    b"*1048576\r\n": "unauthenticated multibulk length",
    b"*2147483648\r\n": "invalid multibulk length",
    b"*1\r\n$16385\r\n": "unauthenticated bulk length",
    b"*1\r\n$536870912\r\n": "unauthenticated bulk length",
    b"*1\r\n$536870913\r\n": "invalid bulk length",
}


@pytest.mark.parametrize(("data", "text"), UNAUTHENTICATED.items(), ids=ids)
def test_limits_are_lower_before_a_client_is_identified(data: bytes, text: str) -> None:
    assert error_of(data, UNIDENTIFIED) == text


def test_a_server_gives_the_same_errors_before_authentication(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(password="secret")
    for data, text in UNAUTHENTICATED.items():
        assert talk(server, data) == f"-ERR Protocol error: {text}\r\n".encode(), data


def test_ten_arguments_of_16_kib_pass_before_a_client_is_identified() -> None:
    arguments = [b"x" * 16384] * 10
    assert read([command(*arguments)], UNIDENTIFIED)[0][0][0] == arguments


# Bytes that Redis accepts or waits on, but that servers read differently.
STRICTER = {
    b"*1\r\n$4\r\nPINGxx": "expected CRLF after bulk",
    b"*1\r\n$4\r\nPING\n\n": "expected CRLF after bulk",
    b"*1\r\n$4\r\nPING\rx": "expected CRLF after bulk",
    b"*1\r\n$3\r\nPING\r\n": "expected CRLF after bulk",
    b"*1\rx$4\r\nPING\r\n": "invalid multibulk length",
    b"*1\r\n$4\rxPING\r\n": "invalid bulk length",
    b"*1048577\r\n": "invalid multibulk length",
    b"*1\r\n\x00\r\n": "expected '$', got '\\x00'",
    b"*1\r\n\xff\r\n": "expected '$', got '\\xff'",
    b"PI\x00NG\r\n": "null byte in inline request",
    b"\x00\r\n": "null byte in inline request",
    b"a" * 65537 + b"\n": "too big inline request",
}


@pytest.mark.parametrize(("data", "text"), STRICTER.items(), ids=ids)
def test_bytes_that_servers_read_differently_are_refused(data: bytes, text: str) -> None:
    assert error_of(data) == text


# --- limits ----------------------------------------------------------------------------------------------


def test_a_line_of_exactly_the_limit_is_allowed() -> None:
    line = b"ECHO " + b"a" * (65536 - 5)
    assert read([line + b"\n"])[0][0][0] == [b"ECHO", b"a" * (65536 - 5)]
    assert read([line])[1] == ""
    assert read(in_steps(line + b"a", 4096))[1] == "Protocol error: too big inline request"


def test_counts_of_exactly_the_limit_are_allowed() -> None:
    limits = replace(IDENTIFIED, max_request=2**30)
    for header in (b"*1048576\r\n", b"*1\r\n$536870912\r\n", b"*-9223372036854775808\r\n"):
        assert read([header], limits)[1] == ""


def test_a_request_of_exactly_the_limit_is_allowed() -> None:
    request = command("SET", "k", "v" * 50)
    at_limit = replace(IDENTIFIED, max_request=len(request))
    assert read([request + request], at_limit)[1] == ""
    below = replace(IDENTIFIED, max_request=len(request) - 1)
    for size in (1, 7, 1000):
        found, error, reader = read(in_steps(b"PING\r\n" + request, size), below)
        assert [arguments for arguments, _ in found] == [[b"PING"]]
        assert error == f"Protocol error: request of more than {len(request) - 1} bytes"
        assert reader.rest().startswith(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$50\r\n")


def test_new_limits_hold_for_lengths_announced_afterwards() -> None:
    reader = RequestReader(UNIDENTIFIED)
    assert reader.limits is UNIDENTIFIED
    reader.feed(command("AUTH", "x") + command("SET", "k", "v" * 20000))
    assert reader.next() == [b"AUTH", b"x"]
    reader.limits = IDENTIFIED
    assert reader.limits is IDENTIFIED
    assert reader.next() == [b"SET", b"k", b"v" * 20000]


@pytest.mark.parametrize(
    "data", [b"*1000000000\r\n", b"*1048576\r\n", b"*1\r\n$67000000\r\n", b"*1048576\r\n$1\r\na\r\n"]
)
def test_an_announcement_allocates_nothing(data: bytes) -> None:
    read([data])  # so that one-time allocations happen before the measurement
    tracemalloc.start()
    try:
        found, _, reader = read([data])
        _, peak = tracemalloc.get_traced_memory()
        del reader
    finally:
        tracemalloc.stop()
    assert not found
    assert peak < 20_000


def test_a_huge_request_in_tiny_pieces_is_not_copied_at_each_piece() -> None:
    # Copying the request at each piece would move 400 GB and exceed the time limit.
    value = b"v" * 16_000_000
    reader = RequestReader(IDENTIFIED)
    reader.feed(b"*2002\r\n$4\r\nMSET\r\n$16000000\r\n")
    for piece in (*in_steps(value, 65536), *in_steps(b"\r\n" + b"$3\r\nabc\r\n" * 2000, 1)):
        assert reader.next() is None
        reader.feed(piece)
    arguments = reader.next()
    assert arguments == [b"MSET", value, *[b"abc"] * 2000]
    assert reader.end - reader.start == len(reader.span(reader.start, reader.end)) == 16_018_030


# --- inline quoting --------------------------------------------------------------------------------------

QUOTED = {
    b"": [],
    b" \t\r \v\f": [],
    b"a b": [b"a", b"b"],
    b"  a  b\t": [b"a", b"b"],
    b'"a b" c': [b"a b", b"c"],
    b"'a b' c": [b"a b", b"c"],
    b'""': [b""],
    b"''": [b""],
    b'a"b c"': [b"ab c"],
    b"a'b c'": [b"ab c"],
    b'"\\x41\\xfF\\x0"': [b"A\xffx0"],
    b'"\\n\\r\\t\\b\\a\\\\\\"\\q"': [b'\n\r\t\b\a\\"q'],
    b"'\\n\\' \\x41 \\\\ '": [b"\\n' \\x41 \\\\ "],
    b"'\\\\'": None,
    b"a\\ b": [b"a\\", b"b"],
    b"a\vb": [b"a\vb"],
    b'"a"\vb': [b"a", b"b"],
    b'"a"\tb': [b"a", b"b"],
    b'"a': None,
    b"'a": None,
    b'"a"b': None,
    b"'a'b": None,
    b'"a\\': None,
    b'"': None,
}


@pytest.mark.parametrize(("line", "arguments"), QUOTED.items(), ids=ids)
def test_inline_quoting_is_that_of_redis(line: bytes, arguments: list[bytes] | None) -> None:
    assert split_inline(line) == arguments


def as_server_splits(server: RedisServer, line: bytes) -> list[bytes] | None:
    """How a server splits a line, taken from a script's ARGV. None: unbalanced quotes."""
    said = talk(server, b'EVAL "return ARGV" 0 ' + line + b"\r\n")
    if said == b"-ERR Protocol error: unbalanced quotes in request\r\n":
        return None
    reader = hiredis.Reader()
    reader.feed(said)
    arguments = reader.gets()
    assert isinstance(arguments, list)
    return arguments


def test_a_server_splits_these_inline_commands_in_the_same_way(redis_server: RedisServer) -> None:
    for line, arguments in QUOTED.items():
        assert as_server_splits(redis_server, line) == arguments, line


LINES = st.lists(
    st.sampled_from(
        [b'"', b"'", b"\\", b" ", b"\t", b"\v", b"\f", b"\r", b"x", b"4", b"F", b"n", b"a", b"\xc3", b"\\x4"]
    ),
    max_size=14,
).map(b"".join)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=LINES)
def test_a_server_splits_any_inline_command_in_the_same_way(line: bytes, redis_server: RedisServer) -> None:
    found, error, _ = read([b"X " + line + b"\r\n"])
    expected = None if error else found[0][0][1:]
    assert as_server_splits(redis_server, line) == expected


def test_a_server_does_not_answer_an_empty_request(redis_server: RedisServer) -> None:
    for data in (b"*0\r\n", b"*-1\r\n", b"*-9\r\n", b"\r\n", b"\n", b"  \t\r\n", b"\v\n"):
        assert read([data])[0] == [([], data)]
        assert talk(redis_server, data + b"PING\r\n") == b"+PONG\r\n"


# --- streamed requests


def streamed(
    data: bytes, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[bytes, list[list[bytes]]]:
    """Read `data`, split at `cuts`. Bulk strings of more than ten bytes are streamed; eight bytes are
    kept."""
    monkeypatch.setattr(requests, "LARGE", 10)
    monkeypatch.setattr(requests, "HEAD", 8)
    reader = RequestReader(IDENTIFIED)
    passed, seen = bytearray(), []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        reader.feed(data[start:end])
        while True:
            argv = reader.next()
            if argv is not None:
                passed += reader.span(reader.start, reader.end)
                seen.append(argv)
            elif reader.is_large:
                passed += reader.take_partial()
                if reader.is_large:
                    break
            else:
                break
    assert reader.pending() == 0
    return bytes(passed), seen


@pytest.mark.hypothesis
@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 400), max_size=30),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_request_streamed_in_any_pieces_arrives_whole_with_its_arguments(
    monkeypatch: pytest.MonkeyPatch, commands: list[list[bytes]], cuts: list[int]
) -> None:
    data = b"".join(command(*argv) for argv in commands)
    passed, seen = streamed(data, [min(cut, len(data)) for cut in cuts], monkeypatch)
    assert passed == data
    assert [len(argv) for argv in seen] == [len(argv) for argv in commands]
    for argv, sent in zip(itertools.chain(*seen), itertools.chain(*commands), strict=True):
        if isinstance(argv, StreamedBulk):
            assert (argv, argv.size) == (sent[: requests.HEAD], len(sent))
        else:
            assert argv == sent


def test_the_end_of_a_streamed_request_is_held_until_all_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "LARGE", 10)
    reader = RequestReader(IDENTIFIED)
    reader.feed(command(b"SET", b"k", b"v" * 20)[:-1])
    assert reader.next() is None
    assert reader.take_partial() == command(b"SET", b"k", b"v" * 20)[:-2]
    assert reader.next() is None
    reader.feed(b"\n")
    assert reader.next() == [b"SET", b"k", b"v" * 20]
    assert reader.span(reader.start, reader.end) == b"\r\n"


def test_streamed_bytes_count_towards_max_request_but_not_max_held() -> None:
    limits = replace(IDENTIFIED, max_request=4 * 2**20, max_held=100)
    size = 2 * 2**20
    reader = RequestReader(limits)
    reader.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n" % size)
    assert reader.next() is None
    assert reader.is_large
    reader.take_partial()
    reader.feed(b"x" * size + b"\r\n")
    assert reader.next() is None
    reader.take_partial()
    argv = reader.next()
    assert argv is not None
    assert [len(argument) for argument in argv] == [3, 1, requests.HEAD]
    reader.feed(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\n")
    with pytest.raises(RequestTooLarge, match="beside its large arguments"):
        reader.next()


def test_no_garbage_collection_looks_at_the_arguments_of_a_long_request() -> None:
    """It would look at each of them while all clients wait, and there is nothing to find."""
    tracked = {}
    for count in (10, 10_000):
        reader = RequestReader(IDENTIFIED)
        request = command("DEL", *map(str, range(count)))
        for at in range(0, len(request), 1_000):
            reader.feed(request[at : at + 1_000])
            arguments = reader.next()
        assert arguments is not None
        assert arguments == [b"DEL", *(b"%d" % number for number in range(count))]
        tracked[count] = gc.is_tracked(arguments)
    assert tracked == {10: True, 10_000: False}
