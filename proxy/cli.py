"""The command line.

Rule: what a user gets wrong costs one clear line (or one line a fault) and exit code 2, never a traceback.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from . import __version__, _compiled, cli_tools
from .admin_client import TIMEOUT, TOKEN_VARIABLE, AskError, ask
from .cli_scripts import scripts
from .cli_waivers import waivers
from .config import (
    DEFAULT_ADMIN,
    Overrides,
    Settings,
    load_settings,
    parse_drain,
    parse_workers,
)
from .loading import Origin, load
from .policy.diagnostics import FileError
from .policy.modes import Modes, advised
from .policy.units import milliseconds
from .runtime import StartError, run_loop, settle_modules
from .serve import serve
from .sockets import parse_address, parse_listen
from .telemetry.by_key import render_by_key
from .telemetry.report import render, rows_from_log, rows_from_snapshot
from .terminal import console, fail, fail_with, say
from .upstream.embedded import EmbeddedRedisError
from .upstream_url import parse_upstream, without_password

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


def _admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which running keyfence is asked, and by which token."""
    for option in (
        click.option(
            "--token-file", metavar="FILE", default="", envvar=TOKEN_VARIABLE, help="The admin token's file."
        ),
        click.option("--admin", metavar="URL", default=f"http://{DEFAULT_ADMIN}", help="The admin listener."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    callback=_checked(parse_upstream),
    help="redis://, rediss:// or unix:// URL; without one, a Redis is started.",
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


def _settings(config: str, overrides: Overrides) -> Settings:
    try:
        return load_settings(config, overrides)
    except FileError as exc:
        fail_with(exc)


@cli.command()
@click.option("--connect", metavar="ADMIN-URL", default="", help="Play through this running keyfence.")
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
@click.argument("source", metavar="[LOG|ADMIN-URL]", default=f"http://{DEFAULT_ADMIN}")
@click.option(
    "--by",
    type=click.Choice(["command", "key"]),
    default="command",
    show_default=True,
    help="A row for each rule, command and key shape; or for each key shape and service.",
)
def report(source: str, by: str) -> None:
    """What broke the policy: from a running keyfence, or from a decision log ("-" is standard input)."""
    show = render_by_key if by == "key" else render
    if source.startswith(("http://", "https://")):
        answer = _ask(source, "/report")
        try:
            show(rows_from_snapshot(answer))
        except (TypeError, ValueError) as exc:
            fail(f"{without_password(source)}: this is no keyfence's report: {exc}", 1)
        return
    broken = 0

    def complain(text: str) -> None:
        nonlocal broken
        broken += 1
        say(f"keyfence: {source}: {text}", err=True)

    try:
        with click.open_file(source, "rb") as lines:
            rows, dropped = rows_from_log(lines, complain)
    except OSError as exc:
        fail(f"{source}: {exc.strerror}")
    show(rows)
    if dropped:
        say(f"keyfence: {source}: {dropped} more violations passed the log's limits", err=True)
    if broken:
        sys.exit(1)


@cli.command()
@click.option("--for", "duration", metavar="DURATION", required=True, help="How long, as 30m or 1h.")
@click.option("--rule", metavar="RULE", default="", help="Only this rule.")
@click.option("--service", metavar="NAME", default="", help="Only this service.")
@_admin_options
def observe(duration: str, rule: str, service: str, admin: str, token_file: str) -> None:
    """Break-glass: refuse nothing for a while, in a running keyfence."""
    try:
        seconds = milliseconds(duration) / 1000
    except ValueError as exc:
        fail(f"--for: {exc}")
    body = {"for": seconds} | ({"rule": rule} if rule else {}) | ({"service": service} if service else {})
    _ask(admin, "/-/observe", body, token_file=token_file)
    what = " ".join([rule or "every rule", *(["by", service] if service else [])])
    say(f"for {duration}, violations of {what} are observed and not refused")


@cli.command()
@_admin_options
def reload(admin: str, token_file: str) -> None:
    """Have a running keyfence read its policy, configuration and waivers again.

    Exit code 1: something is wrong with them, and what was in force stays.
    """
    told = _ask(admin, "/-/reload", {}, RELOAD_TIMEOUT, token_file)
    say(f"reloaded: policy {told['policy']}, revision {told['revision']}" if told["policy"] else "reloaded")
    for name in told["needs_restart"]:
        say(f"keyfence: {name} has changed in the configuration: that needs a restart", err=True)


@cli.command()
@_admin_options
def restart(admin: str, token_file: str) -> None:
    """Replace the workers of a running keyfence one by one, without losing a command."""
    told = _ask(admin, "/-/restart", {}, RESTART_TIMEOUT, token_file)
    say(f"restarted {told['restarted']} workers")


@cli.command()
@click.option("--config", metavar="FILE", default="", help="Configuration file.")
@click.option("--policy", metavar="FILE", default="", help="Policy file, in place of the configuration's.")
def modes(config: str, policy: str) -> None:
    """Print which rule is observed, enforced or disabled for which service."""
    settings = _settings(config, Overrides(policy=policy))
    try:
        compiled = load(settings)
    except FileError as exc:
        fail_with(exc)
    matrix = Modes(settings.modes, compiled.services, settings.waived()).matrix()
    table = Table(title=f"modes of {compiled.name}", title_justify="left")
    table.add_column("rule", no_wrap=True)
    for service in compiled.services:
        table.add_column(Text(service), no_wrap=True)
    styles = {"enforce": "bold red", "observe": "green", "disabled": "dim"}
    for rule, by_service in matrix.items():
        should = rule in compiled.should
        cells = [f"[{styles[mode]}]{_mode_text(mode, should)}[/]" for mode in by_service.values()]
        table.add_row(rule, *cells)
    console().print(table)
    for rule, what in advised(compiled).items():
        say(f"{rule} is told and never refused (should) for: {', '.join(what)}")


def _mode_text(mode: str, should: bool) -> str:
    return "observe (should)" if should and mode == "enforce" else mode


def _ask(
    base: str,
    path: str,
    body: dict[str, Any] | None = None,
    timeout: float = TIMEOUT,
    token_file: str = "",
) -> Any:
    try:
        return ask(base, path, body, timeout, token_file)
    except AskError as exc:
        for line in exc.details:
            say(line, err=True)
        fail(str(exc), 1)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print a list of JSON objects.")
@click.option("--markdown", is_flag=True, help="Print docs/commands.md.")
def commands(as_json: bool, markdown: bool) -> None:
    """Print every command that keyfence knows: its keys, access, and what happens by default."""
    from . import commands_listing as listed

    rows = listed.listing()
    if as_json:
        click.echo(json.dumps(listed.as_objects(rows), indent=1))
    elif markdown:
        click.echo(listed.as_markdown(rows), nl=False)
    else:
        console().print(listed.as_table(rows))


for _tool in (*cli_tools.COMMANDS, scripts, waivers):
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
