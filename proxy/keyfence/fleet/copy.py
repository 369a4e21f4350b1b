"""The last good policy of a server, on disk: for a start while the server is away.

Rule: only what was put in force is written. A file is replaced as a whole, and only its owner may read it.

The state beside the copy says which server and ETag it has, and its signature. Its time of change is when the
server has confirmed the copy last, so that confirming writes no file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from keyfence.policy.source.files import Unreadable, read_file, replacing

from .manifest import MAX_SIGNED, SIGNED_END, digest_of

MAX_STATE = 64 * 1024 + 4 * MAX_SIGNED  # bytes: two signatures, with escapes


class Copy(NamedTuple):
    """A policy on disk."""

    content: bytes
    etag: str  # "": it is not known
    confirmed: float  # Unix seconds
    signature: bytes = b""  # the signature file; "": it is not signed

    def is_same(self, content: bytes, signature: bytes) -> bool:
        """Whether it is this version."""
        return self.content == content and self.signature == signature


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
    is_described = known.get("content") == digest_of(content)
    etag = known.get("etag")
    signature = _signatures(known).get(digest_of(content), "")
    return Copy(
        content, etag if is_described and isinstance(etag, str) else "", confirmed, signature.encode()
    )


def _signatures(known: dict[str, Any]) -> dict[str, str]:
    """The signatures in a state, by the hash of the content."""
    found = known.get("signatures")
    if not isinstance(found, dict):
        return {}
    return {key: text for key, text in found.items() if isinstance(text, str)}


def write_copy(path: Path, server: str, copy: Copy) -> None:
    """Raises OSError, and leaves the earlier copy then."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known: dict[str, Any] = {"server": server, "etag": copy.etag, "content": digest_of(copy.content)}
    if copy.signature:
        known["signatures"] = {known["content"]: copy.signature.decode("utf-8", "replace")}
        _announce(path, server, known["signatures"])
    with replacing(path, copy.content.decode()):
        pass
    if copy.signature:  # for commands that read the copy as a file
        with replacing(path.with_name(path.name + SIGNED_END), copy.signature.decode("utf-8", "replace")):
            pass
    _write_state(path, known, copy.confirmed)


def _announce(path: Path, server: str, signatures: dict[str, str]) -> None:
    """Add the signature of the content that follows to the state of the copy that is there. So there is a
    signature for the copy at each moment."""
    before = read_copy(path, server)
    if before is None:
        _write_state(path, {"server": server, "signatures": signatures}, 0.0)
        return
    content = digest_of(before.content)
    both = {content: before.signature.decode(), **signatures}
    known = {"server": server, "etag": before.etag, "content": content, "signatures": both}
    _write_state(path, known, before.confirmed)


def _write_state(path: Path, known: dict[str, Any], confirmed: float) -> None:
    with replacing(_state(path), json.dumps(known)) as new:
        os.utime(new, (confirmed, confirmed))


def confirm_copy(path: Path, at: float) -> None:
    """The server has confirmed the copy. Raises OSError."""
    os.utime(_state(path), (at, at))
