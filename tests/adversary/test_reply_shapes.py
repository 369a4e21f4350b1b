"""Every request on a shared connection has exactly one reply, whatever its arguments, on real servers.

After each call comes an ECHO of a random word. The frames before that word are the call's.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Sequence
from itertools import takewhile

import hiredis
import pytest

from tests.adversary.calls import (
    LIBRARY,
    PLANTED,
    Argv,
    every_word_in_every_place,
    mutated,
    shareable_calls,
    shares,
)
from tests.adversary.conftest import Search
from tests.adversary.resp import BrokenReply, Frames, is_push, requests
from tests.servers import PATIENCE_SECONDS, RedisServer

BATCH = 100


class Prober:
    """A connection to a server, for trying calls."""

    def __init__(self, server: RedisServer, resp: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(str(server.socket_path))
        # Before Redis 7, loading the library is an error.
        self._ask([[b"HELLO", str(resp).encode()], [b"FUNCTION", b"LOAD", b"REPLACE", LIBRARY]])

    def close(self) -> None:
        self._socket.close()

    def plant(self) -> None:
        """Creates the data that the calls expect."""
        self._ask([[b"FLUSHALL"], *PLANTED])

    def try_all(self, calls: Sequence[Argv], *, in_multi: bool) -> None:
        """Fails unless each call has one reply, and MULTI and EXEC around it one more each."""
        tried = [[[b"MULTI"], call, [b"EXEC"]] if in_multi else [call] for call in calls]
        nonces = [secrets.token_hex(8).encode() for _ in tried]
        stream = []
        for several, nonce in zip(tried, nonces, strict=True):
            stream += [*several, [b"ECHO", nonce]]
        broken = self._exchange(requests(stream), nonces[-1])
        replies = iter([frame for frame in self.frames if not is_push(frame)])
        for several, nonce in zip(tried, nonces, strict=True):
            got = list(takewhile((b"$16\r\n%b\r\n" % nonce).__ne__, replies))
            assert len(got) == len(several), f"{several} has other replies than its own: {got} {broken or ''}"
        assert broken is None

    def _ask(self, calls: Sequence[Argv]) -> None:
        nonce = secrets.token_hex(8).encode()
        self._exchange(requests([*calls, [b"ECHO", nonce]]), nonce)

    def _exchange(self, data: bytes, nonce: bytes) -> BrokenReply | None:
        """Sends the requests, and reads frames up to the word, or up to a broken frame."""
        self._socket.sendall(data)
        self.frames = list[bytes]()
        ours, theirs = Frames(), hiredis.Reader(notEnoughData=_NOTHING)
        end, counted = b"$16\r\n%b\r\n" % nonce, 0
        while not self.frames or self.frames[-1] != end:
            data = self._socket.recv(1 << 20)
            assert data, "the server closed the connection"
            theirs.feed(data)
            self.frames += ours.feed(data)
            if ours.broken:
                return ours.broken
            counted += sum(1 for _ in iter(theirs.gets, _NOTHING))
            assert counted == len(self.frames), "hiredis counts otherwise"
        return None


_NOTHING = object()


@pytest.fixture
def probers(each_server: RedisServer) -> Iterator[list[Prober]]:
    """A connection in each protocol."""
    made = [Prober(each_server, resp) for resp in (2, 3)]
    yield made
    for one in made:
        one.close()


def test_a_call_on_a_shared_connection_has_one_reply(probers: list[Prober], search: Search) -> None:
    """First every word in every place, alternating both protocols and MULTI; then random words."""
    calls = shareable_calls()
    first = [list(every_word_in_every_place(call)) for call in calls]
    for rng in search.attempts_of_at_least(len(first)):
        if search.attempts < 4 * len(first):
            batch = first[search.attempts % len(first)]
            way = (search.attempts + search.attempts // len(first)) % 4
        else:
            batch = [mutated(rng, call) for call in rng.choices(calls, k=BATCH)]
            way = rng.randrange(4)
        prober = probers[way % 2]
        prober.plant()
        prober.try_all([*filter(shares, batch)], in_multi=way >= 2)
