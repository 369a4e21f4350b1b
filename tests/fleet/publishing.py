"""Signed policies for tests: a signer, and versions of a policy in any store.

Rule: what it signs is right. A test that wants a fault makes it itself.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from keyfence.fleet.keys import Signer, Trust, new_private
from keyfence.fleet.manifest import Manifest, Signed, digest_of
from keyfence.fleet.store import Store, Version

NAME = "shop"
AT = "2026-07-01T12:00:00Z"


class Publisher:
    """Someone who may sign the policy NAME."""

    def __init__(self) -> None:
        self.pem = new_private()
        self.signer = Signer(self.pem)
        self.trust = Trust(NAME, (self.signer.public,))

    @property
    def key(self) -> str:
        """The public key, as configurations name it."""
        return self.signer.public.text

    def key_file(self, folder: Path) -> Path:
        """Writes the private key to a file."""
        path = folder / "key.pem"
        path.write_bytes(self.pem)
        return path

    def sign(self, sequence: int, contents: dict[str, str], **others: object) -> Signed:
        files = tuple((name, digest_of(text.encode())) for name, text in contents.items())
        manifest = Manifest(NAME, sequence, files, "ada", "a change", AT)
        return self.signer.sign(manifest._replace(**others))  # type: ignore[arg-type]

    def version(self, sequence: int, text: str, **others: object) -> Version:
        signed = self.sign(sequence, {"shop.yaml": text}, **others)
        return Version(signed, {"shop.yaml": text.encode()})

    def candidate(self, number: int, base: int, text: str, **others: object) -> Version:
        """A candidate that is based on a version."""
        return self.version(number, text, base=base, **others)

    def write(self, path: Path, sequence: int, text: str, **others: object) -> Signed:
        """Writes a policy and its signature."""
        path.write_text(text)
        signed = self.sign(sequence, {path.name: text}, **others)
        path.with_name(f"{path.name}.sig").write_bytes(signed.text())
        return signed

    def push(self, store: Store, text: str) -> int:
        """Stores the next version. Returns its sequence."""
        after = asyncio.run(store.last())
        asyncio.run(store.add(self.version(after + 1, text), after))
        return after + 1
