"""The interface of a source of identity.

Rule: a source is one file that implements `Source`; `resolver` lists the sources in order. A source says ""
where it does not know, never `unknown`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from .evidence import Evidence


class Source(Protocol):
    """One kind of evidence, and what the configuration says about it."""

    name: ClassVar[str]  # what this kind of evidence is called

    def service_of(self, evidence: Evidence) -> str:
        """The service of a client with this evidence; "" if this source does not know it."""
