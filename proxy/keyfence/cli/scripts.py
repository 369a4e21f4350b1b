"""`keyfence scripts`: lists scripts that clients ran but no policy registers, and drafts their `scripts`
section.

Rule: the command changes nothing. It prints the section, and a person completes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from keyfence.authoring.seen_scripts import Seen, section, seen_scripts
from keyfence.policy.loading.load import load_policy
from keyfence.policy.units import clock_text
from keyfence.policy.verdict import script_in
from keyfence.telemetry.tally import Row

from .terminal.asking import rows_of, source_of
from .terminal.options import admin_option, format_option, print_json, value_option
from .terminal.output import print_table, say, table_of
from .terminal.policies import POLICY

_COLUMNS = ("script", "keys", "count", "refused", "last seen", "services", "commands", "first line")
_NUMBERS = ("keys", "count", "refused")


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@value_option(
    "--policy",
    "POLICY",
    "Leave out what this policy registers.  [default: the policy of the running keyfence]",
    type=POLICY,
)
@admin_option
@format_option("text", "json", "yaml")
@click.pass_context
def scripts(context: click.Context, source: str, policy: str, admin: str, form: str) -> None:
    """List scripts that no policy registers, and draft the section that registers them.

    The scripts come from a running keyfence or from a decision log ("-" reads standard input). --format yaml
    prints the section.
    """
    rows: list[Row] = rows_of(source_of(context, source, admin))
    if policy:
        known = load_policy(policy)
        for row in rows:
            row["registered"] = known.registers(script_in(row["rule"], row["shape"]))
    found, registered, without_sha = seen_scripts(rows)
    if form == "json":
        print_json([one.as_object() for one in found])
    elif form == "yaml":
        say(section(found).rstrip("\n") if found else "scripts: {}")
    else:
        _print(found)
    if registered:
        scripts = "one script" if len(registered) == 1 else f"{len(registered)} scripts"
        say(f"keyfence: {scripts} left out: registered since", err=True)
    if without_sha:
        calls = "one call" if without_sha == 1 else f"{without_sha} calls"
        say(f"keyfence: {calls} left out: the script's SHA-1 is not known", err=True)


def _print(found: Sequence[Seen]) -> None:
    if not found:
        say("No unregistered scripts.")
        return
    print_table(table_of(_COLUMNS, map(_cells, found), title="unregistered scripts", right=_NUMBERS))


def _cells(one: Seen) -> list[str]:
    keys = "-" if one.keys is None else str(one.keys)
    cells = [one.script, keys, str(one.count), str(one.refused), clock_text(one.last)]
    return [*cells, ", ".join(one.services), ", ".join(one.commands), one.line or "-"]
