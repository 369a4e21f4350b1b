"""The client's network as a source of identity.

Rule: the narrowest network that holds the address decides. An IPv4 address mapped into IPv6 counts as the
IPv4 address.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence
from typing import ClassVar

from .client_facts import Evidence
from .source import Source

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def ip_of(address: str) -> IpAddress:
    """The IP address in a text, without its zone. Raises ValueError."""
    ip = ipaddress.ip_address(address.split("%", maxsplit=1)[0])
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def is_trusted(address: str, networks: Sequence[Network]) -> bool:
    """Whether the sender at this address may say for whom it connects (PROXY protocol): where networks are
    configured, it must be in one of them."""
    return not networks or any(ip_of(address) in network for network in networks)


def forwarded(evidence: Evidence, address: str) -> Evidence:
    """The evidence of a client for whom a proxy connects: the listener and the client's address. Nothing else
    that is known of the proxy counts for the client. `address` is "" where the proxy names none."""
    return Evidence(evidence.listener_service, address)


@dataclasses.dataclass(frozen=True, slots=True)
class Networks(Source):
    """Networks and their services."""

    evidence: ClassVar[str] = "source network"
    networks: Sequence[tuple[Network, str]] = ()

    def service_of(self, evidence: Evidence) -> str:
        if not self.networks:
            return ""  # so the address need not be read
        try:
            ip = ip_of(evidence.address)
        except ValueError:
            return ""
        holding = [(net.prefixlen, name) for net, name in self.networks if ip in net]
        return max(holding)[1] if holding else ""
