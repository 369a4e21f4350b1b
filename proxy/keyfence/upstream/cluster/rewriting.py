"""Exchanges the addresses of a cluster's nodes for those of keyfence, in replies and in errors.

Rule: only addresses change. Nodes that have no address of keyfence are left out, with what only they serve. A
reply that cannot be read is refused, because it could name an address.

A reply is as that of a node that announces keyfence's address itself. If that is an IP address, there are no
names. If it is a name, it stands where clients look for an IP address too, because some read only that.

A redirect to a node without an address of keyfence, which is mostly one that has just joined, becomes an
error that clients know. The command has not run. MOVED becomes CLUSTERDOWN: redis-py and ioredis wait a
moment, ask for the topology and send the command again, go-redis sends it again. ASK becomes TRYAGAIN, for
the topology has not changed: all three send the command again. node-redis, Lettuce and Jedis give both errors
to the application.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from keyfence.resp.frames import Frame, FrameError, tree

from .announced import Addresses

BUS_OFFSET = 10_000  # Redis' own, from a port to that of the cluster's bus
_HIGHEST_PORT = 65_535
_ARRAY, _MAP, _VERBATIM, _TEXTS, _ERRORS = ord("*"), ord("%"), ord("="), b"$=", b"-!"
_REDIRECT = re.compile(rb"(MOVED|ASK) (\d{1,5}) ([^ ]*):(\d{1,5})( .*|)", re.DOTALL)
UNKNOWN_NODE = {
    "MOVED": b"CLUSTERDOWN Hash slot not served: keyfence does not know its node yet",
    "ASK": b"TRYAGAIN keyfence does not know the node to which the hash slot moves yet",
}


@functools.lru_cache(maxsize=8)  # after a failover all clients ask at once
def rewritten(command: str, reply: bytes, addresses: Addresses) -> bytes:
    """Returns the complete reply to a command of REWRITTEN, with keyfence's addresses. Errors stay as they
    are. Raises FrameError: it is no reply to this command."""
    frame = tree(reply)
    if frame.kind in _ERRORS:
        return reply
    return REWRITTEN[command](_Rewriting(reply, addresses), frame)


class Redirect(NamedTuple):
    """An error MOVED or ASK."""

    word: str
    slot: int
    host: str  # "" or "?": that of the node that was asked
    port: int
    rest: str  # what follows the address


def redirect_in(text: bytes) -> Redirect | None:
    """What the text of an error without `-` and CRLF says; None: it is no redirect. Scripts can word one."""
    found = _REDIRECT.fullmatch(text)
    if found is None:
        return None
    word, slot, host, port, rest = (part.decode("utf-8", "replace") for part in found.groups())
    return Redirect(word, int(slot), host.strip("[]"), int(port), rest)


def redirected(text: bytes, addresses: Addresses) -> bytes:
    """Returns the text of an error MOVED or ASK with keyfence's address. Any other text stays as it is."""
    redirect = redirect_in(text)
    if redirect is None:
        return text
    announced = addresses.at(redirect.host, redirect.port, redirect.slot)
    if announced is None:
        return UNKNOWN_NODE[redirect.word]
    return f"{redirect.word} {redirect.slot} {announced.host}:{announced.port}{redirect.rest}".encode()


