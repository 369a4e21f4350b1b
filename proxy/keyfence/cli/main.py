"""The command line.

Rule: what a user gets wrong costs one clear line (or one line a fault) and exit code 2, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import click

from keyfence import __version__, _compiled
from keyfence.admin.client import url_of
from keyfence.config.fields import parse_drain, parse_workers
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
from keyfence.telemetry.report import render
from keyfence.telemetry.report_by_key import as_objects, render_by_key
from keyfence.upstream.embedded import EmbeddedRedisError

from . import policy_tools
from .acl import acl
from .options import (
    Commands,
    admin_option,
    answer_of,
    asked,
    change_options,
    connect_option,
    format_option,
    is_given,
    print_json,
    read_rows,
    source_of,
)
from .output import console, fail, fail_with, say
from .scripts import scripts
from .status import modes, status
from .waivers import waivers

# Seconds that keyfence may take: to compile a large policy on a busy machine, to drain worker after worker.
RELOAD_TIMEOUT = 600.0
RESTART_TIMEOUT = 3600.0


def _checked(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str], str]:
    """A click callback that holds an option's text against one of the configuration's parsers."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
        if value:
            try:
                parse(value)
            except ValueError as exc:
                raise click.BadParameter(str(exc)) from None
        return value

    return callback


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
    "--upstream",
    metavar="URL",
    default="",
    envvar="KEYFENCE_UPSTREAM",
    callback=_checked(upstream_of),
    help="redis://, rediss:// or unix:// URL, or file:PATH of one; without, a Redis is started.",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="",
    callback=_checked(parse_listen),
    help="HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0 picks one.",
)
@click.option("--service", metavar="NAME", default="", help="Who is on the other end of --listen.")
@click.option("--mode", type=click.Choice(["observe", "enforce"]), help="Overrides every mode of the file.")
@click.option(
    "--admin",
    metavar="HOST:PORT",
    default="",
    callback=_checked(_address_or_none),
    help=f"Admin address, or none.  [default: {DEFAULT_ADMIN}]",
)
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    default="",
    callback=_checked(_address_or_none),
    help="Address of /metrics and health alone, or none.  [default: none]",
)
@click.option("--decision-log", metavar="FILE", default="", help="Where to write violations; - is stdout.")
@click.option(
    "--workers",
    metavar="N",
    default="",
    callback=_checked(parse_workers),
    help="Worker processes below this one, or auto: one for each core. Without, one process does all.",
)
@click.option(
    "--drain",
    metavar="DURATION",
    default="",
    callback=_checked(parse_drain),
    help="How long clients may take to end at SIGTERM.  [default: 5s]",
)
@click.option("--record", metavar="FILE", default="", help="Log a sample of all commands, without values.")
@click.option("--splice", is_flag=True, help="Pass all bytes unread: the same addresses, no policy.")
def run(
    config: str,
    policy: str,
    upstream: str,
    listen: str,
    service: str,
    mode: str | None,
    admin: str,
    metrics: str,
    decision_log: str,
    workers: str,
    drain: str,
    record: str,
    splice: bool,
) -> None:
    """Stand between services and Redis."""
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
    )
    settle_modules()
    if is_given(click.get_current_context(), "upstream") and is_plain_password(upstream):
        warn("--upstream holds a password, which every process listing shows; write file:PATH or '${NAME}'")
    origin = Origin(config, overrides, spliced=splice)
    try:
        settings, compiled = origin.load()
    except FileError as exc:
        fail_with(exc)
    if not all(_compiled.status().values()):
        say(f"keyfence: {_compiled.describe()}", err=True)
    try:
        run_loop(lambda: serve(origin, settings, compiled))
    except FileError as exc:
        fail_with(exc)
    except (StartError, EmbeddedRedisError) as exc:
        fail(str(exc))


@cli.command()
@connect_option
@click.option("--policy", metavar="FILE", default="", help="Policy to demonstrate.  [default: cubesandbox]")
def demo(connect: str, policy: str) -> None:
    """Play a minute of CubeSandbox traffic, first observed, then enforced, and show what was found."""
    from .demo import DemoError, play

    try:
        play(connect, policy)
    except (DemoError, StartError, EmbeddedRedisError) as exc:
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
    help="A row for each rule, command and key shape; or for each key shape and service.",
)
@click.pass_context
def report(context: click.Context, source: str, admin: str, form: str, by: str) -> None:
    """Print what broke the policy: from a running keyfence, or from a decision log.

    ADMIN is the address of a running keyfence, as --admin has it; "-" is a log on standard input.
    """
    found = read_rows(source_of(context, source, admin))
    rows = found.rows
    if form == "json":
        print_json(as_objects(rows) if by == "key" else rows)
    elif by == "key":
        render_by_key(rows)
    else:
        render(rows)
    found.say_what_is_missing()
    if found.faults:
        sys.exit(1)


