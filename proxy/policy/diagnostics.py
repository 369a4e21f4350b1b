"""What is wrong with a file: the place, the fault, the remedy.

Rule: whoever finds a fault keeps going and reports them all; a fault always carries the place it stands at.
"""

from __future__ import annotations

import difflib
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

    def __str__(self) -> str:
        return f"{self.place}: {self.level}: {self.message}"


class FileError(Exception):
    """A file can't be used. Carries every fault found, in the order of the file."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = sorted(diagnostics, key=lambda d: (d.place.file, d.place.line, d.place.column))
        super().__init__("\n".join(str(d) for d in self.diagnostics))


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
