"""The signed manifest of a policy: which contents are its files, who published it, and as which version.

Rule: no I/O. The signature covers the bytes of the first line as they are. Nothing of a manifest counts until
its signature has been checked.

A signature file has two lines: the manifest as one line of JSON, and the signature over that line:

    {"format": "keyfence-policy-1", "name": "shop", "sequence": 7, "files": {"shop.yaml": "SHA-256"}, …}
    0123456789abcdef BASE64

A candidate has a format of its own, and the sequence of the version that it is based on. So what is signed as
a candidate is never a policy, nor the other way round.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

FORMAT = "keyfence-policy-1"
CANDIDATE_FORMAT = "keyfence-candidate-1"
MAX_SEQUENCE = 2**53 - 1  # the largest number that every reader of JSON keeps exactly
MAX_SIGNED = 512 * 1024  # bytes of a signature file
MAX_TEXT = 1000  # characters of author and message
MAX_PATH = 1024  # bytes of a file's path …
MAX_PART = 255  # … and of each name in it
SIGNED_END = ".sig"
SIGNED_FOLDER = f"policy{SIGNED_END}"  # within a policy that is a folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_KEY_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)


class BadManifest(ValueError):
    """This is not a signature file. The message continues after the file's name."""


class Manifest(NamedTuple):
    """One published version of a policy, or a candidate for the next one."""

    name: str  # under which it is published
    sequence: int  # rises with each version; candidates are counted apart
    files: tuple[tuple[str, str], ...]  # path from the policy's folder, and SHA-256
    author: str
    message: str
    time: str  # as 2026-07-01T12:00:00Z
    base: int | None = None  # of a candidate: the newest version when it was pushed. None: it is a version

    @property
    def format(self) -> str:
        return FORMAT if self.base is None else CANDIDATE_FORMAT

    def line(self) -> bytes:
        """The line that is signed."""
        data = {"format": self.format, **self._asdict(), "files": dict(self.files)}
        if self.base is None:
            del data["base"]
        return json.dumps(data, ensure_ascii=False).encode()


class Signed(NamedTuple):
    """A manifest with its signature, which is not checked yet."""

    manifest: Manifest
    line: bytes
    key: str  # the id of the key that is said to have signed it
    signature: bytes

    @property
    def digest(self) -> str:
        """Tells it from another manifest of the same sequence."""
        return hashlib.sha256(self.line).hexdigest()

    def status(self) -> dict[str, Any]:
        """The version, for operators and programs."""
        one = self.manifest
        return {
            "name": one.name,
            "sequence": one.sequence,
            "author": one.author,
            "message": one.message,
            "time": one.time,
            "key": self.key,
            **({} if one.base is None else {"base": one.base}),
        }

    def text(self) -> bytes:
        """The signature file."""
        return self.line + f"\n{self.key} {base64.b64encode(self.signature).decode()}\n".encode()


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_name(text: str) -> str:
    """The name of a published policy, unchanged. Raises ValueError."""
    if not _NAME.fullmatch(text):
        raise ValueError("a name has 1 to 64 letters, digits, dots, dashes and underscores, a letter first")
    return text


def check_path(text: str) -> str:
    """The path of a policy's file from the policy's folder, unchanged. Raises ValueError: it leads elsewhere,
    or no file can have it."""
    parts = [part.encode("utf-8", "surrogatepass") for part in text.split("/")]
    if any(part in (b"", b"..") for part in parts):
        raise ValueError(f"{text} is outside the policy's folder; move it there")
    is_file = b"." not in parts and text.isprintable() and max(map(len, parts)) <= MAX_PART
    if not is_file or len(text) > MAX_PATH:
        raise ValueError(f"{text!a:.80} is no name for a policy's file; rename it")
    return text


def check_sequence(number: int) -> int:
    """A sequence, unchanged. Raises ValueError."""
    if not 1 <= number <= MAX_SEQUENCE:
        raise ValueError(f"a sequence is a number from 1 to {MAX_SEQUENCE}")
    return number


def parse_signed(content: bytes, form: str = FORMAT) -> Signed:
    """Reads a signature file of a format. Raises BadManifest."""
    if len(content) > MAX_SIGNED:
        raise BadManifest(f"has more than {MAX_SIGNED} bytes")
    line, _, rest = content.partition(b"\n")
    key, _, signature = rest.strip().partition(b" ")
    try:
        data = json.loads(line.decode())
        found = Signed(
            _manifest(data, form), line, key.decode("ascii"), base64.b64decode(signature, validate=True)
        )
    except (ValueError, RecursionError, binascii.Error) as exc:
        why = str(exc) if isinstance(exc, BadManifest) else "is not a manifest and its signature"
        raise BadManifest(f"{why}; keyfence push makes it") from None
    if not _KEY_ID.fullmatch(found.key) or len(found.signature) != 64:
        raise BadManifest("has no Ed25519 signature in its second line; keyfence push makes it")
    return found


def _manifest(data: Any, form: str) -> Manifest:
    if not isinstance(data, dict) or data.get("format") != form:
        raise BadManifest(f"is not of the format {form}")
    sequence, time = data.get("sequence"), data.get("time")
    if type(sequence) is not int or not 1 <= sequence <= MAX_SEQUENCE:
        raise BadManifest("has no sequence")
    if not isinstance(time, str) or not _TIME.fullmatch(time):
        raise BadManifest("has no time")
    texts = [data.get(name) for name in ("name", "author", "message")]
    for text in texts:
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise BadManifest("lacks its name, author or message")
    name, author, message = map(str, texts)
    if not _NAME.fullmatch(name):
        raise BadManifest("has a name that no policy may have")
    base = data.get("base") if form == CANDIDATE_FORMAT else None
    if form == CANDIDATE_FORMAT and (type(base) is not int or not 0 <= base <= MAX_SEQUENCE):
        raise BadManifest("does not say on which version it is based")
    return Manifest(name, sequence, _files(data.get("files")), author, message, time, base)


def _files(data: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(data, dict) or not data:
        raise BadManifest("names no files")
    for name, digest in data.items():
        try:
            check_path(name)
        except ValueError:
            raise BadManifest("names a file that is not in the policy's folder") from None
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise BadManifest("has a file without a hash")
    return tuple(data.items())


def differences(manifest: Manifest, contents: Mapping[str, bytes]) -> list[str]:
    """How the files that a policy was read from, by their paths from its folder, differ from those that were
    signed: one sentence each."""
    known = dict(manifest.files)
    found = []
    for name, content in sorted(contents.items()):
        if name not in known:
            found.append(f"{name} was not signed")
        elif digest_of(content) != known[name]:
            found.append(f"{name} has another content than was signed")
    found += [f"{name} was signed, and is missing" for name in sorted(known.keys() - contents.keys())]
    return found
