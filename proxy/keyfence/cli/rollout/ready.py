"""`keyfence ready` and `keyfence what-if`: which rules can be enforced, and what enforcing would refuse.

Rule: these commands change nothing. Exit code 0 means ready, 1 not ready, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import click
from rich.table import Table
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import admin_option, format_option, print_json
from keyfence.cli.terminal.output import fail, print_table, say
from keyfence.findings.finding import Unjudged
from keyfence.findings.spans import span_text
from keyfence.policy.enforcement.modes import parse_mode
from keyfence.policy.rules import RULES
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted, plural

from .findings import place_of
from .times import seconds_option, since_option

_STYLES = {"not ready": "bold red", "ready": "bold green", "enforced": "green", "gap": "yellow"}


@click.command()
@click.option(
    "--quiet",
    metavar="DURATION",
    callback=seconds_option,
    default="7d",
    show_default=True,
    help="Time without a violation.",
)
@click.option("--service", metavar="NAME", default="", help="Only this service.")
@click.option("--rule", metavar="RULE", default="", help="Only this rule.")
@click.option("--all", "everything", is_flag=True, help="Show rules without traffic, too.")
@click.option(
    "--unused",
    metavar="DURATION",
    callback=seconds_option,
    default=None,
    help="List the rights that nobody used for this time.",
)
@click.option("--write-modes", is_flag=True, help="Print the modes: lines that enforce what is ready.")
@admin_option
@format_option("text", "json")
def ready(
    quiet: float,
    service: str,
    rule: str,
    everything: bool,
    unused: float | None,
    write_modes: bool,
    admin: str,
    form: str,
) -> None:
    """Show which rules can be enforced for which services, and what is left for the others.

    Exit code 0: every rule that commands were asked of is ready or enforced; 1: one is not, or there were
    no commands.
    """
    if rule and rule not in RULES:
        fail(f"{rule!r} is not a rule; keyfence modes lists them")
    if unused is not None:
        _unused(unused, service, admin, form)
        return
    answer = ask_admin(admin, f"/readiness?{urlencode({'quiet': quiet})}")
    with checked_answer(admin):
        rows = [
            one
            for one in answer["standings"]
            if service in ("", one["service"]) and rule in ("", one["rule"])
        ]
        lines = [
            one
            for one in answer["modes"]
            if service in ("", one.get("service", service)) and rule in ("", one["rule"])
        ]
        counted = [one for one in rows if one["readiness"] not in ("no traffic", "disabled")]
        table = _table(counted if not everything else rows)
    if service and not rows:
        fail(f"{service!r} is not a service of the policy")
    if form == "json":
        print_json({**answer, "standings": rows, "modes": lines})
    elif write_modes:
        _print_modes(lines, service)
    else:
        _print_standings(table, rows, counted, everything)
    is_ready = bool(counted) and all(one["readiness"] in ("ready", "enforced") for one in counted)
    sys.exit(0 if is_ready else 1)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("service", "rule", "standing", "asked", "what is left"):
        table.add_column(name, no_wrap=True, justify="right" if name == "asked" else "left")
    for row in sorted(rows, key=lambda one: str(one["service"])):
        readiness = row["readiness"]
        cells = (str(row["asked"]), Text(one_line(row["why"])))
        table.add_row(
            Text(one_line(row["service"])), row["rule"], Text(readiness, _STYLES.get(readiness, "")), *cells
        )
    return table


def _print_standings(
    table: Table, rows: Sequence[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]], everything: bool
) -> None:
    if table.row_count:
        print_table(table)
    silent = len([one for one in rows if one["readiness"] == "no traffic"])
    if not counted:
        say("No commands were evaluated, so nothing is known.")
    elif silent and not everything:
        say(f"({silent} more without traffic: no command was asked of the rule; --all shows them)")


def _print_modes(lines: Sequence[Mapping[str, str]], service: str) -> None:
    named = [one for one in lines if service or one.get("service") != UNKNOWN]
    if named:
        say("# Put these lines before the others: the first line that matches decides.\nmodes:")
    else:
        say("# Nothing is ready that is not enforced already.")
    _print_each(named, service)
    if left_out := len(lines) - len(named):
        rules = f"{counted(left_out, 'rule')} {plural(left_out, 'is', 'are')} ready"
        say(f"# Not listed: {rules} for {UNKNOWN}, the clients that nothing identifies.")
        say(f"# Identify them first; --service {UNKNOWN} prints the lines.")


def _print_each(lines: Sequence[Mapping[str, str]], service: str) -> None:
    for one in lines:
        named = {**one, "service": service} if service and "service" not in one else one
        fields = ", ".join(f"{name}: {named[name]}" for name in ("rule", "service", "mode") if name in named)
        say(f"  - {{{fields}}}")


def _unused(seconds: float, service: str, admin: str, form: str) -> None:
    answer = ask_admin(admin, f"/unused?{urlencode({'for': seconds})}")
    with checked_answer(admin):
        looked = float(answer["looked"])
        rows = [one for one in answer["unused"] if service in ("", one["service"])]
        table = Table(box=None, pad_edge=False)
        for name in ("service", "right", "on", "last used"):
            table.add_column(name, no_wrap=True)
        for one in rows:
            last = clock_text(one["last"]) if one["last"] is not None else "never seen"
            table.add_row(Text(one_line(one["service"])), one["kind"], Text(one_line(one["name"])), last)
    if form == "json":
        print_json({**answer, "unused": rows})
        return
    if rows:
        print_table(table)
    say(f"{counted(len(rows), 'right')} not used in {span_text(seconds)}")
    if looked < seconds:
        say(f"keyfence was looking for only {span_text(looked)} of this time, so some may be in use")


@click.command("what-if")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    required=True,
    metavar="RULE=enforce",
    help="The mode to try; `*=enforce` is every rule. May be given several times.",
)
@click.option("--service", metavar="NAME", default="", help="Only for this service.")
@click.option(
    "--since",
    metavar="TIME",
    callback=since_option,
    default="7d",
    show_default=True,
    help="What was seen since.",
)
@admin_option
@format_option("text", "json")
def what_if(modes: tuple[str, ...], service: str, since: float, admin: str, form: str) -> None:
    """Show which commands would be refused if a rule were enforced, from what was seen.

    Exit code 0: none; 1: some, or the policy has changed since some were seen, so nobody can tell.
    """
    for text in modes:
        try:
            parse_mode(text, service)
        except ValueError as exc:
            fail(str(exc))
    query = [("since", str(since)), *([("service", service)] if service else [])]
    answer = ask_admin(admin, f"/what-if?{urlencode([*query, *(('mode', text) for text in modes)])}")
    with checked_answer(admin):
        rows, unjudged = list(answer["breaks"]), list(answer["unjudged"])
        unknown = [Unjudged(**one).sentence for one in unjudged]
        table = Table(box=None, pad_edge=False)
        for name in ("times", "service", "command", "entry or key shape", "rule", "library", "owner"):
            table.add_column(name, no_wrap=True, justify="right" if name == "times" else "left")
        for one in rows:
            texts = (one["service"], one["command"], place_of(one), one["rule"])
            who = (", ".join(one["libraries"]) or "–", one["owner"] or "–")
            table.add_row(str(one["times"]), *(Text(one_line(text)) for text in (*texts, *who)))
    if form == "json":
        print_json(answer)
    elif rows:
        print_table(table)
        number = sum(one["times"] for one in rows)
        say(f"{counted(number, 'command')} would have been refused")
    elif unknown:
        say("Nothing that was seen under the policy in force would have been refused.")
    else:
        say("Nothing that was seen would have been refused.")
    if form != "json":
        for line in unknown:
            say(one_line(line))
    sys.exit(1 if rows or unjudged else 0)
