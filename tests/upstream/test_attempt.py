"""Attempts to connect that are given up while their transport is being made."""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

import hiredis
import pytest

from keyfence.resp import encode
from keyfence.resp.profile import Profile
from keyfence.upstream.address import Sentinels, UpstreamAddress
from keyfence.upstream.attempt import Attempt
from keyfence.upstream.dedicated import DedicatedLink, Owner
from keyfence.upstream.health import Upstream
from keyfence.upstream.pools import Pools
from tests.downstream.test_client import in_loop
from tests.servers import PATIENCE_SECONDS
from tests.upstream.test_shared import Recorder

PRIMARY = b"*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
ANSWER_SECONDS = 0.1  # within which a node has surely answered while the loop stands still


class Node(socketserver.ThreadingTCPServer):
    """A node that says that it is a primary, and answers ECHO, in threads of its own."""

    daemon_threads = True  # they end with their connections, which the test's loop closes later

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.asked: list[bytes] = []  # the last arguments

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Conversation(socketserver.BaseRequestHandler):
    server: Node

    def handle(self) -> None:
        requests = hiredis.Reader()
        with contextlib.suppress(ConnectionError):
            while data := self.request.recv(65536):
                requests.feed(data)
                while (argv := requests.gets()) is not False:
                    self.server.asked.append(argv[-1])
                    self.request.sendall(PRIMARY if argv[0] == b"HELLO" else b"+%b\r\n" % argv[-1])


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    with Node() as former, Node() as new:
        threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in (former, new)]
        for thread in threads:
            thread.start()
        try:
            yield former, new
        finally:
            for one, thread in zip((former, new), threads, strict=True):
                one.shutdown()
                thread.join()


def moved_while_made(patch: pytest.MonkeyPatch, upstream: Upstream, port: int) -> None:
    """The first transport is made in the turn of the loop in which the connection moves to another node. What
    the former node answers is read before anything else happens."""
    made = Attempt.made
    first = [True]

    def now(attempt: Attempt, transport: asyncio.BaseTransport) -> None:
        if first:
            first.clear()
            upstream.move("127.0.0.1", port, "a test")
            made(attempt, transport)
            time.sleep(ANSWER_SECONDS)
            return
        made(attempt, transport)

    patch.setattr(Attempt, "made", now)


def followed(port: int) -> Upstream:
    sentinels = Sentinels((("127.0.0.1", 1),), "m")
    address = UpstreamAddress("tcp", "127.0.0.1", port, shown="sentinel:m", sentinels=sentinels)
    return Upstream(address, connect_timeout=0.5)


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not happened():
            await asyncio.sleep(0.01)


@in_loop
async def test_a_shared_connection_that_moves_while_it_is_made_keeps_replies_apart(
    patch: pytest.MonkeyPatch,
) -> None:
    with two_nodes() as (former, new):
        upstream = followed(former.port)
        pools = Pools(upstream, 1)
        upstream.on_move = lambda _node, held: pools.move("another primary", held)
        moved_while_made(patch, upstream, new.port)
        clients = [Recorder(), Recorder()]
        for number, client in enumerate(clients):
            link = pools.link(Profile(), client)
            assert link is not None
            link.send([encode.command(b"ECHO", b"%d" % number)], [1])
            await until(lambda client=client: client.replies)  # type: ignore[misc]
        await asyncio.sleep(
            2 * upstream.connect_timeout
        )  # nothing of the former attempt ends the new connection
        assert [client.replies for client in clients] == [[(b"+0\r\n", 1, True)], [(b"+1\r\n", 1, True)]]
        assert [client.lost for client in clients] == ["", ""]
        assert upstream.up
        assert former.asked == []
        pools.close()


class Hearing(Owner):
    """A client with a dedicated connection."""

    def __init__(self) -> None:
        self.got = b""
        self.lost = ""

    def upstream_data(self, _link: DedicatedLink, data: bytes) -> None:
        self.got += data

    def upstream_lost(self, _link: DedicatedLink, reason: str) -> None:
        self.lost = reason

    def upstream_full(self, _link: object, full: bool) -> None:
        """It sends little."""


@in_loop
async def test_a_dedicated_connection_that_moves_while_it_is_made_sends_to_the_new_node_alone(
    patch: pytest.MonkeyPatch,
) -> None:
    with two_nodes() as (former, new):
        upstream, client = followed(former.port), Hearing()
        link = DedicatedLink(upstream, client)
        upstream.on_move = lambda _node, held: link.move("another primary", held)
        moved_while_made(patch, upstream, new.port)
        link.send([encode.command(b"ECHO", b"0")])
        await until(lambda: client.got or client.lost)
        await asyncio.sleep(2 * upstream.connect_timeout)
        assert (client.got, client.lost) == (b"+0\r\n", "")
        assert former.asked == []
        link.close()


@in_loop
async def test_a_connection_whose_time_is_over_once_it_is_made_is_lost() -> None:
    """uvloop closes such a transport, and does not say so."""
    upstream, client = followed(1), Hearing()
    link = DedicatedLink(upstream, client)

    class Transport(asyncio.Transport):
        def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
            """It stays here."""

        def writelines(self, list_of_data: object) -> None:
            """Nobody reads it."""

        def abort(self) -> None:
            """It is closed already."""

    async def attempt(protocol: Callable[[], asyncio.Protocol]) -> None:
        protocol().connection_made(Transport())
        raise TimeoutError

    upstream.attempt = attempt  # type: ignore[method-assign,assignment]
    link.send([encode.command(b"ECHO", b"0")])
    await until(lambda: client.lost)
    assert "timed out" in client.lost
    assert link.is_closed
