"""What is wrong with a file: the place, the fault, the remedy.

Rule: whoever finds a fault keeps going and reports them all; a fault always carries the place it stands at.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple


class Place(NamedTuple):
    """A position in a text file, counted from 1 as editors do."""

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
    excerpt: str = ""  # the line at fault, as it stands in the file; "" where there is none
    width: int = 1  # how many of its characters are meant
    example: str = ""  # a key that shows the fault; the message names it too
    path: tuple[str | int, ...] = ()  # where in the file's data it is
    code: str = ""  # of a warning: what a file or a CI job calls it
    # Parts of the file that would settle it: where one of them is faulty itself, this only follows.
    relies_on: tuple[tuple[str | int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.place}: {self.level}: {self.message}"

    def illustrated(self) -> str:
        """The message, with its code, the line at fault, and a caret below what is meant."""
        message = f"{self} [{self.code}]" if self.code else str(self)
        if not self.excerpt.strip():
            return message
        before, shown, width = _window(self.excerpt, self.place.column - 1, self.width)
        number = str(self.place.line)
        margin = " " * len(number)
        return f"{message}\n {number} | {shown}\n {margin} | {' ' * _columns(before)}{'^' * width}"


MAX_SHOWN = 110  # characters of a line


def _window(line: str, start: int, width: int) -> tuple[str, str, int]:
    """What stands before the caret, the line (or its part around the fault), and the caret's width."""
    line = "".join(char if char.isprintable() else " " for char in line)
    first = 0 if start + width <= MAX_SHOWN else max(0, start - MAX_SHOWN // 3)
    shown = line[first : first + MAX_SHOWN]
    left, right = "…" if first else "", "…" if len(line) > first + MAX_SHOWN else ""
    before = left + line[first:start]
    marked = line[start : min(start + width, first + MAX_SHOWN)]
    return before, left + shown.rstrip() + right, max(_columns(marked), 1)


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes: two for each wide character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


class FileError(Exception):
    """A file can't be used. Carries every fault found, in the order of the file."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = sorted(diagnostics, key=lambda d: (d.place.file, d.place.line, d.place.column))
        super().__init__("\n".join(str(d) for d in self.diagnostics))


def follows(fault: Diagnostic, at: tuple[str | int, ...]) -> bool:
    """Whether a fault may be there only because there is another one at this path."""
    return any(_is_within(at, part) or _is_within(part, at) for part in fault.relies_on)


def _is_within(path: tuple[str | int, ...], part: tuple[str | int, ...]) -> bool:
    return path[: len(part)] == part


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean X?"` where a known word is near, else the list of known words if it is short."""
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if not near:
        folded = {name.lower(): name for name in names}
        near = [folded[word.lower()]] if word.lower() in folded else []
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else ""
