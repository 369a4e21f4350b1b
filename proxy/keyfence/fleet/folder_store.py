"""A folder as the store of a policy: a folder for each version, and the link `current` to the newest.

Rule: what is under `current` is complete at each moment, because the link is replaced as a whole. A version
becomes visible by a rename that fails if there is one of its sequence.

    DIR/7/shop.yaml, DIR/7/shop.yaml.sig, DIR/7/policy.sig
    DIR/current -> 7
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

from keyfence.policy.source.files import Unreadable, read_file

from .manifest import MAX_SIGNED, SIGNED_END, SIGNED_FOLDER, BadManifest, Signed, check_path, parse_signed
from .signed import only_policy
from .store import KEPT_VERSIONS, Conflict, StoreError, Version

CURRENT = "current"


class FolderStore:
    """The versions of one policy, in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.shown = str(folder)
        self._folder = folder
        self._name = name

    async def last(self) -> int:
        sequences = self._sequences()
        newest = await self.read(sequences[-1]) if sequences else None
        if newest is not None and newest.manifest.name != self._name:
            raise StoreError(
                f"{self.shown} holds the policy {newest.manifest.name}, and not {self._name}; "
                "give each policy a folder"
            )
        return sequences[-1] if sequences else 0

    def _sequences(self) -> list[int]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise self._failed(exc) from None
        numbers = (name for name in names if name.isascii() and name.isdigit() and len(name) < 17)
        return sorted(int(name) for name in numbers if (self._folder / name / SIGNED_FOLDER).is_file())

    def _failed(self, exc: OSError) -> StoreError:
        return StoreError(f"{self.shown} cannot be used: {(exc.strerror or type(exc).__name__).lower()}")

    async def read(self, sequence: int) -> Version | None:
        folder = self._folder / str(sequence)
        try:
            signed = parse_signed(read_file(folder / SIGNED_FOLDER, MAX_SIGNED))
            contents = {name: read_file(folder / name) for name, _ in signed.manifest.files}
        except (Unreadable, BadManifest, ValueError):
            return None
        return Version(signed, contents)

    async def add(self, version: Version, after: int) -> None:
        sequence = version.manifest.sequence
        files = {check_path(name): content for name, content in version.contents.items()}
        files |= {name: version.signed.text() for name in _signature_names(version.signed)}
        if await self.last() != after:
            raise Conflict(self.shown, await self.last())
        current = self._folder / CURRENT
        if current.is_dir() and not current.is_symlink():
            raise StoreError(f"{current} is a folder, where keyfence links to the newest version; remove it")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
            try:
                _write(new, files)
                new.chmod(0o755)
                os.rename(new, self._folder / str(sequence))
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
            self._point()
        except OSError as exc:
            if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise Conflict(self.shown, sequence) from None
            raise self._failed(exc) from None
        for old in self._sequences()[:-KEPT_VERSIONS]:
            shutil.rmtree(self._folder / str(old), ignore_errors=True)

    def _point(self) -> None:
        """Let `current` lead to the newest version. Another one may come meanwhile."""
        pointed = 0
        while (newest := self._sequences()[-1]) != pointed:
            link = self._folder / f".{CURRENT}-{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            link.symlink_to(str(newest))
            os.replace(link, self._folder / CURRENT)
            pointed = newest


def _signature_names(signed: Signed) -> list[str]:
    """Where the signature is looked for: in the policy's folder, and beside a policy of one file."""
    own = only_policy(signed)
    return [SIGNED_FOLDER, f"{own}{SIGNED_END}"] if own else [SIGNED_FOLDER]


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
