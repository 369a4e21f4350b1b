"""Where the checks run, and what one run of a check has in its hands.

Rule: what a check opens is closed and what it writes is removed when it has ended, however it ends.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.conformance.check import Failed, Need
from tests.conformance.wire import Address, Connection, Ended, Silence, shown, value

_CLEANING_SECONDS = 5.0
_TOKEN = secrets.token_hex(4)
_numbers = itertools.count(1)


class Place(NamedTuple):
    """A proxy, and the Redis behind it if it may be asked directly."""

    target: Address
    direct: Address | None = None
    is_cluster: bool = False  # the Redis behind
    server: str = ""  # its name and version
    disturbs: bool = False

    def missing(self, needs: Sequence[Need]) -> Need | None:
        """The first need that is not met."""
        met = {
            Need.DIRECT: self.direct is not None,
            Need.PROXY: self.direct != self.target,
            Need.ONE_REDIS: not self.is_cluster,
            Need.CLUSTER: self.is_cluster,
            Need.DISTURB: self.disturbs,
        }
        return next((one for one in needs if not met[one]), None)


class Trial:
    """One run of one check."""

    def __init__(self, place: Place, seconds: float) -> None:
        self.place = place
        self.ends_at = time.monotonic() + seconds
        self._opened: list[Connection | socket.socket] = []
        self._keys: list[str] = []
        self._run = f"{_TOKEN}:{next(_numbers)}"

    def connect(self) -> Connection:
        """Returns a new client's connection to the proxy."""
        return self._open(self.place.target)

    def directly(self, address: Address | None = None) -> Connection:
        """Returns a new connection to the Redis behind, or to another node."""
        address = address or self.place.direct
        assert address is not None
        return self._open(address)

    def _open(self, address: Address) -> Connection:
        connection = Connection(address, self.ends_at)
        self._opened.append(connection)
        return connection

    def adopt(self, sock: socket.socket) -> None:
        """Closes a connection of another kind with the others."""
        self._opened.append(sock)

    def left(self) -> float:
        """The seconds that the check still has."""
        return max(0.0, self.ends_at - time.monotonic())

    def key(self, name: str = "k", tag: str = "") -> str:
        """Returns a key that only this run has; keys of one tag are in one hash slot."""
        key = f"conf:{{{tag}{self._run}}}:{name}" if tag else f"conf:{self._run}:{name}"
        self._keys.append(key)
        return key

    def keys(self, count: int, tag: str = "") -> list[str]:
        """Returns several keys; without a tag they are in many hash slots."""
        return [self.key(f"k{number}", tag) for number in range(count)]

    def name(self, word: str) -> str:
        """Returns a name that only this run has, for anything but a key."""
        return f"{word}-{self._run.replace(':', '-')}"

    def until(
        self, is_so: Callable[[], bool], expected: str, came: Callable[[], object], seconds: float = 3
    ) -> None:
        """Waits until something holds. Ends the check if it does not in time."""
        ends_at = min(self.ends_at, time.monotonic() + seconds)
        while not is_so():
            if time.monotonic() > ends_at:
                raise Failed(expected, str(came()))
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Ends a check whose time is over: each of its connections is closed."""
        self.ends_at = 0
        for connection in list(self._opened):
            connection.close()

    def close(self) -> None:
        """Closes the connections and removes the keys, also where the proxy does not answer."""
        self.interrupt()
        self.ends_at = time.monotonic() + _CLEANING_SECONDS
        with contextlib.suppress(OSError, Silence, Ended):
            if self.place.direct is not None:
                for address in primaries(self.place):
                    self.directly(address).ask("FLUSHALL")
            elif self._keys:
                self.connect().pipeline([("DEL", key) for key in self._keys])
        for connection in self._opened:
            connection.close()


def primaries(place: Place) -> list[Address]:
    """The Redis behind, or all primaries of the cluster."""
    return [nodes[0] for _, _, nodes in shards(place)] if place.is_cluster else [place.direct or place.target]


def shards(place: Place, seen_by: Address | None = None) -> list[tuple[int, int, list[Address]]]:
    """The ranges of hash slots of the cluster, each with its primary and replicas, as one node sees them."""
    node = seen_by or place.direct
    assert node is not None
    connection = Connection(node, time.monotonic() + _CLEANING_SECONDS)
    try:
        rows = value(connection.ask("CLUSTER", "SLOTS"))
    finally:
        connection.close()
    return [
        (first, last, [node._replace(host=host.decode() or node.host, port=port) for host, port, *_ in nodes])
        for first, last, *nodes in rows
    ]


class Unreachable(Exception):
    """An address is of no use to the checks; the text says why and what helps."""


def look(target: Address, direct: Address | None, *, flush: bool, disturbs: bool) -> Place:
    """Finds out what stands at the addresses. Raises Unreachable if nothing that can be checked does."""
    _answers(target, "TARGET")
    place = Place(target, direct)
    if direct is not None:
        info = _info(direct, "DIRECT")
        flavour = "valkey" if "valkey_version" in info else "redis"
        is_cluster = info.get("redis_mode") == "cluster" or info.get("server_mode") == "cluster"
        version = info.get(f"{flavour}_version", "of an unknown version")
        server = f"{flavour} {version}{' as a cluster' if is_cluster else ''}"
        place = Place(target, direct, is_cluster, server, disturbs)
    for address in primaries(place):
        name = "DIRECT" if direct else "TARGET"
        if flush:
            _asked(address, name, "FLUSHALL")  # a proxy that does not know it keeps its keys
        else:
            _must_be_empty(address, name)
    return place


def _answers(address: Address, name: str) -> None:
    """Raises Unreachable unless something there answers PING."""
    came = _asked(address, name, "PING")
    if not came.startswith(b"+PONG"):
        text = shown(came)
        remedy = (
            "write the login into it: redis://USER:PASSWORD@HOST:PORT"
            if b"NOAUTH" in came
            else (f"is {name} the address of a Redis or of a proxy for it?")
        )
        raise Unreachable(f"{address} answers PING by {text}: {remedy}")


def _info(address: Address, name: str) -> dict[str, str]:
    _answers(address, name)
    came = _asked(address, name, "INFO", "server")
    if not came.startswith(b"$"):
        raise Unreachable(f"{address} answers INFO by {shown(came)}: {name} must be a Redis, not a proxy")
    lines = came.decode("utf-8", "replace").split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _asked(address: Address, name: str, *words: str) -> bytes:
    try:
        connection = Connection(address, time.monotonic() + _CLEANING_SECONDS)
        try:
            return connection.ask(*words)
        finally:
            connection.close()
    except OSError as error:
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        raise Unreachable(
            f"nothing answers at {address} ({reason}): start it, or give another {name}"
        ) from None
    except Silence:
        raise Unreachable(
            f"{address} takes the connection and answers nothing: is {name} a port with TLS?"
        ) from None
    except Ended as error:
        raise Unreachable(
            f"{address} does not answer as a Redis: {error}. Is {name} another service, or with TLS?"
        ) from None


def _must_be_empty(address: Address, name: str) -> None:
    """Raises Unreachable if there are keys: FLUSHALL is one of the checks."""
    came = _asked(address, name, "DBSIZE")
    if came == b":0\r\n":
        return
    if came.startswith(b":"):
        raise Unreachable(
            f"{address} holds {value(came)} keys, and the checks remove all keys: "
            "take an empty Redis, or say --flush to lose them"
        )
    raise Unreachable(
        f"{address} answers DBSIZE by {shown(came)}, and the checks remove all keys: give the Redis "
        "behind it as DIRECT, or say --flush if no key there is needed"
    )
