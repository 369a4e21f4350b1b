"""The client's TLS certificate as a source of identity.

Rule: only a verified certificate counts, and only its alternative names if it has any. A name that the
configuration maps goes before a name that merely equals a service's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from keyfence.policy.services import UNKNOWN

from .client_facts import Evidence
from .source import Source


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The holder's names in a verified certificate, best first: URIs (as SPIFFE ids), DNS names, else the CN.

    `certificate` is the value of `ssl.SSLSocket.getpeercert`. The subject's common name counts only without
    any alternative name (RFC 9525), because authorities check alternative names with more care. For the same
    reason a DNS name or a CN that looks like a URI is not used as one.
    """
    if not certificate:
        return ()
    alternative = certificate.get("subjectAltName", ())
    uris = [value for kind, value in alternative if kind == "URI" and "://" in value]
    names = [value for kind, value in alternative if kind == "DNS"]
    if not uris and not names:
        parts = [part for group in certificate.get("subject", ()) for part in group]
        names = [value for kind, value in parts if kind == "commonName"]
    return (*uris, *(name for name in names if "://" not in name))


def with_certificate(evidence: Evidence, certificate: Mapping[str, Any] | None) -> Evidence:
    """Add the names of a verified certificate; None: the client showed none."""
    return dataclasses.replace(evidence, names=certificate_names(certificate)) if certificate else evidence


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates(Source):
    """Names of certificates and their services."""

    evidence: ClassVar[str] = "certificate"
    services: frozenset[str]  # of the policy: such a name needs no mapping
    by_name: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def service_of(self, evidence: Evidence) -> str:
        if not evidence.names:
            return ""
        mapped = (self.by_name[name] for name in evidence.names if name in self.by_name)
        own = (name for name in evidence.names if name in self.services and name != UNKNOWN)
        return next(mapped, "") or next(own, "")
