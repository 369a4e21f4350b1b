"""A store of a policy's published versions, as those who publish see it.

Rule: a version is never changed. A new one is added only behind the one that its author has seen, so of two
who publish at once one succeeds, and the other is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from .manifest import Manifest, Signed

KEPT_VERSIONS = 100  # older ones are removed


class StoreError(Exception):
    """The store cannot be used. The message is a sentence, and holds no password."""


class Conflict(StoreError):
    """Somebody else has published meanwhile."""

    def __init__(self, shown: str, last: int) -> None:
        super().__init__(
            f"{shown} has got sequence {last} meanwhile, so nothing was stored; look at it, and push again"
        )


class Version(NamedTuple):
    """A published version. Nothing of it is checked yet if it comes from a store."""

    signed: Signed
    contents: Mapping[str, bytes]  # by path from the policy's folder

    @property
    def manifest(self) -> Manifest:
        return self.signed.manifest


class Store(Protocol):
    """Where versions of one policy are."""

    shown: str  # without a password

    async def last(self) -> int:
        """The sequence of the newest version; 0: there is none. Raises StoreError."""

    async def read(self, sequence: int) -> Version | None:
        """A version; None: it is not there, or is none. Raises StoreError."""

    async def add(self, version: Version, after: int) -> None:
        """Make this the newest version, if the newest one still has the sequence `after`. Raises StoreError,
        and ValueError if the store cannot hold such a policy."""


async def history(store: Store) -> list[tuple[int, Version | None]]:
    """The sequences that the store has kept, the newest first, each with its version."""
    last = await store.last()
    found: list[tuple[int, Version | None]] = []
    for sequence in range(last, max(last - KEPT_VERSIONS, 0), -1):
        version = await store.read(sequence)
        if version is not None or sequence == last:
            found.append((sequence, version))
    return found
