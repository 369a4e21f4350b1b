"""`keyfence scripts`: the scripts that clients ran and no policy registers, and what registers them.

Rule: it changes nothing; the section is printed, for people to complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from keyfence.policy.analysis.seen_scripts import Seen, section, seen_scripts
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text

from .options import admin_option, format_option, print_json, rows_of, source_of
from .output import print_table, say


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@admin_option
@format_option("text", "json", "yaml")
@click.pass_context
def scripts(context: click.Context, source: str, admin: str, form: str) -> None:
    """List the scripts that no policy registers, and write the section that registers them.

    A running keyfence or a decision log ("-" is standard input) says which were seen. --format yaml prints
    the section.
    """
    found, untold = seen_scripts(rows_of(source_of(context, source, admin)))
    if form == "json":
        print_json([one.as_object() for one in found])
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
        cells = [one.script, keys, str(one.count), str(one.refused), clock_text(one.last)]
        cells += [", ".join(one.services), ", ".join(one.commands), one.line or "-"]
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    print_table(table)
