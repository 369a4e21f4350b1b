"""Commands sent to the real nodes of a cluster as keyfence will send them: by the rows and steps of
`keyfence.upstream.cluster`, over plain sockets."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import hiredis

from keyfence.resp import encode
from keyfence.resp.replies import ReplyFramer
from keyfence.upstream.cluster.fan_out import Reach, asked, fan_out
from keyfence.upstream.cluster.joining import Joined, without_cluster
from keyfence.upstream.cluster.scanning import Step
from keyfence.upstream.cluster.topology import Node, Topology, topology_in
from tests.cluster import Cluster
from tests.servers import PATIENCE_SECONDS

Argv = tuple[bytes, ...]


class Nodes:
    """A connection to each node, and what a plain client gets."""

    def __init__(self, cluster: Cluster, resp: int) -> None:
        self._resp = resp
        self._sockets: dict[int, socket.socket] = {}
        self._seed = cluster.masters[0].port
        self.topology = self.known()

    def known(self) -> Topology:
        """The cluster as its first node sees it now."""
        assert self._seed is not None
        return topology_in(_value(self._ask(self._seed, encode.command("CLUSTER", "NODES"))), "127.0.0.1")

    def ask(self, node: Node, request: bytes) -> bytes:
        return self._ask(node.port, request)

    def _ask(self, port: int, request: bytes) -> bytes:
        sock = self._sockets.get(port)
        if sock is None:
            sock = self._sockets[port] = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
            self._ask(port, encode.command("HELLO", str(self._resp)))
        sock.sendall(request)
        framer, reply = ReplyFramer(), b""
        while not framer.completed:
            part = sock.recv(65536)
            assert part, "the node closes"
            framer.advance(part, 0, 1)
            reply += part
        return reply

    def call(self, *argv: str) -> bytes:
        """A client's reply to a command without keys."""
        words = tuple(one.encode() for one in argv)
        row = fan_out(words)
        if row.reach is Reach.NOBODY:
            return encode.error(row.refusal)
        if row.reach is Reach.SCAN:
            return self.scan(words)
        nodes = asked(row, self.topology)
        if row.reach is Reach.ONE:
            nodes = nodes[:1]
        reply = Joined(argv[0], row.join, [one.id for one in nodes])
        for node in nodes:
            reply.came(node.id, self.ask(node, encode.command(*words)), True)
        return without_cluster(argv[0], reply.reply())

    def scan(self, argv: Argv) -> bytes:
        """A client's reply to SCAN."""
        step = Step(argv, self.topology)
        if step.answer:
            return step.answer
        by_id = self.topology.nodes_by_id
        reply = step.answered(self.ask(by_id[step.node], step.request))
        if reply is None:
            text = self.ask(by_id[step.owner], encode.command("CLUSTER", "NODES"))
            reply = step.confirmed(_value(text), "127.0.0.1")
        return reply

    def value(self, *argv: str) -> object:
        return _value(self.call(*argv))

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()


def _value(reply: bytes) -> bytes | list[object] | int:
    reader = hiredis.Reader()
    reader.feed(reply)
    value = reader.gets()
    assert isinstance(value, bytes | list | int), value
    return value


@contextlib.contextmanager
def connected(cluster: Cluster, resp: int = 2) -> Iterator[Nodes]:
    nodes = Nodes(cluster, resp)
    try:
        yield nodes
    finally:
        nodes.close()
