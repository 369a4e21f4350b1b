"""How the command line speaks: lines, tables, and the end with an error.

Rule: whatever is shown is text that a terminal can take; an error is one line on standard error.
"""

from __future__ import annotations

import sys
import textwrap
from typing import NoReturn

import click
from rich.console import Console
from rich.table import Table

from keyfence.policy.diagnostics import FileError

USAGE = 2  # the exit code of wrong usage
PIPE_WIDTH = 250


def say(text: str, *, err: bool = False) -> None:
    """Print a line. A file's name needn't be text, so what no encoding takes is shown escaped."""
    click.echo(text.encode("utf-8", "backslashreplace").decode(), err=err)


def fail(message: str, code: int = USAGE) -> NoReturn:
    """End with one line on standard error."""
    say(f"keyfence: {message}", err=True)
    sys.exit(code)


def fail_with(error: FileError) -> NoReturn:
    """End with every fault of a file, a line each."""
    for diagnostic in error.diagnostics:
        say(str(diagnostic), err=True)
    sys.exit(USAGE)


def console(width: int = PIPE_WIDTH) -> Console:
    """Standard output: colour on a terminal; elsewhere `width` columns at least."""
    if sys.stdout.isatty():
        return Console(emoji=False)
    return Console(width=max(width, PIPE_WIDTH), no_color=True, highlight=False, emoji=False)


def fits(table: Table) -> bool:
    """Whether a table can be printed without breaking words."""
    return not sys.stdout.isatty() or _natural_width(table) <= console().width


def print_table(table: Table) -> None:
    """Print a table. Where the terminal is too narrow for it, each row is a block of lines instead."""
    if fits(table):
        console(_natural_width(table)).print(table)
        return
    names = [str(column.header) for column in table.columns]
    margin = max(map(len, names)) + 2
    if table.title:
        say(str(table.title))
    for row in zip(*(column.cells for column in table.columns), strict=True):
        say("")
        for name, cell in zip(names, row, strict=True):
            say(wrapped(str(cell), f"{name:{margin}}"))


def wrapped(text: str, before: str) -> str:
    """A text in lines of the terminal's width, broken between words only; `before` stands before it."""
    lines = textwrap.wrap(
        text,
        console().width,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines) or before.rstrip()


def _natural_width(table: Table) -> int:
    return Console(width=100_000, color_system=None).measure(table).maximum
