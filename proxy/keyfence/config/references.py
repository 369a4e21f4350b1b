"""References in a configuration: `${NAME}` to the environment, `file:PATH` to a file.

Rule: the value may be a secret, so a message shows the reference and never the value. Only settings that hold
secrets accept `file:`, because other settings name files themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from keyfence.policy.diagnostics import Diagnostic, FileError, Place
from keyfence.policy.source.files import Unreadable, read_file
from keyfence.policy.source.yaml import PathKey, Source
from keyfence.upstream.address import parse_upstream, without_password

FILE = "file:"
MAX_SECRET = 64 * 1024  # bytes of a file
_VARIABLE = re.compile(r"(\$?)\$\{([^{}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Settings that accept `file:`. "*" stands for any name or number.
SECRETS: tuple[PathKey, ...] = (
    ("policy", "redis"),
    ("policy", "credentials"),
    ("policy", "credentials", "token"),
    ("policy", "credentials", "username"),
    ("policy", "credentials", "password"),
    ("upstream",),
    ("upstream", "url"),
    ("upstream", "username"),
    ("upstream", "password"),
    ("upstream", "credentials", "entra", "client_secret"),
    ("upstream", "sentinel", "username"),
    ("upstream", "sentinel", "password"),
    ("notify", "webhook"),
    ("news", "to", "webhook"),
    ("news", "to", "*", "webhook"),
    ("news", "owners", "*", "webhook"),
    ("news", "owners", "*", "*", "webhook"),
    ("news", "smtp", "username"),
    ("news", "smtp", "password"),
    ("identify", "passwords", "*", "sha256"),
    ("identify", "passwords", "*", "sha256", "*"),
    ("identify", "passwords", "*", "password"),
    ("identify", "passwords", "*", "password", "*"),
)
URLS: tuple[PathKey, ...] = (("upstream",), ("upstream", "url"))
STORE_URLS: tuple[PathKey, ...] = (("policy", "redis"), ("findings",), ("findings", "url"))
# Settings that must be references: a configuration may hold a password's hash, but no password.
ONLY_ELSEWHERE: tuple[PathKey, ...] = (
    ("identify", "passwords", "*", "password"),
    ("identify", "passwords", "*", "password", "*"),
)


class BadReference(ValueError):
    """A reference cannot be resolved; the message says why and shows no value."""


def resolved(text: str, folder: Path, *, may_be_file: bool = False, is_url: bool = False) -> str:
    """The text with its references resolved. A file's path is relative to `folder`. Raises BadReference."""
    if may_be_file and text.startswith(FILE):
        return _content(_filled(text.removeprefix(FILE)), folder)
    # A secret may hold any character, but user and password in a URL must be quoted.
    quoted_from, quoted_to = (text.find("://"), text.rfind("@")) if is_url else (0, 0)
    return _filled(text, range(quoted_from, quoted_to))


def resolved_url(text: str, folder: Path) -> str:
    """The URL of an upstream with its references resolved. Raises BadReference, also if the result is not a
    URL: the usual message would show parts of the values."""
    url = resolved(text, folder, may_be_file=True, is_url=True)
    if url == text:
        return url
    try:
        parse_upstream(url)
    except ValueError:
        raise BadReference(
            f"{without_password(text)!r} leads to no URL of an upstream; have it lead to redis://HOST:PORT, "
            "rediss://HOST:PORT or unix:///PATH"
        ) from None
    return url


def file_of(text: str, folder: Path) -> str:
    """The path of a `file:` reference that could be resolved; "" for any other text."""
    return str(folder / _filled(text.removeprefix(FILE))) if text.startswith(FILE) else ""


def variables_in(text: str) -> list[str]:
    """The names of the environment's variables that a text refers to, each once."""
    return list(dict.fromkeys(name for escape, name, _ in _VARIABLE.findall(text) if not escape))


def _filled(text: str, quoted: range = range(0)) -> str:
    def value(found: re.Match[str]) -> str:
        escape, name, end = found.groups()
        if escape:
            return found[0][1:]
        if not end or not _NAME.fullmatch(name):
            raise BadReference(f"{found[0]!r} names no variable; write ${{NAME}}, or $${{ for a literal ${{")
        if name not in os.environ:
            literal = f"$${{{name}}}"
            raise BadReference(f"the environment has no {name}; set it, or write {literal} for a literal one")
        taken = os.environ[name]
        return quote(taken, safe="") if found.start() in quoted else taken

    return _VARIABLE.sub(value, text)


