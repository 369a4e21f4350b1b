"""`keyfence scripts`: the scripts that clients ran and no policy registers, and what registers them.

Rule: it changes nothing; the section is printed, for people to complete.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.table import Table
from rich.text import Text

from .cli_waivers import _line, _rows
from .config import DEFAULT_ADMIN
from .policy.seen_scripts import Seen, section, seen_scripts
from .terminal import console, say


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default=f"http://{DEFAULT_ADMIN}")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="yaml is the section of a policy.",
)
def scripts(source: str, form: str) -> None:
    """List the scripts that no policy registers, and write the section that registers them.

    A running keyfence or a decision log ("-" is standard input) tells which were seen.
    """
    found, untold = seen_scripts(_rows(source))
    if form == "json":
        say(json.dumps([one.as_object() for one in found], indent=1))
    elif form == "yaml":
        say(section(found).rstrip("\n") if found else "scripts: {}")
    else:
        _print(found)
    if untold:
        calls = "one call was" if untold == 1 else f"{untold} calls were"
        say(f"keyfence: {calls} of scripts whose SHA-1 isn't known", err=True)


def _print(found: Sequence[Seen]) -> None:
    if not found:
        say("No unregistered scripts.")
        return
    table = Table(title="unregistered scripts", title_justify="left")
    for name in ("script", "keys", "count", "refused", "last seen", "services", "commands", "first line"):
        table.add_column(name, justify="right" if name in ("keys", "count", "refused") else "left")
    for one in found:
        keys = "-" if one.keys is None else str(one.keys)
        cells = [one.script, keys, str(one.count), str(one.refused), _clock(one.last)]
        cells += [", ".join(one.services), ", ".join(one.commands), one.line or "-"]
        table.add_row(*(Text(_line(cell)) for cell in cells))
    console().print(table)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
