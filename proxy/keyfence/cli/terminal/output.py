"""Output of the command line: lines, tables, and errors that end the program.

Rule: every output is text that a terminal can show. An error is one line on standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NoReturn

import click

from keyfence.policy.diagnostics import FileError
from keyfence.policy.show import in_lines, one_line

if TYPE_CHECKING:  # imported for the first table only: it takes 50 ms
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

USAGE = 2  # the exit code of wrong usage
PIPE_WIDTH = 250


def say(text: str, *, err: bool = False) -> None:
    """Prints a line. Characters that UTF-8 cannot encode, as in a file's name, are shown escaped."""
    click.echo(text.encode("utf-8", "backslashreplace").decode(), err=err)


def fail(message: str, code: int = USAGE) -> NoReturn:
    """Prints one line on standard error and ends the program."""
    say(f"keyfence: {message}", err=True)
    sys.exit(code)


def fail_with(error: FileError) -> NoReturn:
    """Prints every fault of a file, one line each, and ends the program."""
    for diagnostic in error.diagnostics:
        say(str(diagnostic), err=True)
    sys.exit(USAGE)


def console(width: int = PIPE_WIDTH) -> Console:
    """Returns a console on standard output: coloured on a terminal, else at least `width` columns wide."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(emoji=False)
    return Console(width=max(width, PIPE_WIDTH), no_color=True, highlight=False, emoji=False)


def table_of(
    names: Iterable[str],
    rows: Iterable[Iterable[Text | str]],
    *,
    title: str = "",
    right: Collection[str] = (),
) -> Table:
    """Returns a table of plain text. `right` are the columns that are aligned to the right. With a title, the
    table has lines around it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left") if title else Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, no_wrap=not title, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row))
    return table


def fits(table: Table) -> bool:
    """Returns whether a table fits into the terminal without breaking words."""
    return not sys.stdout.isatty() or _natural_width(table) <= console().width


def print_table(table: Table) -> None:
    """Prints a table. If the terminal is too narrow for it, prints each row as a block of lines."""
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
    """Returns `before` and the text, wrapped at the terminal's width between words, later lines indented."""
    return "\n".join(in_lines(text, console().width, before, " " * len(before))) or before.rstrip()


def _natural_width(table: Table) -> int:
    from rich.console import Console

    return Console(width=100_000, color_system=None).measure(table).maximum
