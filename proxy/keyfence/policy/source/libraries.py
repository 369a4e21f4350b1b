"""The scripts of libraries that keyfence knows, by their SHA-1s: `scripts: {jobs: {library: bullmq}}`.

Rule: the file holds facts about texts and no text. A version that it does not list counts as unknown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("libraries.json")


class LibraryScript(NamedTuple):
    """A text that a library sends."""

    sha1: bytes
    keys: int  # the number of keys that a call declares
    writes: bool  # it may write; otherwise it only reads


class UnknownVersion(ValueError):
    """keyfence knows no version that begins so."""


@cache
def _facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_bytes())
    return found


def libraries() -> list[str]:
    """Returns the names of the libraries."""
    return sorted(_facts())


def versions_of(library: str) -> list[str]:
    """Returns the versions of a library that are known, the oldest first."""
    return list(_facts()[library]["versions"])


def chosen_versions(library: str, wanted: Sequence[str]) -> list[str]:
    """Returns the known versions that one of these names, as 5 or 5.81; all if none is given. Raises
    UnknownVersion."""
    known = versions_of(library)
    for text in wanted:
        if not any(_names(text, version) for version in known):
            raise UnknownVersion(text)
    return [version for version in known if not wanted or any(_names(text, version) for text in wanted)]


def scripts_of(library: str, versions: Sequence[str]) -> list[LibraryScript]:
    """Returns the scripts of these versions of a library."""
    chosen = set(versions)
    return [
        LibraryScript(sha1.encode(), int(fact["keys"]), fact["access"] != "read")
        for by_sha1 in _facts()[library]["scripts"].values()
        for sha1, fact in by_sha1.items()
        if chosen & set(fact["versions"])
    ]


def _names(text: str, version: str) -> bool:
    return f"{version}.".startswith(f"{text}.")