def _content(path: str, folder: Path) -> str:
    """A file's only line."""
    try:
        text = read_file(folder / path, MAX_SECRET).decode()
    except Unreadable as exc:
        raise BadReference(f"{folder / path} {exc}") from None
    except UnicodeDecodeError:
        raise BadReference(f"{folder / path} is not UTF-8 text") from None
    line = text.removesuffix("\n").removesuffix("\r")
    if not line:
        raise BadReference(f"{folder / path} is empty; write the secret into it, as its only line")
    if "\n" in line:
        raise BadReference(f"{folder / path} has several lines; write the secret into it, as its only line")
    return line


class Resolved(Source):
    """A configuration with its references resolved. Its messages never show the values."""

    def __init__(self, written: Source, folder: Path) -> None:
        """Raises FileError with every reference that cannot be resolved."""
        self._take_places(written)
        self.files: set[str] = set()  # that `file:` names
        self._hidden: dict[PathKey, tuple[str, str]] = {}  # the value, and the reference to it
        self._folder = folder
        self.data = self._resolve(written.data, ())
        if self.faults:
            raise FileError(self.faults)

    def file_at(self, *paths: PathKey) -> str:
        """The file that a setting at one of these paths comes from; "": it does not come from a file."""
        found = (file_of(self._hidden.get(path, ("", ""))[1], self._folder) for path in paths)
        return next((one for one in found if one), "")

    def _resolve(self, value: Any, path: PathKey) -> Any:
        if isinstance(value, dict):
            return {key: self._resolve(part, (*path, key)) for key, part in value.items()}
        if isinstance(value, list):
            return [self._resolve(part, (*path, index)) for index, part in enumerate(value)]
        return self._scalar(value, path) if isinstance(value, str) else value

    def _scalar(self, text: str, path: PathKey) -> str:
        may_be_file = _is_one_of(path, SECRETS)
        try:
            if _is_one_of(path, URLS):
                value = resolved_url(text, self._folder)
            else:
                # The URL of a SQLite file is a path, which is not unquoted.
                is_url = _is_one_of(path, STORE_URLS) and not text.startswith("sqlite:")
                value = resolved(text, self._folder, may_be_file=may_be_file, is_url=is_url)
        except BadReference as exc:
            self.faults.append(self.error(path, str(exc)))
            return text
        if value == text and _is_one_of(path, ONLY_ELSEWHERE):
            message = (
                "a password cannot be written here; write file:PATH or ${NAME}, or its hash under sha256"
            )
            self.faults.append(self.error(path, message))
        if value != text:
            self._hidden[path] = value, text
        if may_be_file and (file := file_of(text, self._folder)):
            self.files.add(file)
        return value

    def _diagnostic(
        self,
        level: Literal["error", "warning"],
        place: Place,
        message: str,
        path: PathKey = (),
        example: str = "",
    ) -> Diagnostic:
        for value, written in self._hidden_at(path):
            for shown in {value, repr(value)[1:-1], quote(value, safe="")} - {""}:
                message = message.replace(shown, written)
        return super()._diagnostic(level, place, message, path, example)

    def _hidden_at(self, path: PathKey) -> Iterator[tuple[str, str]]:
        """The values at a path, below it and above it."""
        for at, hidden in self._hidden.items():
            shorter = min(len(at), len(path))
            if at[:shorter] == path[:shorter]:
                yield hidden


def _is_one_of(path: PathKey, patterns: tuple[PathKey, ...]) -> bool:
    return any(
        len(path) == len(pattern)
        and all(name in ("*", part) for part, name in zip(path, pattern, strict=True))
        for pattern in patterns
    )


def is_plain_password(written: str) -> bool:
    """Whether a URL holds a password itself and not a reference to one."""
    user = written.partition("://")[2].rpartition("@")[0]
    return ":" in user and "${" not in user.partition(":")[2]
