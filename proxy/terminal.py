"""How the command line speaks: lines, tables, and the end with an error.

Rule: whatever is shown is text that a terminal can take; an error is one line on standard error.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click
from rich.console import Console

from .policy.diagnostics import FileError

USAGE = 2  # the exit code of wrong usage


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


def console() -> Console:
    """Standard output: colour on a terminal; wide enough for every column elsewhere."""
    return (
        Console(emoji=False)
        if sys.stdout.isatty()
        else Console(width=250, no_color=True, highlight=False, emoji=False)
    )
