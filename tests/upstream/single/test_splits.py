"""The replies to the parts of a command become one reply, in any pieces, in any order, and within a bound."""

from __future__ import annotations

import random
from array import array

import pytest

from keyfence.policy.compiled.hash_slots import SLOTS
from keyfence.resp import encode
from keyfence.upstream.cluster.splitting import Split, split
from keyfence.upstream.single.cutting import NO_NODE
from keyfence.upstream.single.splits import AtOnce, OneByOne, Whole

KEYS = [b"a", b"b", b"c"]


def cut(*argv: bytes) -> Split:
    found = split(argv)
    assert found is not None
    return found


def one(value: bytes) -> bytes:
    return b"*1\r\n$%d\r\n%b\r\n" % (len(value), value)


def owners(command: Split, *nodes: int) -> array[int]:
    """Who has the hash slot of each part."""
    found = array("H", [NO_NODE]) * SLOTS
    for part, node in zip(command.parts, nodes, strict=True):
        found[part.slot] = node
    return found


def test_replies_in_pieces_are_joined_in_the_order_of_the_keys() -> None:
    chosen = random.Random(1)
    for _ in range(50):
        whole = Whole(cut(b"MGET", *KEYS))
        left = {place: one(KEYS[place] * 5) for place in range(3)}
        while left:
            assert not whole.is_complete
            place = chosen.choice([*left])
            size = chosen.randint(1, len(left[place]))
            piece, left[place] = left[place][:size], left[place][size:]
            whole.came(place, piece, not left[place])
            if not left[place]:
                del left[place]
        assert whole.is_complete
        assert whole.reply() == b"*3\r\n" + b"".join(b"$5\r\n%b\r\n" % (key * 5) for key in KEYS)


def test_replies_that_are_too_long_together_are_dropped_as_they_come() -> None:
    whole = Whole(cut(b"MGET", *KEYS), limit=100)
    whole.came(0, one(b"x" * 60), True)
    whole.came(1, b"*1\r\n$60\r\n" + b"x" * 10, False)
    assert whole.held > 60
    whole.came(1, b"x" * 50, False)
    assert whole.held == 0
    whole.came(1, b"\r\n", True)
    whole.came(2, one(b"y"), True)
    assert whole.is_complete
    assert whole.held == 0
    assert whole.reply() == (
        b"-ERR the nodes' replies to MGET are longer than 100 bytes together, which is what keyfence joins: "
        b"ask for less at once\r\n"
    )


def test_a_reply_that_is_none_to_the_command_is_an_error() -> None:
    whole = Whole(cut(b"MGET", *KEYS))
    for place in range(3):
        whole.came(place, b"+OK\r\n" if place == 1 else one(b"v"), True)
    assert whole.reply().startswith(b"-ERR keyfence cannot join the nodes' replies to MGET")


def test_parts_that_follow_one_by_one_complete_what_has_come_before() -> None:
    whole = Whole(cut(b"DEL", *KEYS))
    whole.came(1, b":1\r\n", True)
    rest = OneByOne(whole, [0, 2])
    assert rest.came(b":", False) == b""
    assert rest.came(b"0\r\n", True) == b""
    assert rest.came(b":1\r\n", True) == b":2\r\n"


def test_each_node_gets_its_parts_together_and_refused_ones_are_left() -> None:
    command = cut(b"MGET", *KEYS)
    all_at_once = AtOnce(Whole(command), owners(command, 4, 7, 4))
    assert all_at_once.requests == {
        4: encode.command(b"MGET", b"a") + encode.command(b"MGET", b"c"),
        7: encode.command(b"MGET", b"b"),
    }
    assert all_at_once.came(4, one(b"1") + b"-ASK 1 h:1\r\n>1\r\n+later\r\n") == b">1\r\n+later\r\n"
    assert not all_at_once.awaits(4)
    assert all_at_once.awaits(7)
    assert all_at_once.came(7, b">1\r\n+push\r\n*1\r\n$-") == b">1\r\n+push\r\n"
    assert all_at_once.came(7, b"1\r\n") == b""
    assert all_at_once.is_complete
    assert all_at_once.left == [2]


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_an_error_in_any_pieces_is_told_from_a_refusal(size: int) -> None:
    command = cut(b"DEL", *KEYS)
    all_at_once = AtOnce(Whole(command), owners(command, 4, 4, NO_NODE))
    data = b"-MOVED 15495 h:1\r\n-NOPERM no\r\n"
    for at in range(0, len(data), size):
        assert all_at_once.came(4, data[at : at + size]) == b""
    assert all_at_once.is_complete
    assert all_at_once.left == [0, 2]
    rest = OneByOne(all_at_once.whole, all_at_once.left)
    rest.came(b":1\r\n", True)
    assert rest.came(b":1\r\n", True) == b"-NOPERM no\r\n"
