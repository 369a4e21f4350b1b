"""`keyfence findings`: what services break, since when, and who owns it.

Rule: it changes nothing. The text shows the same facts as --format json.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import admin_option, checked, format_option, print_json, value_option
from keyfence.cli.terminal.output import fail, fits, print_table, say, table_of, wrapped
from keyfence.findings.filter import states
from keyfence.policy.show import cell, one_line
from keyfence.policy.units import clock_text, counted
from keyfence.telemetry.clients import text_of

from .times import ago, since_time

_STYLES = {"new": "bold red", "reopened": "bold red", "open": "red", "waived": "dim"}
_COLUMNS = ("id", "state", "service", "rule", "command", "entry or key shape", "count", "last", "owner")


@click.command()
@click.argument("one", metavar="[ID]", default="")
@value_option("--service", "NAME", "Only findings of this service.")
@value_option("--rule", "RULE", "Only findings of this rule.")
@value_option(
    "--state",
    "STATE",
    "Only these states, separated by commas: new, open, waived, quiet, reopened, resolved, or "
    "active (new, open and reopened).",
    checked(states),
)
@value_option("--owner", "OWNER", "Only findings of this owner.")
@value_option("--entry", "NAME", "Only findings on this entry or key shape.")
@value_option("--text", "TEXT", "Only findings with this text in a name or example.")
@value_option("--since", "TIME", "Only findings seen since: 24h, 2026-03-01, RFC 3339.", since_time)
@admin_option
@format_option("text", "json", "csv")
def findings(one: str, since: float, admin: str, form: str, **which: str) -> None:
    """Show what services break: findings with their states, or all about one (ID)."""
    if one:
        _single(one, admin, form)
        return
    order = {"sort": "cause"}
    asked = {name: value for name, value in which.items() if value} | ({"since": since} if since else {})
    answer = ask_admin(admin, f"/findings?{urlencode(asked | order)}")
    with checked_answer(admin):
        rows, total, now = list(answer["findings"]), int(answer["total"]), float(answer["now"])
        table = table_of((*_COLUMNS, "cause"), _cells(rows, now), right=("count",))
    if form == "json":
        print_json(answer)
    elif form == "csv":
        _print_csv(rows)
    elif not rows:
        say("No findings match." if asked else "No findings.")
    else:
        if fits(table):
            print_table(table)
        else:
            _print_narrow(rows, now)
        say(counted(total, "finding"))
    if answer.get("in_memory"):
        say("keyfence runs without a findings store: it knows what it has seen since it began", err=True)
    for note in answer.get("notes", ()):
        say(f"some findings are missing here: {one_line(str(note))}", err=True)


def place_of(row: Mapping[str, Any]) -> str:
    """The entry or the shape of a finding's keys."""
    return one_line(row["shape"] or row["entry"] or "–")


def _cells(rows: list[dict[str, Any]], now: float) -> Iterator[list[Text | str]]:
    before = ""
    for row in rows:
        # The cause in full on the first row of a group, in short on the others.
        cause = row["cause"] if row["cause"] != before else row["meant"] or row["cause"]
        before = row["cause"]
        yield [
            row["id"],
            Text(row["state"], style=_STYLES.get(row["state"], "")),
            row["service"],
            _rule_of(row),
            row["command"],
            place_of(row),
            str(row["total"]),
            ago(row["last"], now),
            row["owner"] or "–",
            cause or row["meant"],
        ]


def _rule_of(row: Mapping[str, Any]) -> str:
    return str(row["rule"]) + (" (should)" if row["severity"] == "should" else "")


def _print_narrow(rows: list[dict[str, Any]], now: float) -> None:
    """Prints two lines for each finding, for a terminal that is too narrow for the table."""
    before = ""
    for row in rows:
        if row["cause"] != before:
            before = row["cause"]
            say(wrapped(f"{one_line(before or 'without a common cause')}:", ""))
        say(f"{row['id']}  {row['state']}  {one_line(row['service'])}  {_rule_of(row)}")
        what = f"{one_line(row['command'])} {place_of(row)}"
        owner = one_line(row["owner"] or "no owner")
        say(wrapped(f"{what}: {row['total']}, the last {ago(row['last'], now)}, {owner}", "    "))


def _print_csv(rows: list[dict[str, Any]]) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["id", "state", "severity", "service", "rule", "command", "entry", "shape", "count"])
    names = ("id", "state", "severity", "service", "rule", "command", "entry", "shape", "total")
    for row in rows:
        writer.writerow([cell(str(row[name])) for name in names])


def _single(one: str, admin: str, form: str) -> None:
    answer = ask_admin(admin, f"/findings/{quote(one, safe='')}")
    with checked_answer(admin):
        lines = _lines(answer)
        history = [(clock_text(each["at"]), each["state"], each["why"]) for each in answer["history"]]
    if form == "csv":
        fail("one finding has no CSV; use --format json")
    if form == "json":
        print_json(answer)
        return
    for name, text in lines:
        say(wrapped(one_line(text), f"{name:<10}"))
    for index, (at, state, why) in enumerate(history):
        say(wrapped(f"{at}  {state}: {why}", f"{'history' if not index else '':<10}"))


def _lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = ", ".join(f"{number} {action}" for action, number in row["counts"].items())
    lines = [
        ("finding", f"{row['id']}, {row['state']} since {clock_text(row['since'])}"),
        ("service", row["service"]),
        ("rule", _rule_of(row)),
        ("command", f"{row['command']} on {place_of(row)}"),
        ("seen", f"{counts}; first {clock_text(row['first'])}, last {clock_text(row['last'])}"),
        ("owner", row["owner"] or "–"),
        ("clients", text_of(row["clients"]) or "–"),
        *([("meant", row["meant"])] if row["meant"] else []),
        ("hint", row["hint"] or "–"),
        ("policy", f"revision {row['revision']}"),
    ]
    for index, example in enumerate(row["examples"]):
        command = example["command"]
        words = " ".join(command.get("argv", [])) or example["key"]
        if command.get("arguments"):
            words += f" … ({command['arguments']:,} arguments)"
        lines.append(
            ("examples" if not index else "", f"{words}  ({example['decision'] or 'no decision id'})")
        )
    return lines
