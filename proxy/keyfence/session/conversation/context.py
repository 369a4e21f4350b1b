"""What a session is made from: the objects that all sessions share, and the origin of its client.

Rule: neither changes. After a reload, later sessions have another context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import monotonic
from typing import Protocol

from keyfence.identity.resolver import Resolver
from keyfence.net.host_port import host_port
from keyfence.policy.engine.asker import Said
from keyfence.policy.engine.authorizer import InForce
from keyfence.policy.show import printable
from keyfence.policy.verdict import Peer
from keyfence.resp.limits import IDENTIFIED, RequestLimits

from .observer import Observer
from .shown_ids import ShownIds

MAX_SAID = 64  # the length of a client's own name in logs, in bytes


def _no_greeting() -> Sequence[bytes]:
    return ()


def _unheard(_word: str) -> None:
    pass


class Cluster(Protocol):
    """The addresses of keyfence that stand for the nodes of a cluster."""

    def answer(self, command: str, reply: bytes) -> bytes:
        """A complete reply to a command that names nodes, with keyfence's addresses."""

    def redirect(self, text: bytes) -> bytes:
        """The text of an error MOVED or ASK, with keyfence's address."""


@dataclasses.dataclass(frozen=True, slots=True)
class SessionContext:
    """The objects that all sessions of one upstream share."""

    in_force: InForce
    identities: Resolver
    observer: Observer
    limits: RequestLimits = IDENTIFIED
    # The commands that open an upstream connection, one reply each; they select `database`.
    greeting: Callable[[], Sequence[bytes]] = _no_greeting
    database: int = 0
    selects_later: bool = False  # the database may only be selectable once the client has logged in
    sharing: bool = False  # clients may use shared connections
    ids: ShownIds = dataclasses.field(default_factory=ShownIds)  # the connection ids that clients know
    seen: Callable[[str], None] = _unheard  # takes what sessions see of Redis (words of `upstream.standing`)
    cluster: Cluster | None = None  # Redis is a node of it
    roams: bool = False  # the cluster is behind one address: a client's connections lead to several nodes
    clock: Callable[[], float] = monotonic


@dataclasses.dataclass(slots=True, eq=False)
class ClientOrigin:
    """Where a client comes from, and what is known of it before it logs in. It stands for the client's
    connection too: its commands run in order."""

    service: str
    client: str  # its address or name …
    port: int = 0  # … and port, if there is one
    names: Sequence[str] = ()  # in its certificate
    known_by: str = ""  # the source of identity that `service` is from; "" for none

    def peer(self, said: Said) -> Peer:
        """Who the client is, as logs show it, if it says this of itself."""
        return _shown(self.client, self.port, said)


@lru_cache(maxsize=256)
def _shown(client: str, port: int, said: Said) -> Peer:
    """Remembered, because a client that is reported once is often reported again."""
    address = host_port(client, port) if port else client
    return Peer(address, *(printable(text, MAX_SAID) for text in said))
