"""Plans of a migration: a file of JSON lines, the first of which says where the plan comes from.

Rule: what is written is read back byte for byte, also keys that are not UTF-8. A plan is for its owner only:
it holds whole keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .renames import Rename

KIND = "migrate"
VERSION = 1
MAX_LINE = 64 * 1024 * 1024


class PlanError(Exception):
    """A plan cannot be read or written; the message is one sentence for the user."""


class Header(NamedTuple):
    """Where a plan comes from."""

    policy: str
    revision: str
    source: str  # the server, as people may see it

    def line(self) -> dict[str, Any]:
        return {"plan": KIND, "version": VERSION, **self._asdict()}


def as_object(one: Rename) -> dict[str, Any]:
    """A rename as a line of a plan."""
    line: dict[str, Any] = {"old": _text(one.old)}
    if one.new is not None:
        line["new"] = _text(one.new)
    line |= {"type": one.type, "ttl": one.ttl}
    if one.sets_ttl:
        line["sets_ttl"] = True
    line |= {"entry": one.entry, "database": one.database}
    if one.shown != line["old"]:
        line["shown"] = one.shown
    return line | ({"why": one.why} if one.why else {})


def from_object(line: dict[str, Any]) -> Rename:
    """The rename that a line of a plan describes. Raises ValueError."""
    try:
        new, ttl = line.get("new"), line.get("ttl")
        one = Rename(
            _bytes(line["old"]),
            str(line.get("shown", line["old"])),
            int(line.get("database", 0)),
            str(line.get("entry", "")),
            str(line["type"]),
            None if new is None else _bytes(new),
            None if ttl is None else int(ttl),
            bool(line.get("sets_ttl", False)),
            str(line.get("why", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ValueError(f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)) from None
    if one.new is None and not one.why:
        raise ValueError("it has neither new nor why")
    if one.new == one.old:
        raise ValueError("old and new are the same key")
    return one


class PlanWriter:
    """Writes a plan, to a file or to an open stream."""

    def __init__(self, header: Header, path: str = "", stream: BinaryIO | None = None, at: int = 0) -> None:
        """`at`: the bytes of the file that an interrupted audit has written for certain. Raises PlanError."""
        self.renames = self.open = 0
        self._path = path
        self._file = stream if stream is not None else _opened(path, at)
        if not at:
            self._write(header.line())

    def add(self, one: Rename) -> None:
        """Writes a line. Raises PlanError."""
        self.renames += one.new is not None
        self.open += one.new is None
        self._write(as_object(one))

    def _write(self, line: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line).encode() + b"\n")
        except OSError as exc:
            raise self._error(exc) from None

    def settle(self) -> int:
        """Writes everything for certain. Returns the bytes that the file has. Raises PlanError."""
        try:
            self._file.flush()
            if self._path:
                os.fsync(self._file.fileno())
                return self._file.tell()
        except OSError as exc:
            raise self._error(exc) from None
        return 0

    def close(self) -> None:
        """Ends the writing. Only what `settle` has written is there for certain."""
        if self._path:
            with contextlib.suppress(OSError):
                self._file.close()

    def _error(self, exc: OSError) -> PlanError:
        return PlanError(
            f"{self._path or 'the plan'} cannot be written: {(exc.strerror or str(exc)).lower()}"
        )


def _opened(path: str, at: int) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(descriptor).st_size < at:
            os.close(descriptor)
            raise PlanError(f"{path} is shorter than the interrupted audit left it; remove both files")
        os.ftruncate(descriptor, at)
        file = os.fdopen(descriptor, "wb")
        file.seek(at)
        return file
    except OSError as exc:
        raise PlanError(f"{path} cannot be written: {(exc.strerror or str(exc)).lower()}") from None


class Plan:
    """A plan in a file."""

    def __init__(self, path: str) -> None:
        """Reads the header and checks every line. Raises PlanError."""
        self.path = path
        digest = hashlib.sha256()
        self.header = Header("", "", "")
        self.renames = self.open = 0
        self.databases: set[int] = set()
        for number, line in enumerate(self._lines(), 1):
            digest.update(line)
            if number == 1:
                self.header = self._header(line)
                continue
            one = self._rename(number, line)
            self.renames += one.new is not None
            self.open += one.new is None
            self.databases.add(one.database)
        if not self.header.revision:
            raise PlanError(f"{path} is empty; keyfence audit --plan migrate writes a plan")
        self.digest = digest.hexdigest()

    def __iter__(self) -> Iterator[Rename]:
        """The renames, in the plan's order, also those that cannot be derived."""
        for number, line in enumerate(self._lines(), 1):
            if number > 1:
                yield self._rename(number, line)

    def _lines(self) -> Iterator[bytes]:
        try:
            with Path(self.path).open("rb") as file:
                while line := file.readline(MAX_LINE):
                    yield line
        except OSError as exc:
            raise PlanError(f"{self.path} cannot be read: {(exc.strerror or str(exc)).lower()}") from None

    def _header(self, line: bytes) -> Header:
        try:
            values = json.loads(line)
            if values["plan"] != KIND or values["version"] != VERSION:
                raise ValueError
            return Header(str(values["policy"]), str(values["revision"]), str(values["source"]))
        except (ValueError, TypeError, KeyError):
            raise PlanError(
                f"{self.path} is not a plan of keyfence audit --plan {KIND}, version {VERSION}"
            ) from None

    def _rename(self, number: int, line: bytes) -> Rename:
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError("it is not an object")
            return from_object(values)
        except ValueError as exc:
            raise PlanError(f"{self.path}:{number}: this is not a line of a plan: {exc}") from None


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
