"""`keyfence waivers`: lists waivers and whether they are still needed, and drafts a baseline of waivers.

Rule: the command changes nothing. It prints a baseline, and a person reads it before putting it in force.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
from rich.text import Text

from keyfence.cli.terminal.policies import POLICY
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.baseline import Baseline, baseline, row_of_finding
from keyfence.policy.enforcement.waivers import Use, WaiverModel, read_waivers, uses, waiver_faults
from keyfence.policy.loading.load import load_policy
from keyfence.policy.show import one_line
from keyfence.policy.units import counted
from keyfence.telemetry.tally import Row

from .rollout.gate import chosen_findings
from .terminal.asking import ask_admin, checked_answer, is_url, rows_of, source_of
from .terminal.options import admin_option, format_option, is_given, print_json, value_option
from .terminal.output import fail, print_table, say, table_of

_STYLES = {
    "lapsed": "bold red",
    "unused": "yellow",
    "too early": "dim",
    "ending": "yellow",
    "in use": "green",
    "": "",
}


_COLUMNS = ("state", "until", "uses", "service", "rule", "entry or scope", "command", "keys or script")


def _date(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text) if text else None
    except ValueError:
        raise ValueError(f"{text!r} is not a date; write it as 2027-06-30") from None


class _Baseline(NamedTuple):
    """Which baseline is asked for, if one is."""

    writes: bool
    every: bool
    owner: str
    reason: str
    until: datetime.date | None


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@value_option("--config", "FILE", "Configuration file that names the waivers file.")
@value_option("--waivers file", "FILE", "Waivers file, instead of the configuration's.")
@value_option("--policy", "POLICY", "Policy; checks the names in the waivers.", type=POLICY)
@admin_option
@format_option("text", "json")
@click.option(
    "--baseline", "writes", is_flag=True, help="Print a waivers file that covers the active findings."
)
@click.option(
    "--all", "every", is_flag=True, help="The baseline also covers findings that are no longer active."
)
@click.option("--owner", default="", help="Who will fix what the baseline tolerates.")
@click.option(
    "--reason",
    default="known before the policy was enforced",
    show_default=True,
    help="Why the baseline tolerates it.",
)
@value_option("--until", "DATE", "The baseline's last day.", _date)
@click.pass_context
def waivers(
    context: click.Context,
    /,
    source: str,
    config: str,
    file: str,
    policy: str,
    admin: str,
    form: str,
    **how: Any,
) -> None:
    """List waivers, and show which have lapsed and which are no longer needed.

    The waivers come from --config or --waivers, otherwise from a running keyfence. Their uses come from a
    decision log ("-" reads standard input) or a running keyfence.

    Exit code 0: no waiver has lapsed; 1: a waiver has lapsed; 2: wrong usage.
    """
    asks_for_uses = bool(source) or is_given(context, "admin")
    source = source_of(context, source, admin)
    url = source if is_url(source) else ""
    listed = _listed(config, file, policy)
    asked = _Baseline(**how)
    if asked.writes:
        if not asked.owner or asked.until is None:
            fail("--baseline needs --owner and --until: who will fix this, and by when?")
        rows = _baseline_rows(source, url, asked.every)
        _print_baseline(baseline(rows, asked.owner, asked.reason, asked.until))
        return
    if asked.every:
        fail("--all is for --baseline")
    in_force = not (config or file)
    if in_force and not url:
        fail("no waivers; name them with --config or --waivers")
    if in_force:
        with checked_answer(url):
            listed = [WaiverModel.model_validate(one) for one in ask_admin(url, "/waivers")]
    used = rows_of(source) if in_force or asks_for_uses else None
    since = None if used is None else _since(url, used)
    found = uses(listed, used, datetime.datetime.now(datetime.UTC).date(), since)
    if form == "json":
        print_json([one.as_object() for one in found])
    else:
        _print_uses(found)
        if any(one.state == "too early" for one in found):
            say(f"too early: uses are counted since {since:%Y-%m-%d %H:%M:%SZ}; a log may reach further back")
    sys.exit(1 if any(one.state == "lapsed" for one in found) else 0)


def _since(url: str, rows: Sequence[Row]) -> datetime.datetime | None:
    """Returns the time since which the source counts uses;

    None if the log is empty. Earlier uses are unknown.
    """
    if url:
        with checked_answer(url):
            start = float(ask_admin(url, "/status")["started"])
    elif rows:
        start = min(row["first"] for row in rows)
    else:
        return None
    return datetime.datetime.fromtimestamp(start, datetime.UTC)


def _listed(config: str, file: str, policy: str) -> Sequence[WaiverModel]:
    """Returns the waivers, checked against the policy if one is named. Raises FileError."""
    listed: Sequence[WaiverModel] = ()
    origin = None
    if config:
        settings = load_settings(config, Overrides(policy=policy), needs_policy=False)
        listed, origin, policy = settings.waivers, settings.waivers_source, settings.policy
    if file:
        listed, origin = read_waivers(file)
    if policy and origin is not None:
        faults = waiver_faults(listed, origin, load_policy(policy))
        if faults:
            raise FileError(faults)
    return listed


def _baseline_rows(source: str, url: str, every: bool) -> Sequence[Mapping[str, Any]]:
    """Returns the rows that a baseline covers, and says what it leaves out. Only a findings store knows which
    findings the policy in force allows."""
    found = chosen_findings(url, every=every) if url else None
    if found is None:
        return rows_of(source)
    if found.left:
        total = sum(found.left.values())
        states = ", ".join(f"{number} {state}" for state, number in sorted(found.left.items()))
        say(
            f"keyfence: left out {counted(total, 'finding')} that the policy in force allows, that waivers "
            f"cover, or that were not seen for 7 days ({states}); --all covers them too",
            err=True,
        )
    with checked_answer(url):
        return [row_of_finding(one) for one in found.chosen]


def _print_baseline(found: Baseline) -> None:
    say(found.text.rstrip("\n"))
    for sentence in found.wide:
        say(f"keyfence: wider than the findings: {one_line(sentence)}", err=True)
    for sentence in found.left:
        say(f"keyfence: no waiver covers this: {one_line(sentence)}", err=True)


def _print_uses(found: Sequence[Use]) -> None:
    if not found:
        say("No waivers.")
        return
    ordered = sorted(found, key=lambda one: (one.state != "lapsed", one.waiver.until))
    names = (*_COLUMNS, "owner", "reason")
    print_table(table_of(names, map(_cells, ordered), title="waivers", right=("uses",)))


def _cells(use: Use) -> Iterator[Text | str]:
    one = use.waiver
    yield Text(use.state or "-", style=_STYLES[use.state])
    yield from (str(one.until), "-" if use.times is None else str(use.times), one.service, one.rule)
    yield from (one.entry or one.scope or "any", one.command or "any", one.keys or one.script or "any")
    yield from (one.owner, one.reason)
