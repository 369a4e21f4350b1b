"""`keyfence scripts`: lists scripts that clients ran but no policy registers, and drafts their `scripts`
section.

Rule: the command changes nothing. It prints the section, and a person completes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from keyfence.policy.analysis.seen_scripts import Seen, section, seen_scripts
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text

from .terminal.asking import rows_of, source_of
from .terminal.options import admin_option, format_option, print_json
from .terminal.output import print_table, say


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@admin_option
@format_option("text", "json", "yaml")
@click.pass_context
def scripts(context: click.Context, source: str, admin: str, form: str) -> None:
    """List scripts that no policy registers, and draft the section that registers them.

    The scripts come from a running keyfence or from a decision log ("-" reads standard input). --format yaml
    prints the section.
    """
    found, without_sha = seen_scripts(rows_of(source_of(context, source, admin)))
    if form == "json":
        print_json([one.as_object() for one in found])
    elif form == "yaml":
        say(section(found).rstrip("\n") if found else "scripts: {}")
    else:
        _print(found)
    if without_sha:
        calls = "one call" if without_sha == 1 else f"{without_sha} calls"
        say(f"keyfence: {calls} left out: the script's SHA-1 is not known", err=True)


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
