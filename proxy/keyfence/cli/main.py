"""The command line: the commands that run keyfence or talk to a running one, and the entry point of all.

Rule: a user's mistake gives one clear line, or one line per fault, and exit code 2. It never gives a
traceback.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from keyfence import __version__, _compiled
from keyfence.admin.client import url_of
from keyfence.config.fields import parse_drain, parse_store, parse_workers
from keyfence.config.loading import load_settings
from keyfence.config.models import DEFAULT_ADMIN
from keyfence.config.references import is_plain_password
from keyfence.config.settings import Overrides
from keyfence.config.upstream import upstream_of
from keyfence.net.addresses import parse_address, parse_listen
from keyfence.policy.diagnostics import FileError
from keyfence.policy.units import milliseconds
from keyfence.process.run import serve
from keyfence.process.serving.reload import Origin
from keyfence.process.serving.runtime import StartError, run_loop, settle_modules
from keyfence.telemetry.operator_log import warn
from keyfence.telemetry.reports.by_command import render
from keyfence.telemetry.reports.by_key import as_objects, render_by_key
from keyfence.upstream.embedded import EmbeddedRedisError

from . import policy_tools
from .acl import acl
from .export import export
from .keyspace.commands import audit, migrate
from .rollout.candidate import candidate
from .rollout.draft import draft_
from .rollout.exec import exec_
from .rollout.findings import findings
from .rollout.gate import gate
from .rollout.init import init
from .rollout.ready import ready, what_if
from .scripts import scripts
from .shipped import policies, shipped_policies
from .status import modes, status
from .terminal.options import (
    Commands,
    admin_option,
    ask_admin,
    change_options,
    checked,
    checked_answer,
    connect_option,
    format_option,
    is_given,
    print_json,
    read_rows,
    source_of,
)
from .terminal.output import console, fail, fail_with, say
from .waivers import waivers

RELOAD_TIMEOUT = 600.0  # seconds; compiling a large policy on a busy machine takes minutes
RESTART_TIMEOUT = 3600.0  # seconds; workers drain one after the other


def _store_or_none(text: str) -> None:
    if text != "none":
        parse_store(text)


def _address_or_none(text: str) -> None:
    if text != "none":
        parse_address(text)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    __version__, message=f"%(prog)s %(version)s, {_compiled.describe()}", prog_name="keyfence"
)
def cli() -> None:
    """A Redis proxy that holds every key of every command against a written namespace policy."""


@cli.command()
@click.option("--config", metavar="FILE", default="", help="Configuration file; the flags below override it.")
@click.option("--policy", metavar="FILE", default="", help="Policy file.")
@click.option(
    "--candidate",
    "beside",
    metavar="FILE",
    default="",
    help="Policy file to compare with the one in force on all traffic; see keyfence candidate.",
)
@click.option(
    "--upstream",
    metavar="URL",
    default="",
    envvar="KEYFENCE_UPSTREAM",
    callback=checked(upstream_of),
    help="redis://, rediss:// or unix:// URL, or file:PATH of a file that holds one. "
    "Without it, keyfence starts a Redis.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="",
    callback=checked(parse_listen),
    help="HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0 picks a free port.",
)
@click.option("--service", metavar="NAME", default="", help="The service that connects to --listen.")
@click.option(
    "--mode",
    type=click.Choice(["observe", "enforce"]),
    help="Mode of every rule; overrides the configuration's modes.",
)
@click.option(
    "--admin",
    metavar="HOST:PORT",
    default="",
    callback=checked(_address_or_none),
    help=f"Admin address, or none.  [default: {DEFAULT_ADMIN}]",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    default="",
    callback=checked(_address_or_none),
    help="Address that serves only /metrics and health, or none.  [default: none]",
)
@click.option(
    "--findings",
    "store",
    metavar="URL",
    default="",
    callback=checked(_store_or_none),
    help="Where findings are kept: sqlite:////PATH/FILE, postgresql://…, or none.  "
    "[default: with --config, a file in the user's state directory]",
)
@click.option("--decision-log", metavar="FILE", default="", help="File for violations; - is standard output.")
@click.option(
    "--workers",
    metavar="N",
    default="",
    callback=checked(parse_workers),
    help="Number of worker processes, or auto: one per core. Without it, one process serves all clients.",
)
@click.option(
    "--drain",
    metavar="DURATION",
    default="",
    callback=checked(parse_drain),
    help="How long clients may take to finish after SIGTERM.  [default: 5s]",
)
@click.option("--record", metavar="FILE", default="", help="Record a sample of all commands, without values.")
@click.option(
    "--splice", is_flag=True, help="Pass all bytes through unread; listen as configured, apply no policy."
)
def run(
    config: str,
    policy: str,
    beside: str,
    upstream: str,
    listen: str,
    service: str,
    mode: str | None,
    admin: str,
    metrics: str,
    store: str,
    decision_log: str,
    workers: str,
    drain: str,
    record: str,
    splice: bool,
) -> None:
    """Run the proxy between services and Redis."""
    overrides = Overrides(
        policy,
        upstream,
        listen,
        service,
        mode or "",  # type: ignore[arg-type]
        admin,
        decision_log,
        workers,
        drain,
        record,
        metrics,
        store,
    )
    settle_modules()
    if is_given(click.get_current_context(), "upstream") and is_plain_password(upstream):
        warn(
            "--upstream holds a password, and process listings show it; write file:PATH or '${NAME}' instead"
        )
    if splice and beside:
        fail("--splice applies no policy; omit --candidate")
    origin = Origin(config, overrides, spliced=splice)
    try:
        settings, compiled, packed = origin.load_with(beside)
    except FileError as exc:
        fail_with(exc)
    compared = None if packed is None else (os.path.abspath(beside), packed)
    if not all(_compiled.status().values()):
        say(f"keyfence: {_compiled.describe()}", err=True)
    try:
        run_loop(lambda: serve(origin, settings, compiled, compared))
    except FileError as exc:
        fail_with(exc)
    except (StartError, EmbeddedRedisError) as exc:
        fail(str(exc))


@cli.command()
@connect_option
@click.option("--policy", metavar="FILE", default="", help="Policy file.  [default: the shipped cubesandbox]")
@click.option("--once", is_flag=True, help="End after the minute, also on a terminal.")
def demo(connect: str, policy: str, once: bool) -> None:
    """Play a minute of CubeSandbox traffic in observe, then in enforce, and show the findings.

    On a terminal the private keyfence stays up afterwards, so that you can look at its page; Ctrl-C ends
    everything.
    """
    from .demo.play import play_privately, play_through
    from .demo.player import DemoError

    shipped = shipped_policies().get("cubesandbox")
    try:
        if connect and policy:
            fail("a running keyfence uses its own policy; give either --admin or --policy, not both", 1)
        if connect:
            play_through(connect.rstrip("/"))
        elif not policy and shipped is None:
            fail("this installation has no shipped policies; name a CubeSandbox policy with --policy FILE", 1)
        else:
            stays = sys.stdout.isatty() and not once
            play_privately(Path(policy or str(shipped)), copied=not policy, stays=stays)
    except DemoError as exc:
        fail(str(exc), 1)
    except FileError as exc:
        fail_with(exc)


@cli.command()
@click.argument("source", metavar="[LOG|ADMIN]", default="")
@admin_option
@format_option("text", "json")
@click.option(
    "--by",
    type=click.Choice(["command", "key"]),
    default="command",
    show_default=True,
    help="One row per rule, command and key shape (command), or per key shape and service (key).",
)
@click.pass_context
def report(context: click.Context, source: str, admin: str, form: str, by: str) -> None:
    """Show the violations that a running keyfence or a decision log has counted.

    ADMIN is the admin address of a running keyfence, as for --admin. "-" reads a log from standard input.
    """
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


@cli.command()
@click.option("--for", "duration", metavar="DURATION", help="How long, for example 30m or 1h.")
@click.option("--end", is_flag=True, help="End it now and restore the configured modes.")
@click.option("--rule", metavar="RULE", default="", help="Only this rule.")
@click.option("--service", metavar="NAME", default="", help="Only this service.")
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
    if form == "json":
        print_json(answer)
    else:
        say(f"for {duration}, violations of {what} are observed and not refused")


def _end_observe(with_others: bool, admin: str, token_file: str, form: str) -> None:
    if with_others:
        fail("--end ends every break-glass; omit --for, --rule and --service")
    answer = ask_admin(admin, "/-/observe", token_file=token_file, method="DELETE")
    with checked_answer(admin):
        ended = answer["ended"]
    if form == "json":
        print_json(answer)
    else:
        say("break-glass ended; modes are as configured again" if ended else "no break-glass was open")


@cli.command()
@change_options
@click.option("--config", metavar="FILE", default="", help="Use the admin address in this configuration.")
@format_option("text", "json")
def reload(admin: str, token_file: str, form: str, config: str) -> None:
    """Make a running keyfence reload its policy, configuration and waivers.

    Exit code 0: reloaded; 1: a file has faults, and the old state stays in force; 2: wrong usage.
    """
    if config:
        if is_given(click.get_current_context(), "admin"):
            fail("give either --admin or --config, not both")
        try:
            settings = load_settings(config, Overrides(), needs_policy=False)
        except FileError as exc:
            fail_with(exc)
        if settings.admin is None:
            fail(f"{config} names no admin address; send SIGHUP to keyfence instead", 1)
        admin, token_file = url_of(settings.admin), token_file or settings.admin_token_file
    answer = ask_admin(admin, "/-/reload", {}, RELOAD_TIMEOUT, token_file, form=form)
    with checked_answer(admin):
        name, revision, waiting = answer["policy"], answer["revision"], list(answer["needs_restart"])
        changed = ", ".join(answer["changed"]) or "nothing"
    if form == "json":
        print_json(answer)
    else:
        say(f"reloaded: policy {name}, revision {revision}; changed: {changed}" if name else "reloaded")
    for name in waiting:
        say(f"keyfence: {name} has changed in the configuration; restart keyfence to apply it", err=True)


@cli.command()
@change_options
@format_option("text", "json")
def restart(admin: str, token_file: str, form: str) -> None:
    """Replace the workers of a running keyfence one by one, without losing a command."""
    answer = ask_admin(admin, "/-/restart", {}, RESTART_TIMEOUT, token_file)
    with checked_answer(admin):
        restarted = answer["restarted"]
    if form == "json":
        print_json(answer)
    else:
        say(f"restarted {restarted} worker{'' if restarted == 1 else 's'}")


@cli.command()
@format_option("text", "json", "markdown")
def commands(form: str) -> None:
    """List every command that keyfence knows: its keys, its access, and its default."""
    from . import commands_listing as listed

    rows = listed.listing()
    if form == "json":
        print_json(listed.as_objects(rows))
    elif form == "markdown":
        click.echo(listed.as_markdown(rows), nl=False)
    else:
        console().print(listed.as_table(rows))


for _command in (
    *policy_tools.COMMANDS,
    *(acl, audit, candidate, draft_, exec_, export, findings, gate, migrate, modes, policies, ready, scripts),
    *(init, status, waivers, what_if),
):
    cli.add_command(_command)


def main() -> None:
    """Runs the command line; the entry point of the console script."""
    try:
        cli(prog_name="keyfence")
    except BrokenPipeError:  # the reader of the output has closed it, as in `keyfence modes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as exc:
        if os.environ.get("KEYFENCE_DEBUG"):
            raise
        fail(
            f"internal error: {type(exc).__name__}: {exc}; please report it with the traceback that "
            "KEYFENCE_DEBUG=1 shows",
            70,
        )


if __name__ == "__main__":
    main()
