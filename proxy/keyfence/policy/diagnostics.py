"""Faults of files: the place, the message with its remedy, and the error that carries them.

Rule: code that finds a fault continues and reports all faults. Every fault carries its place.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A position in a text file. Lines and columns count from 1, as in editors."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Diagnostic(NamedTuple):
    """One fault of a file, or a warning about it."""

    place: Place
    level: Literal["error", "warning"]
    message: str
    excerpt: str = ""  # the line at fault as it is in the file; "" for none
    width: int = 1  # the number of characters at fault
    example: str = ""  # a key that shows the fault; the message names it too
    path: tuple[str | int, ...] = ()  # the place in the file's data
    code: str = ""  # a warning's name, for `ignore` in files and for CI jobs
    # Parts of the file that decide whether there is a fault. If one of them is faulty, this fault only
    # follows.
    relies_on: tuple[tuple[str | int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {self.level}: {self.message}"

    def illustrated(self) -> str:
        """Returns the message with its code, the line at fault, and a caret below the characters at fault."""
        message = f"{self} [{self.code}]" if self.code else str(self)
        if not self.excerpt.strip():
            return message
        before, shown, width = _window(self.excerpt, self.place.column - 1, self.width)
        number = str(self.place.line)
        margin = " " * len(number)
        return f"{message}\n {number} | {shown}\n {margin} | {' ' * _columns(before)}{'^' * width}"


MAX_SHOWN = 110  # characters shown of the line at fault


def _window(line: str, start: int, width: int) -> tuple[str, str, int]:
    """Returns the text before the caret, the line (or its part around the fault), and the caret's width."""
    line = "".join(char if char.isprintable() else " " for char in line)
    first = 0 if start + width <= MAX_SHOWN else max(0, start - MAX_SHOWN // 3)
    shown = line[first : first + MAX_SHOWN]
    left, right = "…" if first else "", "…" if len(line) > first + MAX_SHOWN else ""
    before = left + line[first:start]
    marked = line[start : min(start + width, first + MAX_SHOWN)]
    return before, left + shown.rstrip() + right, max(_columns(marked), 1)


def _columns(text: str) -> int:
    """Returns the terminal columns that a text takes: two for each wide character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


class FileError(Exception):
    """A file is unusable. Carries every fault, in the order of the file."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = sorted(diagnostics, key=lambda d: (d.place.file, d.place.line, d.place.column))
        super().__init__("\n".join(str(d) for d in self.diagnostics))

    @property
    def sentence(self) -> str:
        """All faults in one line, without their places."""
        return "; ".join(one.message for one in self.diagnostics)


def file_error(file: str, message: str) -> FileError:
    """Returns the error for a file as a whole."""
    return FileError([Diagnostic(Place(file, 1, 1), "error", message)])


def follows(fault: Diagnostic, at: tuple[str | int, ...]) -> bool:
    """Returns whether a fault may only follow from another fault at the path `at`."""
    return any(_is_within(at, part) or _is_within(part, at) for part in fault.relies_on)


def _is_within(path: tuple[str | int, ...], part: tuple[str | int, ...]) -> bool:
    return path[: len(part)] == part


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns `"; did you mean X?"` for the nearest known word, else the known words if they are few."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not near:
        folded = {name.lower(): name for name in names}
        near = [folded[word.lower()]] if word.lower() in folded else []
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else ""
