"""The interface of a source of identity.

Rule: a source is one file that implements `Source`; `make_resolver` has the order of the sources. A source
that does not know a client says "", never `unknown`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from .client_facts import Evidence


class Source(Protocol):
    """One kind of evidence, and the configuration's mapping of it to services."""

    evidence: ClassVar[str]  # the kind, as docs/configuration.md names it

    def service_of(self, evidence: Evidence) -> str:
        """The service of a client with this evidence; "" if this source does not know it."""
