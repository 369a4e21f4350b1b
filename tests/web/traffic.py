"""Commands that break rules in many ways, for the page's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keyfence.resp import encode
from tests.clients.running import ROUTE
from tests.servers import Keyfence

Commands = Sequence[tuple[str, ...]]
TRAFFIC: dict[str, Commands] = {
    "CubeMaster": [
        ("HSET", ROUTE, "HostIP", "10.0.0.7"),
        ("SET", "cbe:v1:shared:x:<b>\"'&\x1b[31m", "v"),
        ("KEYS", "*"),
        ("NOSUCH", "a"),
    ],
    "CubeProxy": [
        ("HSET", ROUTE, "HostIP", "10.0.0.8"),
        ("DEL", "bypass_host_proxy:7c8f"),
        ("EVAL", "x", "0"),
    ],
    "unknown": [("GET", ROUTE), ("SET", "a/b:c d", "v")],
}


def play(keyfence: Keyfence, traffic: Mapping[str, Commands] = TRAFFIC) -> None:
    """Send the commands of each service."""
    for service, commands in traffic.items():
        with keyfence.connect(service) as sock:
            for words in commands:
                sock.sendall(encode.command(*words))
                assert sock.recv(65_536)
