"""The listener as a source of identity.

Rule: it counts least, because everyone who reaches the address has it.
"""

from __future__ import annotations

from typing import ClassVar

from .client_facts import Evidence
from .source import Source


class Listener(Source):
    """The service that the listener names."""

    evidence: ClassVar[str] = "listener"

    def service_of(self, evidence: Evidence) -> str:
        return evidence.listener_service
