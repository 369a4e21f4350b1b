"""Which requests only read."""

from __future__ import annotations

import itertools
import random

from keyfence.resp import encode
from keyfence.session.conversation.reads import AT_PRIMARY, READS
from keyfence.session.conversation.routing import SHAREABLE
from keyfence.upstream.replicas.sorting import Piece, Sorter

SORTER = Sorter(READS)
GET, SET = encode.command(b"get", b"k"), encode.command(b"SET", b"k", b"v")


def test_requests_that_stand_together_and_read_are_one_piece() -> None:
    assert SORTER.pieces(GET + GET, 2) == [Piece(GET + GET, 2, True)]
    assert SORTER.pieces(GET + SET + SET + GET, 4) == [
        Piece(GET, 1, True),
        Piece(SET + SET, 2, False),
        Piece(GET, 1, True),
    ]


def test_an_inline_request_is_read_as_any_other() -> None:
    assert SORTER.pieces(b"GET k\r\n" + SET, 2) == [Piece(b"GET k\r\n", 1, True), Piece(SET, 1, False)]


def test_a_transaction_stays_together() -> None:
    whole = encode.command(b"MULTI") + GET + encode.command(b"EXEC")
    assert SORTER.pieces(whole, 3) == [Piece(whole, 3, False)]


def test_what_is_not_read_as_so_many_requests_is_no_read() -> None:
    assert SORTER.pieces(GET + GET, 3) == [Piece(GET + GET, 3, False)]
    assert SORTER.pieces(GET + b"*1\r\nx", 2) == [Piece(GET + b"*1\r\nx", 2, False)]


def test_the_pieces_are_the_requests() -> None:
    drawn = random.Random(5)
    for _ in range(100):
        requests = drawn.choices([GET, SET, encode.command(b"MGET", b"a", b"b")], k=drawn.randint(1, 12))
        pieces = SORTER.pieces(b"".join(requests), len(requests))
        assert b"".join(one.data for one in pieces) == b"".join(requests)
        assert sum(one.replies for one in pieces) == len(requests)
        assert all(a.reads is not b.reads for a, b in itertools.pairwise(pieces))


def test_only_shareable_commands_that_read_the_data_are_reads() -> None:
    names = {name.decode() for name in READS}
    assert {"GET", "MGET", "HGETALL", "ZRANGE", "TTL", "EXISTS", "XRANGE", "SORT_RO"} <= names
    assert names <= SHAREABLE
    assert not names & AT_PRIMARY.keys()
    assert not names & {"SCAN", "PFCOUNT", "SORT", "EVAL_RO", "FCALL_RO", "PUBLISH", "PING", "GETEX", "XREAD"}
