"""What a Sentinel listener says of its primaries, of itself and of other Sentinels.

Rule: it names only addresses of keyfence, from the configuration. So its answers never change while the
process runs, also if keyfence follows another Redis. The fields of the rows are those of Redis 7.0
(`src/sentinel.c`, addReplySentinelRedisInstance), because clients read them by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keyfence.net.host_port import host_port

VERSION = "7.2.0"  # whose commands these are; clients decide by it what they may send


class Primary(NamedTuple):
    """A name that clients ask for, and where they reach keyfence."""

    name: str
    host: str
    port: int
    others: Sequence[tuple[str, int]] = ()  # the Sentinel listeners of other keyfences

    @property
    def shown(self) -> str:
        return host_port(self.host, self.port)

    @property
    def sentinels(self) -> int:
        """The number of Sentinels that name it, this one included."""
        return 1 + len(self.others)

    def row(self) -> Mapping[str, str]:
        """As in SENTINEL MASTER."""
        return {
            **_instance(self.name, self.host, self.port, "master"),
            "info-refresh": "0",
            "role-reported": "master",
            "role-reported-time": "0",
            "config-epoch": "0",
            "num-slaves": "0",
            "num-other-sentinels": str(len(self.others)),
            "quorum": str(self.sentinels // 2 + 1),
            "failover-timeout": "180000",
            "parallel-syncs": "1",
        }

    def other_rows(self) -> list[Mapping[str, str]]:
        """As in SENTINEL SENTINELS."""
        return [_sentinel(host, port) for host, port in self.others]


class Sentinel:
    """What one listener knows."""

    def __init__(self, own: str, primaries: Iterable[Primary]) -> None:
        """`own` is the listener's address."""
        self.primaries = tuple(primaries)
        self.id = _id_of(own, *(f"{one.name}={one.shown}" for one in self.primaries))

    def find(self, name: bytes) -> Primary | None:
        return next((one for one in self.primaries if one.name.encode() == name), None)

    def info(self, sections: set[bytes]) -> str:
        """The sections of INFO that are named; all if none is."""
        known = {b"SERVER": self._server(), b"SENTINEL": self._sentinel()}
        if not sections or sections & {b"DEFAULT", b"ALL", b"EVERYTHING"}:
            sections = set(known)
        found = ("".join(f"{line}\r\n" for line in known[name]) for name in known if name in sections)
        return "\r\n".join(found)

    def _server(self) -> list[str]:
        return ["# Server", f"redis_version:{VERSION}", "redis_mode:sentinel", f"run_id:{self.id}"]

    def _sentinel(self) -> list[str]:
        return [
            "# Sentinel",
            f"sentinel_masters:{len(self.primaries)}",
            "sentinel_tilt:0",
            "sentinel_tilt_since_seconds:-1",
            "sentinel_running_scripts:0",
            "sentinel_scripts_queue_length:0",
            "sentinel_simulate_failure_flags:0",
            *(
                f"master{number}:name={one.name},status=ok,address={one.shown},slaves=0,"
                f"sentinels={one.sentinels}"
                for number, one in enumerate(self.primaries)
            ),
        ]


def _sentinel(host: str, port: int) -> Mapping[str, str]:
    return {
        **_instance(_id_of(host_port(host, port)), host, port, "sentinel"),
        "last-hello-message": "0",
        "voted-leader": "?",
        "voted-leader-epoch": "0",
    }


def _instance(name: str, host: str, port: int, flags: str) -> Mapping[str, str]:
    """The fields that all rows begin with. Nothing is ever measured, so all times are zero."""
    return {
        "name": name,
        "ip": host,
        "port": str(port),
        "runid": _id_of(host_port(host, port)),
        "flags": flags,
        "link-pending-commands": "0",
        "link-refcount": "1",
        "last-ping-sent": "0",
        "last-ok-ping-reply": "0",
        "last-ping-reply": "0",
        "down-after-milliseconds": "30000",
    }


def _id_of(*texts: str) -> str:
    """Forty hexadecimal digits, the same in each worker and after each restart."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:40]
