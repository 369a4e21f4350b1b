"""The commands that read or change a running keyfence: `report`, `observe`, `reload`, `restart`.

Rule: keyfence's own answer decides the exit code. Without an answer it is 1.
"""

from __future__ import annotations

import sys

import click

from keyfence.admin.client import RELOAD_TIMEOUT
from keyfence.config.loading import load_settings
from keyfence.config.settings import Overrides
from keyfence.net.addresses import url_of
from keyfence.policy.units import counted, milliseconds
from keyfence.telemetry.reports.by_command import render
from keyfence.telemetry.reports.by_key import as_objects, render_by_key

from .publish.compliance import print_compliance
from .publish.history import findings_url, store_options
from .terminal.asking import ask_admin, print_answer, print_reload, read_rows, source_of
from .terminal.options import admin_option, change_options, format_option, is_given, print_json, value_option
from .terminal.output import fail

RESTART_TIMEOUT = 3600.0  # seconds; workers drain one after the other


@click.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@admin_option
@format_option("text", "json", "markdown", "html", "csv")
@value_option("--compliance", "QUARTER", "When rules were enforced in a quarter: 2026-Q3.", default=None)
@store_options
@click.option(
    "--by",
    type=click.Choice(["command", "key"]),
    default="command",
    show_default=True,
    help="One row per rule, command and key shape (command), or per key shape and service (key).",
)
def report(source: str, admin: str, form: str, by: str, compliance: str | None, **store: str) -> None:
    """Show the violations that a running keyfence or a decision log has counted.

    ADMIN is the admin address of a running keyfence, as for --admin. "-" reads a log from standard input.

    With --compliance it reads a findings store instead: for each service and rule how long it was enforced
    in a quarter, with findings and refusals. It is Markdown by default. Exit code 2: rows of the history were
    changed or removed.
    """
    context = click.get_current_context()
    if compliance is not None:
        if source or is_given(context, "admin") or is_given(context, "by"):
            fail("--compliance reads a findings store; omit LOG, --admin and --by")
        print_compliance(compliance, findings_url(store["findings"] or "", store["config"]), form)
        return
    if form not in ("text", "json"):
        fail(f"--format {form} is for --compliance; a report is text or json")
    found = read_rows(source_of(context, source, admin))
    rows = found.rows
    if form == "json":
        print_json(as_objects(rows) if by == "key" else rows)
    elif by == "key":
        render_by_key(rows)
    else:
        render(rows)
    found.report_missing()
    if found.faults:
        sys.exit(1)


@click.command()
@click.option("--for", "duration", metavar="DURATION", help="How long, for example 30m or 1h.")
@click.option("--end", is_flag=True, help="End it now and restore the configured modes.")
@value_option("--rule", "RULE", "Only this rule.")
@value_option("--service", "NAME", "Only this service.")
@change_options
@format_option("text", "json")
def observe(
    duration: str | None, end: bool, rule: str, service: str, admin: str, token_file: str, form: str
) -> None:
    """Break-glass: make a running keyfence refuse nothing for a while."""
    if end:
        _end_observe(bool(duration is not None or rule or service), admin, token_file, form)
        return
    if duration is None:
        fail("give a duration, for example --for 30m, or --end to end it early")
    try:
        seconds = milliseconds(duration) / 1000
    except ValueError as exc:
        fail(f"--for: {exc}")
    body = {"for": seconds} | ({"rule": rule} if rule else {}) | ({"service": service} if service else {})
    answer = ask_admin(admin, "/-/observe", body, token_file=token_file)
    what = " ".join([rule or "every rule", *(["by", service] if service else [])])
    text = f"for {duration}, violations of {what} are observed and not refused"
    print_answer(admin, answer, form, lambda _: text)


def _end_observe(with_others: bool, admin: str, token_file: str, form: str) -> None:
    if with_others:
        fail("--end ends every break-glass; omit --for, --rule and --service")
    answer = ask_admin(admin, "/-/observe", token_file=token_file, method="DELETE")
    ended, none = "break-glass ended; modes are as configured again", "no break-glass was open"
    print_answer(admin, answer, form, lambda one: ended if one["ended"] else none)


@click.command()
@change_options
@value_option("--config", "FILE", "Use the admin address in this configuration.")
@format_option("text", "json")
def reload(admin: str, token_file: str, form: str, config: str) -> None:
    """Make a running keyfence reload its policy, configuration and waivers.

    Exit code 0: reloaded; 1: a file has faults, and the old state stays in force; 2: wrong usage.
    """
    if config:
        if is_given(click.get_current_context(), "admin"):
            fail("give either --admin or --config, not both")
        settings = load_settings(config, Overrides(), needs_policy=False)
        if settings.admin is None:
            fail(f"{config} names no admin address; send SIGHUP to keyfence instead", 1)
        admin, token_file = url_of(settings.admin), token_file or settings.admin_token_file
    answer = ask_admin(admin, "/-/reload", {}, RELOAD_TIMEOUT, token_file, form=form)
    print_reload(admin, answer, "reloaded", form)


@click.command()
@change_options
@format_option("text", "json")
def restart(admin: str, token_file: str, form: str) -> None:
    """Replace the workers of a running keyfence one by one, without losing a command."""
    answer = ask_admin(admin, "/-/restart", {}, RESTART_TIMEOUT, token_file)
    print_answer(admin, answer, form, lambda one: f"restarted {counted(one['restarted'], 'worker')}")
