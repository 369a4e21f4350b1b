"""The user at the other end of a unix socket as a source of identity.

Rule: the kernel's word counts (SO_PEERCRED), and nothing that the client sends.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Mapping
from typing import ClassVar

from .client_facts import Evidence
from .source import Source

_UCRED = struct.Struct("iII")  # pid, uid, gid: unix(7), SO_PEERCRED
UCRED_SIZE = _UCRED.size  # bytes of the socket option


def with_unix_peer(evidence: Evidence, credentials: bytes) -> Evidence:
    """Add the user id of the socket option SO_PEERCRED."""
    _, uid, _ = _UCRED.unpack(credentials)
    return dataclasses.replace(evidence, uid=uid)


@dataclasses.dataclass(frozen=True, slots=True)
class UnixUsers(Source):
    """Unix user ids and their services."""

    evidence: ClassVar[str] = "Unix user"
    uids: Mapping[int, str] = dataclasses.field(default_factory=dict)

    def service_of(self, evidence: Evidence) -> str:
        return "" if evidence.uid is None else self.uids.get(evidence.uid, "")
