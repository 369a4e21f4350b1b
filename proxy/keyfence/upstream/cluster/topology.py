"""The nodes of a Redis Cluster and their hash slots, as one node describes them.

Rule: a reply is read as a whole or not at all. Whatever is wrong with it is one TopologyError.

keyfence asks for CLUSTER NODES. Of the three commands it alone names the nodes without hash slots, to which a
node that gives slots away sends clients (ASK), and the configuration epochs, by which an old answer is known.
All versions have it, and its addresses do not depend on `cluster-preferred-endpoint-type`. Lettuce and
predixy ask for it too; redis-py, ioredis, node-redis and Envoy ask for CLUSTER SLOTS, because they need no
more than the owners. Replies to CLUSTER SLOTS are read as well, for the audit, and those to CLUSTER SHARDS,
by which tests see what clients get.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keyfence.net.host_port import host_port
from keyfence.policy.compiled.hash_slots import SLOTS

MAX_NODES = 10_000
MAX_TEXT = 16 * 1024 * 1024  # bytes of a reply to CLUSTER NODES
MAX_NAME = 255  # characters of an id or a host

# In the place of an address: the node does not know its own, has no endpoint, or has no name.
NOT_NAMED = ("", "?")

Range = tuple[int, int]  # the first and the last hash slot


class TopologyError(Exception):
    """A reply does not describe a cluster. `str` says why, for people."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One node. What a reply does not tell has the default here."""

    id: str
    host: str  # where clients find it; "": it has no address now
    port: int
    hostname: str = ""  # the name that it announces besides
    is_primary: bool = True
    primary_id: str = ""  # of a replica
    slots: tuple[Range, ...] = ()  # of a primary
    is_healthy: bool = True
    is_dead: bool = False  # the cluster has agreed on it; one node alone may only find it unhealthy
    config_epoch: int = 0  # of its primary; grows with each failover and each hash slot that moves

    @property
    def shown(self) -> str:
        return host_port(self.host, self.port) if self.host else self.id

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def has_address(self) -> bool:
        """Whether it says where it is. A node of which the others have lost sight does not."""
        return bool(self.host and self.port)

    @property
    def slot_count(self) -> int:
        return sum(last + 1 - first for first, last in self.slots)


class Changes(NamedTuple):
    """What is different in a newer topology: its nodes, but of those that left the last ones known."""

    joined: tuple[Node, ...] = ()
    left: tuple[Node, ...] = ()
    moved: tuple[Node, ...] = ()  # have another address
    changed_role: tuple[Node, ...] = ()
    changed_slots: tuple[Node, ...] = ()