class _Rewriting:
    """One reply, and the addresses to put into it."""

    def __init__(self, reply: bytes, addresses: Addresses) -> None:
        self._reply = reply
        self._addresses = addresses

    def slots(self, frame: Frame) -> bytes:
        """CLUSTER SLOTS: `[FIRST, LAST, [ENDPOINT, PORT, ID, METADATA]…]`, the primary first."""
        known: dict[bytes, bytes] = {}  # a node's frame is the same in each of its ranges
        rows = []
        for row in _items(frame):
            first, last, *nodes = _items(row, 3)
            new = []
            for node in nodes:
                written = self._as_is(node)
                if written not in known:
                    known[written] = self._slots_node(node)
                new.append(known[written])
            if new[0]:  # without its primary, clients would take a replica for the owner
                rows.append(_aggregate(row, [self._as_is(first), self._as_is(last), *filter(None, new)]))
        return _aggregate(frame, rows)

    def _slots_node(self, node: Frame) -> bytes:
        """A node with keyfence's address; empty: it has none."""
        _, _, node_id, *rest = _items(node, 3)
        announced = self._addresses.of(_text(node_id))
        if announced is None:
            return b""
        parts = [_bulk(announced.host), b":%d\r\n" % announced.port, self._as_is(node_id)]
        for about in rest:
            # The endpoint is all that there is: no other address, no other name.
            kept = (pair for pair in _pairs(about) if pair[0].text not in (b"ip", b"hostname"))
            parts.append(_aggregate(about, [self._as_is(one) for pair in kept for one in pair]))
        return _aggregate(node, parts)

    def shards(self, frame: Frame) -> bytes:
        """CLUSTER SHARDS: `{slots: […], nodes: [{id, port, ip, endpoint, …}]}`."""
        rows = []
        for shard in _items(frame):
            parts = []
            nodes: list[bytes] = []
            for name, value in _pairs(shard):
                new = self._as_is(value)
                if name.text == b"nodes":
                    nodes = [one for node in _items(value) if (one := self._shards_node(node))]
                    new = _aggregate(value, nodes)
                parts += [self._as_is(name), new]
            if nodes:
                rows.append(_aggregate(shard, parts))
        return _aggregate(frame, rows)

    def _shards_node(self, node: Frame) -> bytes:
        """A node with keyfence's address; empty: it has none."""
        pairs = _pairs(node)
        node_id = next((_text(value) for name, value in pairs if name.text == b"id"), "")
        announced = self._addresses.of(node_id)
        if announced is None:
            return b""
        host, port = _bulk(announced.host), b":%d\r\n" % announced.port
        exchanged = {b"port": port, b"tls-port": port, b"ip": host, b"endpoint": host}
        exchanged[b"hostname"] = host if announced.is_name else b""
        parts = []
        for name, value in pairs:
            new = exchanged.get(name.text or b"", self._as_is(value))
            if new:
                parts += [self._as_is(name), new]
        return _aggregate(node, parts)

    def nodes(self, frame: Frame) -> bytes:
        """CLUSTER NODES: a text with a line for each node."""
        text = frame.text
        if text is None or frame.kind not in _TEXTS:
            raise FrameError("it has no text where one belongs")
        prefix = b"txt:" if frame.kind == _VERBATIM else b""
        lines = map(self._line, text.removeprefix(prefix).split(b"\n"))
        new = prefix + b"\n".join(line for line in lines if line is not None)
        return b"%c%d\r\n%b\r\n" % (frame.kind, len(new), new)

    def replicas(self, frame: Frame) -> bytes:
        """CLUSTER REPLICAS: an array of lines as those of CLUSTER NODES."""
        lines = (self._line(one.text or b"") for one in _items(frame))
        return _aggregate(frame, [b"$%d\r\n%b\r\n" % (len(line), line) for line in lines if line])

    def _line(self, line: bytes) -> bytes | None:
        """A line `ID IP:PORT@BUS,NAME,… FLAGS …` with keyfence's address; None: its node has none."""
        if not line.strip():
            return line
        node_id, _, rest = line.partition(b" ")
        address, _, rest = rest.partition(b" ")
        announced = self._addresses.of(node_id.decode("utf-8", "replace"))
        if announced is None:
            return None
        here, *about = address.split(b",")  # a name, and what newer versions tell besides
        host = announced.host.encode()
        bus = b"@%d" % min(announced.port + BUS_OFFSET, _HIGHEST_PORT) if b"@" in here else b""
        if about:
            about[0] = host if announced.is_name else b""
        new = b",".join([b"%b:%d%b" % (host, announced.port, bus), *(about if any(about) else ())])
        return b" ".join([node_id, new, rest])

    def _as_is(self, frame: Frame) -> bytes:
        return self._reply[frame.begin : frame.end]


REWRITTEN: Final[Mapping[str, Callable[[_Rewriting, Frame], bytes]]] = {
    "CLUSTER SLOTS": _Rewriting.slots,
    "CLUSTER SHARDS": _Rewriting.shards,
    "CLUSTER NODES": _Rewriting.nodes,
    "CLUSTER REPLICAS": _Rewriting.replicas,
    "CLUSTER SLAVES": _Rewriting.replicas,
}


def _items(frame: Frame, least: int = 0) -> tuple[Frame, ...]:
    if frame.kind != _ARRAY or frame.text is not None or len(frame.items) < least:
        raise FrameError("it has no list where one belongs")
    return frame.items


def _pairs(frame: Frame) -> list[tuple[Frame, Frame]]:
    """The names and values of a map, which RESP2 has as a flat list."""
    if frame.kind not in (_ARRAY, _MAP):
        raise FrameError("it has no map where one belongs")
    return list(zip(frame.items[::2], frame.items[1::2], strict=False))


def _text(frame: Frame) -> str:
    return (frame.text or b"").decode("utf-8", "replace")


def _bulk(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _aggregate(like: Frame, parts: Sequence[bytes]) -> bytes:
    """An aggregate of the same kind with these frames in it."""
    count = len(parts) // 2 if like.kind == _MAP else len(parts)
    return b"%c%d\r\n%b" % (like.kind, count, b"".join(parts))
