"""What nodes of a cluster answer, as captured from Redis 6.2 and 7.0 and shortened."""

from __future__ import annotations

from collections.abc import Mapping

from keyfence.resp import encode
from keyfence.upstream.cluster.announced import Addresses
from keyfence.upstream.cluster.topology import Topology, topology_in

FIRST, SECOND, THIRD = "4d" * 20, "dc" * 20, "de" * 20  # primaries
REPLICA = "4f" * 20  # of FIRST

NODES = (
    f"{THIRD} 10.0.0.3:7003@17003 master - 0 1795541062000 3 connected 10922-16383\n"
    f"{SECOND} 10.0.0.2:7002@17002,two.example master - 0 1795541063274 2 connected 5461-10921\n"
    f"{REPLICA} 10.0.0.4:7004@17004 slave {FIRST} 0 1795541062267 1 connected\n"
    f"{FIRST} 10.0.0.1:7001@17001 myself,master - 0 1795541060000 1 connected 0-5460 [5460->-{SECOND}]\n"
)


def topology(text: str = NODES) -> Topology:
    return topology_in(text.encode(), "10.0.0.1")


def addresses(host: str = "192.0.2.1", known: Mapping[str, int] | None = None) -> Addresses:
    ports = {FIRST: 7201, SECOND: 7202, THIRD: 7203, REPLICA: 7204}
    return Addresses(topology(), host, ports if known is None else known)


def wire(value: object, resp: int = 2) -> bytes:
    """A value as a node sends it: maps are flat in RESP2."""
    if value is None:
        return b"_\r\n" if resp > 2 else b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, str):
        return encode.command(value)[4:]
    if isinstance(value, dict):
        head = b"%%%d\r\n" % len(value) if resp > 2 else b"*%d\r\n" % (2 * len(value))
        return head + b"".join(wire(one, resp) for pair in value.items() for one in pair)
    assert isinstance(value, list)
    return b"*%d\r\n" % len(value) + b"".join(wire(one, resp) for one in value)