@cli.command()
@click.option("--for", "duration", metavar="DURATION", help="How long, as 30m or 1h.")
@click.option("--end", is_flag=True, help="End it now: every mode is as configured again.")
@click.option("--rule", metavar="RULE", default="", help="Only this rule.")
@click.option("--service", metavar="NAME", default="", help="Only this service.")
@change_options
@format_option("text", "json")
def observe(
    duration: str | None, end: bool, rule: str, service: str, admin: str, token_file: str, form: str
) -> None:
    """Break-glass: refuse nothing for a while, in a running keyfence."""
    if end:
        _end_observe(bool(duration is not None or rule or service), admin, token_file, form)
        return
    if duration is None:
        fail("say how long with --for, as --for 30m; --end ends it early")
    try:
        seconds = milliseconds(duration) / 1000
    except ValueError as exc:
        fail(f"--for: {exc}")
    body = {"for": seconds} | ({"rule": rule} if rule else {}) | ({"service": service} if service else {})
    told = asked(admin, "/-/observe", body, token_file=token_file)
    what = " ".join([rule or "every rule", *(["by", service] if service else [])])
    if form == "json":
        print_json(told)
    else:
        say(f"for {duration}, violations of {what} are observed and not refused")


def _end_observe(with_others: bool, admin: str, token_file: str, form: str) -> None:
    if with_others:
        fail("--end ends every break-glass; leave out --for, --rule and --service")
    told = asked(admin, "/-/observe", token_file=token_file, method="DELETE")
    with answer_of(admin):
        ended = told["ended"]
    if form == "json":
        print_json(told)
    else:
        say("break-glass ended; modes are as configured again" if ended else "no break-glass was open")


@cli.command()
@change_options
@click.option("--config", metavar="FILE", default="", help="Ask the admin address that this file names.")
@format_option("text", "json")
def reload(admin: str, token_file: str, form: str, config: str) -> None:
    """Have a running keyfence read its policy, configuration and waivers again.

    Exit code 1: something is wrong with them, and what was in force stays.
    """
    if config:
        if is_given(click.get_current_context(), "admin"):
            fail("give either --admin or --config")
        try:
            settings = load_settings(config, Overrides(), needs_policy=False)
        except FileError as exc:
            fail_with(exc)
        if settings.admin is None:
            fail(f"{config}: there is no admin address to ask; send SIGHUP to keyfence", 1)
        admin, token_file = url_of(settings.admin), token_file or settings.admin_token_file
    told = asked(admin, "/-/reload", {}, RELOAD_TIMEOUT, token_file, form=form)
    with answer_of(admin):
        name, revision, waiting = told["policy"], told["revision"], list(told["needs_restart"])
        changed = ", ".join(told["changed"]) or "nothing"
    if form == "json":
        print_json(told)
    else:
        say(f"reloaded: policy {name}, revision {revision}; changed: {changed}" if name else "reloaded")
    for name in waiting:
        say(f"keyfence: {name} has changed in the configuration: that needs a restart", err=True)


@cli.command()
@change_options
@format_option("text", "json")
def restart(admin: str, token_file: str, form: str) -> None:
    """Replace the workers of a running keyfence one by one, without losing a command."""
    told = asked(admin, "/-/restart", {}, RESTART_TIMEOUT, token_file)
    with answer_of(admin):
        restarted = told["restarted"]
    if form == "json":
        print_json(told)
    else:
        say(f"restarted {restarted} workers")


@cli.command()
@format_option("text", "json", "markdown")
def commands(form: str) -> None:
    """Print every command that keyfence knows: its keys, access, and what happens by default."""
    from . import commands_listing as listed

    rows = listed.listing()
    if form == "json":
        print_json(listed.as_objects(rows))
    elif form == "markdown":
        click.echo(listed.as_markdown(rows), nl=False)
    else:
        console().print(listed.as_table(rows))


for _tool in (*policy_tools.COMMANDS, acl, modes, scripts, status, waivers):
    cli.add_command(_tool)


def main() -> None:
    """The console script."""
    try:
        cli(prog_name="keyfence")
    except BrokenPipeError:  # the reader of our output has gone, as in `keyfence modes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as exc:
        if os.environ.get("KEYFENCE_DEBUG"):
            raise
        fail(
            f"internal error: {type(exc).__name__}: {exc}; KEYFENCE_DEBUG=1 shows where. Please report it", 70
        )


if __name__ == "__main__":
    main()
