"""Names services by what is known of their clients: certificate, user, client name, library, network.

Rule: what is known best comes first, as in `keyfence.identity`. A name is short and holds no number and no
id, because each instance of a service has its own.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import re
from functools import lru_cache
from typing import ClassVar, NamedTuple

from keyfence.config.identify import IdentifyModel
from keyfence.identity.client_facts import Evidence
from keyfence.identity.networks import ip_of
from keyfence.identity.resolver import Resolver
from keyfence.identity.source import Source
from keyfence.policy.services import UNKNOWN
from keyfence.policy.verdict import Peer
from keyfence.shapes.shapes import Shapes, parsed

OTHERS = "others"  # the clients beyond MAX_SERVICES
MAX_SERVICES = 50
MAX_NAME = 40  # characters
_NOBODY = ("", "default")  # the users that every client is
_PORT = re.compile(r"(?<=[\d\]]):\d{1,5}$")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9]+")
_BITS = {4: 24, 6: 64}  # of an address, that are its network


class Known(NamedTuple):
    """A service, and what told it from others."""

    service: str
    by: str


@dataclasses.dataclass(frozen=True, slots=True)
class _ByCertificate(Source):
    """Names a service by the best name in its client's certificate, which no configuration maps."""

    evidence: ClassVar[str] = "certificate"

    def service_of(self, evidence: Evidence) -> str:
        return _named(evidence.names[0].rpartition("://")[2]) if evidence.names else ""


class Identify(IdentifyModel):
    """Identifies clients by their certificates, and leaves the others to `Naming`."""

    def resolver(self, services: tuple[str, ...]) -> Resolver:
        plain = super().resolver(services)
        return dataclasses.replace(plain, sources=(_ByCertificate(), *plain.sources))


class Naming:
    """Names the services of one process, and no more than MAX_SERVICES of them."""

    def __init__(self) -> None:
        self._services: set[str] = set()

    def __call__(self, service: str, peer: Peer) -> str:
        """The name for a client that the configuration takes for `service`."""
        name = service if service != UNKNOWN else known(peer).service
        if name not in self._services:
            if len(self._services) >= MAX_SERVICES:
                return OTHERS
            self._services.add(name)
        return name


def known(peer: Peer) -> Known:
    """The service of a client; UNKNOWN if nothing tells it from others."""
    return _known(_PORT.sub("", peer.address), *peer[1:4])


@lru_cache(maxsize=4096)
def _known(address: str, user: str, name: str, library: str) -> Known:
    if user not in _NOBODY and (service := _named(user)):
        return Known(service, "user")
    if service := _without_ids(name):
        return Known(service, "client name")
    network = _network(address)
    said, where = _named(library.partition("(")[0]), _named(network)
    by = " and ".join([*(["library"] if said else []), *([network] if network else [])])
    return Known("-".join(filter(None, (said, where))) or UNKNOWN, by)


def _without_ids(name: str) -> str:
    """The words of a client's name before the first number or id; all its words if it begins with one."""
    parts = parsed(Shapes(trusting=True).shape(name.encode())) if name else []
    first = itertools.takewhile(lambda one: isinstance(one, str), parts)
    words = (one for one in parts if isinstance(one, str))
    return _named("-".join(map(str, first))) or _named("-".join(words))


def _network(address: str) -> str:
    """The network of a client; "" for this machine."""
    try:
        ip = ip_of(address.strip("[]"))
    except ValueError:
        return ""
    if ip.is_loopback:
        return ""
    return str(ipaddress.ip_network((ip, _BITS[ip.version]), strict=False))


def _named(text: str) -> str:
    """A text as the name of a service, as policies have them; "" if nothing of it can be one."""
    name = _NOT_A_NAME.sub("-", text).strip("-")[:MAX_NAME].rstrip("-")
    return name if not name or name[0].isalpha() else f"at-{name}"
