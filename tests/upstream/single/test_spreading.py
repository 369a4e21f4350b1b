"""The reply of each node is taken as a whole, in any pieces and any order."""

from __future__ import annotations

import random

from keyfence.upstream.cluster.fan_out import Join
from keyfence.upstream.cluster.joining import Joined
from keyfence.upstream.single.spreading import Spread


def spread(join: Join, *, limit: int = 1000, skipped: int = 0) -> Spread:
    return Spread(Joined("DBSIZE", join, ["a", "b"], limit), {4: "a", 7: "b"}, skipped)


def test_replies_in_pieces_are_joined() -> None:
    chosen = random.Random(1)
    one = spread(Join.CONCATENATED)
    replies = {4: b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n", 7: b"*1\r\n$1\r\nz\r\n"}
    while not one.is_complete:
        number = chosen.choice([number for number in replies if one.awaits(number)])
        piece, replies[number] = replies[number][:3], replies[number][3:]
        assert one.came(number, piece) == b""
    assert one.reply() == b"*3\r\n$1\r\nx\r\n$1\r\ny\r\n$1\r\nz\r\n"


def test_what_follows_a_reply_or_is_pushed_is_handed_back() -> None:
    one = spread(Join.SUM)
    assert one.came(4, b">1\r\n+p\r\n:2\r\n+other\r\n") == b">1\r\n+p\r\n+other\r\n"
    assert not one.awaits(4)
    assert one.came(7, b":3\r\n") == b""
    assert one.reply() == b":5\r\n"


def test_the_reply_to_a_command_before_is_skipped() -> None:
    one = spread(Join.MINIMUM, skipped=1)
    one.came(4, b"+PONG\r\n:2\r\n")
    one.came(7, b"+PONG\r\n")
    assert not one.is_complete
    one.came(7, b":1\r\n")
    assert one.reply() == b":1\r\n"


def test_replies_that_are_too_long_together_are_an_error_and_held_by_nobody() -> None:
    one = spread(Join.CONCATENATED, limit=50)
    one.came(4, b"*1\r\n$40\r\n" + b"x" * 40 + b"\r\n")
    one.came(7, b"*1\r\n$40\r\n" + b"x" * 20)
    one.came(7, b"x" * 20 + b"\r\n")
    assert one.is_complete
    assert one.reply().startswith(b"-ERR the nodes' replies to DBSIZE are longer than")
