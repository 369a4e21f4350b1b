"""The searches' own reader of replies: the frames that it cuts, and the bytes that it refuses."""

from __future__ import annotations

import random

import hiredis
import pytest

from tests.adversary.conftest import Search
from tests.adversary.resp import BrokenReply, Frames, frame_end

FRAMES = [
    b"+OK\r\n",
    b"-ERR x\r\n",
    b":-1\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b",-inf\r\n",
    b"(123456789012345678901234567890\r\n",
    b"=5\r\ntxt:x\r\n",
    b"%1\r\n+a\r\n~1\r\n:1\r\n",
    b"|1\r\n+ttl\r\n:1\r\n$1\r\na\r\n",
    b">2\r\n+message\r\n$1\r\na\r\n",
    b"*1\r\n" * 7900 + b":1\r\n",
]
BROKEN = [
    b"+a\rb\r\n",
    b"+a\nb\r\n",
    b":x\r\n",
    b"$01\r\na\r\n",
    b"$+1\r\na\r\n",
    b"$1\r\nab\r\n",
    b"*?\r\n",
    b"%-1\r\n",
    b"*1\r\n>1\r\n+a\r\n",
    b"x\r\n",
    b"#x\r\n",
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: repr(frame[:20]))
def test_the_reader_finds_a_frame_s_end(frame: bytes) -> None:
    assert frame_end(frame + b"+more\r\n") == len(frame)
    assert all(frame_end(frame[:size]) is None for size in range(min(len(frame), 100)))


@pytest.mark.parametrize("data", BROKEN, ids=repr)
def test_bytes_outside_the_specification_are_refused(data: bytes) -> None:
    with pytest.raises(BrokenReply):
        frame_end(data)


def test_hiredis_cuts_as_this_reader_does(search: Search) -> None:
    # hiredis has a depth limit, and treats an attribute as a reply.
    known = [frame for frame in FRAMES[:-1] if not frame.startswith(b"|")]
    for rng in search:
        stream = b"".join(rng.choices(known, k=rng.randrange(1, 30)))
        ours, theirs = Frames(), hiredis.Reader()
        count = 0
        for piece in cut(rng, stream):
            count += len(ours.feed(piece))
            theirs.feed(piece)
            while theirs.has_data() and theirs.gets() is not False:
                count -= 1
            assert count == 0
        assert not ours.rest


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    """Returns the bytes in random pieces."""
    places = sorted(rng.sample(range(len(data)), min(len(data), rng.randrange(5))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
