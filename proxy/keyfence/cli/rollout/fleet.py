"""`keyfence fleet`: who runs what, and what differs between instances and environments; and what the fleet's
candidate would change.

Rule: it changes nothing but what --forget names. The text shows what --format json does,
except for the modes of each instance.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import (
    Commands,
    admin_option,
    format_option,
    is_given,
    print_json,
    value_option,
)
from keyfence.cli.terminal.output import fail, print_table, say, table_of, wrapped
from keyfence.config.fields import parse_store
from keyfence.findings.fleet import SILENT_SECONDS, short_time
from keyfence.findings.fleet_diff import whole_picture
from keyfence.policy.show import one_line

from .stores import store_at

WIDTH = 80  # columns of the table of changes
LEAST_EXAMPLE = 20
_STYLES = {"ok": "green", "copy": "yellow"}
_Row = Mapping[str, Any]  # an instance, or what the candidate changes
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _stores(_context: click.Context, _parameter: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(parse_store, urls))
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


def _stores_option(command: _Command) -> _Command:
    return click.option(
        "--findings",
        "stores",
        metavar="URL",
        multiple=True,
        callback=_stores,
        help="Read this findings store, without a running keyfence; several times for several stores.",
    )(command)


@click.group(cls=Commands, invoke_without_command=True)
@_stores_option
@value_option("--forget", "INSTANCE", "Forget a silent instance that will not come back (with --findings).")
@admin_option
@format_option("text", "json")
@click.pass_context
def fleet(context: click.Context, stores: tuple[str, ...], forget: str, admin: str, form: str) -> None:
    """Show who runs what: the keyfences that share a findings store, their policies, and what differs.

    Exit code 0: all is well; 1: an instance is silent, or its policy is refused, stale or only the copy on
    disk, or instances of one environment run different revisions, or none is known.
    """
    if context.invoked_subcommand is not None:
        if any(is_given(context, one) for one in ("stores", "forget", "admin", "form")):
            fail(f"write the options behind the command: keyfence fleet {context.invoked_subcommand} …")
        return
    if forget and not stores:
        fail("--forget changes a findings store; name it with --findings")
    if forget and not sum(_forget(url, forget) for url in stores):
        fail(f"{forget!r} is not a silent instance; keyfence fleet lists them")
    answer = _picture(context, stores, admin)
    with checked_answer(admin):
        rows, now = list(answer["instances"]), float(answer["now"])
        lines = [(one_line(one["text"]), one["is_wrong"] is True) for one in answer["lines"]]
        is_well = answer["healthy"] is True and bool(rows)
        table = _table(rows, now)
    if form == "json":
        print_json(answer)
    elif not rows:
        say("No instance is known: each reports to its findings store within seconds of its start.")
    else:
        print_table(table)
        for text, is_wrong in lines:
            say(wrapped(text, "! " if is_wrong else "  "))
    sys.exit(0 if is_well else 1)


def _picture(context: click.Context, urls: Sequence[str], admin: str) -> Any:
    """Returns the picture of all instances of these stores; without any, of the store of a running
    keyfence."""
    if not urls:
        return ask_admin(admin, "/fleet")
    if is_given(context, "admin"):
        fail("give either --admin or --findings, not both")
    found = []
    for url in urls:
        with store_at(url) as reader:
            found.append(reader.fleet())
    return whole_picture(found, time.time())


def _forget(url: str, name: str) -> int:
    """Deletes the rows of a silent instance from a store. Returns how many."""
    from keyfence.findings.store import Store

    with store_at(url) as reader:
        return Store(reader.database, "").forget(name, time.time() - SILENT_SECONDS)


def _table(rows: Sequence[_Row], now: float) -> Any:
    """Returns a row for each instance. A column in which all are alike is left out, so that 80 columns do."""
    columns: dict[str, Callable[[_Row], Text | str]] = {}
    if any(one["environment"] for one in rows):
        columns["environment"] = lambda one: one["environment"] or "–"
    columns["instance"] = lambda one: one["name"]
    if len({one["policy"] for one in rows}) > 1:
        columns["policy"] = lambda one: one["policy"] or "none"
    columns["revision"] = lambda one: one["revision"] or "–"
    if any(one["sequence"] for one in rows):
        columns["seq"] = lambda one: str(one["sequence"] or "–")
    columns["since"] = lambda one: short_time(one["loaded"] or one["started"], now)
    columns["health"] = lambda one: Text(one["health"], _STYLES.get(one["health"], "bold red"))
    return table_of(columns, ([cell(one) for cell in columns.values()] for one in rows), right=("seq",))


@fleet.command()
@_stores_option
@admin_option
@format_option("text", "json")
@click.pass_context
def diff(context: click.Context, stores: tuple[str, ...], admin: str, form: str) -> None:
    """Show what the fleet's candidate would change, added up over all instances that compare it.

    keyfence push --candidate stores a candidate. Exit code 0: every instance compares it, and it breaks no
    rule that the policy in force keeps; 1: it does, or an instance does not compare it, or none is known.
    """
    answer = _picture(context, stores, admin)
    with checked_answer(admin):
        found, now = list(answer["candidates"]), float(answer["now"])
        texts = [_lines_of(one, now) for one in found]
        is_well = bool(found) and not any(_objections(one) for one in found)
    if form == "json":
        print_json({"now": now, "candidates": found})
    elif not found:
        say("No instance compares a candidate of the fleet; store one with keyfence push --candidate.")
    else:
        for number, (lines, one) in enumerate(zip(texts, found, strict=True)):
            say("\n".join(["", *lines] if number else lines))
            if one["by_rule"]:
                say("")
                print_table(_changes(one["by_rule"]))
            for line in one["lines"]:
                say(wrapped(one_line(line["text"]), "! " if line["is_wrong"] else "  "))
    sys.exit(0 if is_well else 1)


def _objections(one: Mapping[str, Any]) -> bool:
    """Whether something speaks against promoting a candidate."""
    totals = one["totals"]
    is_wrong = any(line["is_wrong"] for line in one["lines"])
    return bool(totals["new"] or totals["stricter"] or is_wrong or not one["comparing"])


def _lines_of(one: Mapping[str, Any], now: float) -> list[str]:
    """Returns which candidate it is, who compares it, and what it comes to."""
    signed, totals, instances = one["candidate"], one["totals"], len(one["instances"])
    lines: list[tuple[str, str]] = []
    if signed:
        about = f": {signed['message']}" if signed["message"] else ""
        text = f"{signed['sequence']} of {signed['name']}, by {signed['author']}, based on {signed['base']}"
        lines.append(("candidate", f"{text}, revision {signed['revision']}{about}"))
    ended = f", and {one['ended']} that no longer run" if one["ended"] else ""
    since = f" since {short_time(one['since'], now)}" if one["since"] else ""
    lines.append(("compared by", f"{one['comparing']} of {instances} instances{ended}{since}"))
    by_service = ", ".join(f"{service} {number:,}" for service, number in one["commands"].items() if number)
    total = f"{sum(one['commands'].values()):,}"
    lines.append(("commands", f"{total} evaluated by both{f' ({by_service})' if by_service else ''}"))
    refused, allowed = totals["newly_refused"], totals["newly_allowed"]
    lines.append(("refused", f"{refused:,} that are not now; {allowed:,} no longer"))
    return [wrapped(one_line(text), f"{name:13}") for name, text in lines]


def _changes(rows: Sequence[_Row]) -> Any:
    """Returns a row for each change, service and rule, in 80 columns."""
    columns: dict[str, Callable[[_Row], str]] = {
        "change": lambda one: one["change"],
        "count": lambda one: f"{one['count']:,}",
        "refused": lambda one: f"{one['refused']:,}",
        "service": lambda one: one["service"],
        "rule": lambda one: one["rule"],
    }
    table = [[cell(one) for cell in columns.values()] for one in rows]
    widths = [max(map(len, column)) for column in zip(columns, *table, strict=True)]
    left = max(WIDTH - sum(widths) - 2 * len(widths), LEAST_EXAMPLE)
    examples = [one_line(one["example"]) for one in rows]
    for row, example in zip(table, examples, strict=True):
        row.append(example if len(example) <= left else f"{example[: left - 1]}…")
    return table_of([*columns, "example"], table, right=("count", "refused"))
