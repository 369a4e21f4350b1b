"""Files that long work leaves behind, so that it can go on after an interruption.

Rule: a file is written whole or not at all, for its owner only: it may name keys. A file of other work is
never taken for one's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 5.0  # between two checkpoints
VERSION = 1


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message is one sentence for the user."""


class Checkpoint:
    """The file of one piece of work. `path` "": there is none, and nothing is kept."""

    def __init__(self, path: str, kind: str, work: Mapping[str, Any]) -> None:
        """`work` is what must be the same for the work to go on; values for JSON."""
        self.path = path
        self._kind = kind
        self._work = json.loads(json.dumps(work))
        self._due = time.monotonic() + SECONDS

    def load(self) -> dict[str, Any] | None:
        """The state that was kept; None if there is no file yet. Raises CheckpointError."""
        if not self.path:
            return None
        try:
            text = Path(self.path).read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as exc:
            raise CheckpointError(f"{self.path} cannot be read: {_why(exc)}") from None
        try:
            kept = json.loads(text)
            header, state = kept["keyfence"], kept["state"]
            kind, version, work = header["kind"], header["version"], header["work"]
        except (ValueError, TypeError, KeyError):
            raise CheckpointError(f"{self.path} is not a file of keyfence {self._kind} --resume") from None
        if (kind, version) != (self._kind, VERSION):
            raise CheckpointError(f"{self.path} is of keyfence {kind}, version {version}; name another file")
        for name, value in self._work.items():
            if work.get(name) != value:
                raise CheckpointError(
                    f"{self.path} is of other work: its {name} is not the same; remove it to begin anew"
                )
        return dict(state)

    def resume(self, take: Callable[[dict[str, Any]], None]) -> bool:
        """Has `take` go on from the state that was kept. Returns whether there was one. Raises
        CheckpointError."""
        kept = self.load()
        if kept is None:
            return False
        try:
            take(kept)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise CheckpointError(f"{self.path} is damaged; remove it to begin anew") from None
        return True

    @property
    def is_due(self) -> bool:
        """Whether it is time to write."""
        return bool(self.path) and time.monotonic() >= self._due

    def save(self, state: Mapping[str, Any]) -> None:
        """Writes the state. Raises CheckpointError."""
        if not self.path:
            return
        header = {"kind": self._kind, "version": VERSION, "work": self._work}
        try:
            write_whole(self.path, json.dumps({"keyfence": header, "state": state}))
        except OSError as exc:
            raise CheckpointError(f"{self.path} cannot be written: {_why(exc)}") from None
        self._due = time.monotonic() + SECONDS

    def remove(self) -> None:
        """The work is done."""
        if self.path:
            with contextlib.suppress(OSError):
                os.unlink(self.path)


def write_whole(path: str, text: str) -> None:
    """Replaces a file by one with this text, readable by its owner only. Raises OSError."""
    folder, name = os.path.split(os.path.abspath(path))
    descriptor, made = tempfile.mkstemp(prefix=f".{name}.", dir=folder)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def _why(exc: BaseException) -> str:
    return exc.strerror.lower() if isinstance(exc, OSError) and exc.strerror else "it is not UTF-8 text"