class Topology:
    """All nodes of a cluster."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda one: one.id))
        self.nodes_by_id: Mapping[str, Node] = {one.id: one for one in self.nodes}
        self._owners: list[Node | None] = [None] * SLOTS
        self._by_address: dict[tuple[str, int], Node] = {}
        for node in self.nodes:
            self._by_address.setdefault((node.hostname or node.host, node.port), node)
            for first, last in node.slots:
                self._owners[first : last + 1] = [node] * (last + 1 - first)
        self._by_address |= {one.address: one for one in self.nodes if one.host}
        self.covered = sum(one is not None for one in self._owners)
        self.served = sum(one is not None and not one.is_dead for one in self._owners)
        # How new this is. Primaries without hash slots do not count: they may leave with a high epoch.
        self.epoch = max((one.config_epoch for one in self.nodes if one.slots), default=0)

    def owner(self, slot: int) -> Node | None:
        """The primary that has a hash slot; None: nobody has it."""
        return self._owners[slot] if 0 <= slot < SLOTS else None

    def owners(self) -> list[Node]:
        """The primaries that have hash slots, in the order of these."""
        return sorted((one for one in self.nodes if one.slots), key=lambda one: one.slots)

    def by_shard(self) -> list[Node]:
        """All nodes: each primary, in the order of their hash slots, and its replicas behind it."""

        def place(node: Node) -> tuple[bool, bool, tuple[Range, ...], str, bool]:
            first = self.nodes_by_id.get(node.primary_id, node)
            return not first.is_primary, not first.slots, first.slots, first.id, node is not first

        return sorted(self.nodes, key=place)

    def node_at(self, host: str, port: int) -> Node | None:
        """The node with this IP address or name; None: there is none."""
        return self._by_address.get((host, port))

    def replicas_of(self, node_id: str) -> list[Node]:
        return [one for one in self.nodes if one.primary_id == node_id]

    def changes_since(self, older: Topology) -> Changes:
        both = [(older.nodes_by_id[one.id], one) for one in self.nodes if one.id in older.nodes_by_id]
        return Changes(
            joined=tuple(one for one in self.nodes if one.id not in older.nodes_by_id),
            left=tuple(one for one in older.nodes if one.id not in self.nodes_by_id),
            moved=tuple(now for was, now in both if was.address != now.address),
            changed_role=tuple(
                now
                for was, now in both
                if (was.is_primary, was.primary_id) != (now.is_primary, now.primary_id)
            ),
            changed_slots=tuple(now for was, now in both if was.slots != now.slots),
        )

    def same_as(self, other: Topology) -> bool:
        """Whether clients can use both in the same way."""
        return not any(self.changes_since(other))


def topology_in(reply: object, asked: str) -> Topology:
    """The topology in a reply of the node at the host `asked` to CLUSTER NODES (a text), CLUSTER SLOTS or
    CLUSTER SHARDS (a list), as values. Raises TopologyError."""
    if isinstance(reply, bytes | str):
        nodes = _in_lines(_text(reply, MAX_TEXT), asked)
    elif isinstance(reply, list):
        is_shards = bool(reply) and _is_shard(reply[0])
        nodes = _in_shards(reply, asked) if is_shards else _in_ranges(reply, asked)
    else:
        raise TopologyError("its answer describes no cluster")
    if len(nodes) > MAX_NODES:
        raise TopologyError(f"it names {len(nodes)} nodes, more than {MAX_NODES}")
    if len({one.id for one in nodes}) < len(nodes):
        raise TopologyError("it names a node twice")
    return Topology(nodes)


def _in_lines(text: str, asked: str) -> list[Node]:
    """The nodes in the reply to CLUSTER NODES."""
    lines = [line for line in text.removeprefix("txt:").split("\n") if line.strip()]
    if len(lines) > MAX_NODES:
        raise TopologyError(f"it names {len(lines)} nodes, more than {MAX_NODES}")
    nodes = [_in_line(line.split(), asked) for line in lines]
    return [one for one in nodes if one is not None]


def _in_line(words: Sequence[str], asked: str) -> Node | None:
    """The node in a line of CLUSTER NODES: `ID IP:PORT@BUS,NAME FLAGS PRIMARY PING PONG EPOCH LINK SLOT…`;
    None: it is no member yet, and its id is not the one that it will have."""
    if len(words) < 8:
        raise TopologyError("a line of its answer to CLUSTER NODES is too short")
    flags = words[2].split(",")
    if "handshake" in flags:
        return None
    address, *names = words[1].split(",")
    host, _, port = address.partition("@")[0].rpartition(":")
    has_address = "noaddr" not in flags
    is_primary = "master" in flags
    # A bracket holds a hash slot that is on its way, which still has the owner that it had.
    ranges = [_range(*word.split("-", 1)) for word in words[8:] if not word.startswith("[")]
    return Node(
        id=_text(words[0]),
        host=_host(host, asked) if has_address else "",
        port=_number(port, 65535) if has_address else 0,
        hostname=_text(names[0]) if names else "",
        is_primary=is_primary,
        primary_id="" if is_primary or words[3] == "-" else _text(words[3]),
        slots=tuple(ranges),
        is_healthy=has_address and not {"fail", "fail?"} & set(flags),
        is_dead="fail" in flags,
        config_epoch=_number(words[6], 2**64),
    )


def _in_ranges(rows: Sequence[object], asked: str) -> list[Node]:
    """The nodes in the reply to CLUSTER SLOTS: `[FIRST, LAST, PRIMARY, REPLICA…]`."""
    if len(rows) > SLOTS:
        raise TopologyError("its answer to CLUSTER SLOTS has more ranges than there are hash slots")
    nodes: dict[str, Node] = {}
    slots: dict[str, list[Range]] = {}
    for row in rows:
        if len(_list(row)) < 3:
            raise TopologyError("a range in its answer to CLUSTER SLOTS has no node")
        first, last, *near = _list(row)
        primary, *replicas = [_in_row(_list(one), asked) for one in near]
        nodes[primary.id] = primary
        slots.setdefault(primary.id, []).append(_range(first, last))
        for one in replicas:
            nodes[one.id] = dataclasses.replace(one, is_primary=False, primary_id=primary.id)
    return [dataclasses.replace(one, slots=tuple(slots.get(one.id, ()))) for one in nodes.values()]


def _in_row(row: Sequence[object], asked: str) -> Node:
    """A node in the reply to CLUSTER SLOTS: `[ENDPOINT, PORT, ID, METADATA]`. Old servers omit the last."""
    if len(row) < 2:
        raise TopologyError("a node in its answer to CLUSTER SLOTS has no address")
    about = _map(row[3]) if len(row) > 3 else {}
    endpoint = _text(row[0])
    host = _host(endpoint, asked, about)
    port = _number(row[1], 65535)
    node_id = _text(row[2]) if len(row) > 2 else host_port(host, port)
    return Node(node_id, host, port, _text(about.get("hostname")))


def _is_shard(row: object) -> bool:
    return isinstance(row, dict) or (isinstance(row, list) and row[:1] in ([b"slots"], ["slots"]))


def _in_shards(rows: Sequence[object], asked: str) -> list[Node]:
    """The nodes in the reply to CLUSTER SHARDS: `{slots: [FIRST, LAST…], nodes: [{id, port, …}]}`."""
    nodes = []
    for row in rows:
        shard = _map(row)
        numbers = _list(shard.get("slots"))
        slots = tuple(_range(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=False))
        near = [_map(one) for one in _list(shard.get("nodes"))]
        primary = next((_text(one.get("id")) for one in near if _text(one.get("role")) == "master"), "")
        for about in near:
            node_id = _text(about.get("id"))
            is_primary = node_id == primary
            nodes.append(
                Node(
                    id=node_id,
                    host=_host(_text(about.get("endpoint")), asked, about),
                    port=_number(about.get("port") or about.get("tls-port"), 65535),
                    hostname=_text(about.get("hostname")),
                    is_primary=is_primary,
                    primary_id="" if is_primary else primary,
                    slots=slots if is_primary else (),
                    is_healthy=_text(about.get("health")) != "fail",
                    is_dead=_text(about.get("health")) == "fail",
                )
            )
    return nodes


def _host(written: str, asked: str, about: Mapping[str, object] | None = None) -> str:
    """Where a node is whose address is written like this. A node without an endpoint is where it was asked,
    but one that only lacks its name has its IP address in `about`."""
    if written == "?" and about:
        written = _text(about.get("ip"))
    return asked if written in NOT_NAMED else _text(written)


def _range(first: object, last: object = None) -> Range:
    begin = _number(first, SLOTS - 1)
    end = begin if last is None else _number(last, SLOTS - 1)
    if end < begin:
        raise TopologyError(f"it names a range of hash slots that ends before it begins: {begin}-{end}")
    return begin, end


def _number(value: object, most: int) -> int:
    if isinstance(value, bytes | str):
        text = _text(value)
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
    if not isinstance(value, int) or not 0 <= value <= most:
        raise TopologyError(f"it has no number up to {most} where one belongs")
    return value


def _text(value: object, longest: int = MAX_NAME) -> str:
    """A text; "": there is none."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if text is None:
        return ""
    if not isinstance(text, str) or len(text) > longest:
        raise TopologyError(f"it has no text of up to {longest} characters where one belongs")
    return text


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TopologyError("it has no list where one belongs")
    return value


def _map(value: object) -> dict[str, object]:
    """A map, which RESP2 has as a flat list."""
    if isinstance(value, list):
        value = dict(zip(map(_text, value[::2]), value[1::2], strict=False))
    if not isinstance(value, dict):
        raise TopologyError("it has no map where one belongs")
    return {_text(name): field for name, field in value.items()}
