"""The facts about a client before its first command, which are the evidence for its service.

Rule: this is a value. The transport creates it; each source of identity (`source`) adds its facts and reads
them back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The facts about a client before its first command."""

    listener_service: str = ""  # the service that the listener names; "" for none
    address: str = ""  # the client's IP address; "" if there is none, as on a unix socket
    _: dataclasses.KW_ONLY  # so that a new field changes no call
    uid: int | None = None  # of the process at the other end of a unix socket
    names: Sequence[str] = ()  # the holder's names in a verified certificate, best first
