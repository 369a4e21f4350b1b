"""The commands that work on policy files alone: `check`, `explain`.

Rule: they touch no Redis and no running keyfence; what is wrong with a file is told with its line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from .policy.check import check_policy
from .policy.diagnostics import FileError
from .policy.explain import explain as explain_command
from .policy.load import load_policy
from .policy.show import printable
from .terminal import console, fail, fail_with, say


@click.command()
@click.argument("policies", metavar="POLICY...", nargs=-1, required=True)
def check(policies: Sequence[str]) -> None:
    """Report every error of policy files with its line and column, then the warnings."""
    failed = False
    for path in policies:
        errors, warnings, summary = check_policy(path)
        for diagnostic in [*errors, *warnings]:
            say(str(diagnostic))
        failed = failed or bool(errors)
        say(summary)
    sys.exit(1 if failed else 0)


# Options end where the command begins: what follows belongs to it, dashes or not.
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--policy", metavar="FILE", required=True, help="Policy file.")
@click.option("--service", metavar="NAME", required=True, help="Who sends the command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("command", metavar="-- COMMAND [ARG...]", nargs=-1, required=True, type=click.UNPROCESSED)
def explain(policy: str, service: str, as_json: bool, command: Sequence[str]) -> None:
    """Say what a policy makes of one command. Exit code 0: allowed, 1: violation, 2: wrong usage."""
    try:
        compiled = load_policy(policy)
        told = explain_command(compiled, service, [os.fsencode(part) for part in command])
    except FileError as exc:
        fail_with(exc)
    except ValueError as exc:
        fail(f"--service: {exc}")
    if as_json:
        say(json.dumps(told))
    else:
        _print_explanation(told)
    sys.exit(0 if told["verdict"] == "allow" else 1)


def _print_explanation(told: dict[str, Any]) -> None:
    out = console()
    if told["accesses"]:
        table = Table(title="accesses", title_justify="left")
        for column in ("position", "key", "access", "entry"):
            table.add_column(column)
        for access in told["accesses"]:
            table.add_row(*(_cell(access[name]) for name in ("position", "key", "access", "entry")))
        out.print(table)
    else:
        out.print("accesses: none")
    if told["verdict"] == "allow":
        out.print("[bold green]allow[/]")
    for violation in told["violations"]:
        severity = "" if violation["severity"] == "must" else " (should: never refused)"
        hint = f"; {violation['hint']}" if violation["hint"] else ""
        out.print("[bold red]violation[/]", end=" ")
        text = (
            f"{violation['rule']}{severity} at argument {violation['position']}: {violation['message']}{hint}"
        )
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _cell(value: object) -> Text:
    """One line of text that moves no cursor, whatever a key holds."""
    text = "-" if value is None else str(value)
    return Text(text if text.isprintable() else printable(text.encode("utf-8", "surrogateescape"), 1024))


COMMANDS: tuple[click.Command, ...] = (check, explain)
