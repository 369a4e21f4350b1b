"""`keyfence fleet`: who runs what, and what differs between instances and environments.

Rule: it changes nothing but what --forget names. The text shows what --format json does,
except for the modes of each instance.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import admin_option, format_option, is_given, print_json, value_option
from keyfence.cli.terminal.output import fail, print_table, say, table_of, wrapped
from keyfence.config.fields import parse_store
from keyfence.findings.fleet import SILENT_SECONDS, fleet_of, short_time
from keyfence.policy.show import one_line

from .stores import store_at

_STYLES = {"ok": "green", "copy": "yellow"}
_Row = Mapping[str, Any]  # an instance


def _stores(_context: click.Context, _parameter: click.Parameter, urls: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(map(parse_store, urls))
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from None


@click.command()
@click.option(
    "--findings",
    "stores",
    metavar="URL",
    multiple=True,
    callback=_stores,
    help="Read this findings store, without a running keyfence; several times for several stores.",
)
@value_option("--forget", "INSTANCE", "Forget a silent instance that will not come back (with --findings).")
@admin_option
@format_option("text", "json")
@click.pass_context
def fleet(context: click.Context, stores: tuple[str, ...], forget: str, admin: str, form: str) -> None:
    """Show who runs what: the keyfences that share a findings store, their policies, and what differs.

    Exit code 0: all is well; 1: an instance is silent, or its policy is refused, stale or only the copy on
    disk, or instances of one environment run different revisions, or none is known.
    """
    if stores and is_given(context, "admin"):
        fail("give either --admin or --findings, not both")
    if forget and not stores:
        fail("--forget changes a findings store; name it with --findings")
    if forget and not sum(_forget(url, forget) for url in stores):
        fail(f"{forget!r} is not a silent instance; keyfence fleet lists them")
    answer = _of_stores(stores) if stores else ask_admin(admin, "/fleet")
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


def _of_stores(urls: Sequence[str]) -> dict[str, Any]:
    """Returns the picture of all instances of these stores."""
    found = []
    for url in urls:
        with store_at(url) as reader:
            found.append(reader.fleet())
    return fleet_of(found, time.time())


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
