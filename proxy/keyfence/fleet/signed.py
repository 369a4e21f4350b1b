"""Whether a policy is the one that was signed, and is not older than one that was in force.

Rule: every file that the policy is read from counts, the scripts that it names too. What cannot be checked is
refused. Each refusal begins with its kind: unsigned, wrong signature, untrusted key, wrong name, changed
content, replayed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from keyfence.policy.diagnostics import file_error
from keyfence.policy.source.files import POLICY_ENDS, Unreadable, read_file, replacing, shown_name

from .keys import NEEDS, Trust, is_available, signature_fault
from .manifest import (
    CANDIDATE_FORMAT,
    MAX_SIGNED,
    SIGNED_END,
    SIGNED_FOLDER,
    BadManifest,
    Signed,
    differences,
    parse_signed,
)

_MAX_STATE = 64 * 1024  # bytes


class Floor(NamedTuple):
    """The newest version that was in force. Older ones are refused."""

    name: str
    sequence: int
    digest: str  # of its manifest


def signature_path(policy: str | Path) -> str:
    """The signature file of a policy: beside a file, within a folder."""
    return os.path.join(policy, SIGNED_FOLDER) if os.path.isdir(policy) else f"{policy}{SIGNED_END}"


def read_signed(policy: str, trust: Trust, floor: Floor | None = None) -> Signed:
    """The signature file of a policy, checked except for the contents that it names. Raises FileError."""
    path = signature_path(policy)
    shown = shown_name(path)
    if not is_available():
        raise file_error(shown, NEEDS)
    try:
        content = read_file(path, MAX_SIGNED)
    except Unreadable as exc:
        raise file_error(shown, f"unsigned: the signature {exc}; sign it with keyfence push") from None
    if not content:
        raise file_error(shown, "unsigned: there is no signature; sign the policy with keyfence push")
    try:
        signed = parse_signed(content, trust.form)
    except BadManifest as exc:
        raise file_error(shown, f"unsigned: this {exc}") from None
    fault = (
        signature_fault(signed, trust.keys)
        or _name_fault(signed, trust)
        or replay_fault(signed, floor, trust)
    )
    if fault:
        raise file_error(shown, fault)
    return signed


def _name_fault(signed: Signed, trust: Trust) -> str:
    name = signed.manifest.name
    return "" if name == trust.name else f"wrong name: it was signed as {name}, and {trust.name} is expected"


def replay_fault(signed: Signed, floor: Floor | None, trust: Trust) -> str:
    """Why a version may not follow the one that was in force; "": it may."""
    if floor is None or floor.name != trust.name:
        return ""
    sequence = signed.manifest.sequence
    if trust.form == CANDIDATE_FORMAT:
        return _candidate_fault(signed, floor)
    if sequence < floor.sequence:
        return (
            f"replayed: it has sequence {sequence}, and {floor.sequence} was in force; push it again, with "
            f"--sequence {floor.sequence + 1} if the store has lost its versions"
        )
    if sequence == floor.sequence and signed.digest != floor.digest:
        return f"replayed: another version with sequence {sequence} was in force; push it again"
    return ""


def _candidate_fault(signed: Signed, floor: Floor) -> str:
    """The same for a candidate. One that was withdrawn has left a floor without a digest."""
    sequence = signed.manifest.sequence
    if (sequence, signed.digest) == (floor.sequence, floor.digest) or sequence > floor.sequence:
        return ""
    return (
        f"replayed: this is candidate {sequence}, and {floor.sequence} was here and has gone; push it again, "
        f"with --sequence {floor.sequence + 1} if the store has lost its candidates"
    )


def check_contents(policy: str, signed: Signed, contents: Mapping[str, bytes]) -> None:
    """Raises FileError if a policy was read from other files than were signed. `contents`: what it was read
    from, by path."""
    found = differences(signed.manifest, named_contents(policy, contents, signed))
    if found:
        text = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise file_error(shown_name(policy), f"changed content: {text}")


def named_contents(
    policy: str, contents: Mapping[str, bytes], signed: Signed | None = None
) -> dict[str, bytes]:
    """The files of a policy by their paths from its folder. A policy that is one file may be called otherwise
    than when it was signed: a copy on disk is."""
    if os.path.isdir(policy):
        return {os.path.relpath(path, policy): content for path, content in contents.items()}
    folder = os.path.dirname(policy) or "."
    named = {os.path.relpath(path, folder): content for path, content in contents.items()}
    own = os.path.basename(policy)
    signed_own = only_policy(signed) if signed is not None else ""
    if signed_own and own in named:
        named[signed_own] = named.pop(own)
    return named


def only_policy(signed: Signed) -> str:
    """The policy's file, if the policy is one; "" if it is several."""
    files = [name for name, _ in signed.manifest.files if name.endswith(POLICY_ENDS)]
    return files[0] if len(files) == 1 else ""


def read_floor(path: Path) -> Floor | None:
    """The newest version that was in force; None: none is known. Raises FileError if it cannot be known."""
    try:
        text = read_file(path, _MAX_STATE)
    except Unreadable as exc:
        if not _is_there(path):
            return None
        raise file_error(str(path), f"the last sequence {exc}; let keyfence read it") from None
    try:
        known = json.loads(text)
        return Floor(str(known["name"]), int(known["sequence"]), str(known["manifest"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        why = "this is not the last sequence of a signed policy; remove it, if any signed policy may follow"
        raise file_error(str(path), why) from None


def _is_there(path: Path) -> bool:
    """Whether there may be such a file."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


class KeptFloor:
    """The newest version that was taken, kept on disk too: none older is taken, nor after a restart."""

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: it holds until a restart
        self.known: Floor | None = None
        self.why_not = ""  # why the disk does not have what is known

    def read(self) -> None:
        """Take what an earlier run has kept. Raises FileError."""
        if self.path is not None:
            self.known = read_floor(self.path)

    def keep(self, floor: Floor, why_not: str = "") -> bool:
        """None older than this is taken from now on. `why_not`: why it must not be written. Returns whether
        it was to be written, and was not."""
        if floor == self.known and not self.why_not:
            return False
        self.known, self.why_not = floor, why_not
        try:
            if self.path is not None and not why_not:
                write_floor(self.path, floor)
        except OSError as exc:
            self.why_not = (exc.strerror or type(exc).__name__).lower()
        return bool(self.why_not)


def write_floor(path: Path, floor: Floor) -> None:
    """Raises OSError, and leaves the earlier one then."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    known = {"name": floor.name, "sequence": floor.sequence, "manifest": floor.digest}
    with replacing(path, json.dumps(known)):
        pass


def floor_of(signed: Signed) -> Floor:
    return Floor(signed.manifest.name, signed.manifest.sequence, signed.digest)
