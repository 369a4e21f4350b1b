"""The last good policy of a server, on disk: for a start while the server is away.

Rule: only what was put in force is written. A file is replaced as a whole, and only its owner may read it.

The state beside the copy says which server and ETag it has. Its time of change is when the server has
confirmed the copy last, so that confirming writes no file.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from keyfence.policy.source.files import Unreadable, read_file, replacing

MAX_STATE = 64 * 1024  # bytes


class Copy(NamedTuple):
    """A policy on disk."""

    content: bytes
    etag: str  # "": it is not known
    confirmed: float  # Unix seconds


def _state(path: Path) -> Path:
    return path.with_name(f"{path.name}.state")


def read_copy(path: Path, server: str) -> Copy | None:
    """Returns the copy of the policy of this server (`PolicyServer.id`); None: there is none."""
    state = _state(path)
    try:
        content, known = read_file(path), json.loads(read_file(state, MAX_STATE))
        confirmed = state.stat().st_mtime
    except (Unreadable, OSError, ValueError):
        return None
    if not isinstance(known, dict) or known.get("server") != server:
        return None
    # After a crash between the two files, the copy is newer than its state.
    is_described = known.get("content") == hashlib.sha256(content).hexdigest()
    etag = known.get("etag")
    return Copy(content, etag if is_described and isinstance(etag, str) else "", confirmed)


def write_copy(path: Path, server: str, copy: Copy) -> None:
    """Raises OSError, and leaves the earlier copy then."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, copy.content.decode()):
        pass
    known = {"server": server, "etag": copy.etag, "content": hashlib.sha256(copy.content).hexdigest()}
    with replacing(_state(path), json.dumps(known)) as new:
        os.utime(new, (copy.confirmed, copy.confirmed))


def confirm_copy(path: Path, at: float) -> None:
    """The server has confirmed the copy. Raises OSError."""
    os.utime(_state(path), (at, at))
