"""`keyfence run`: reads the options, loads policy and configuration, and serves.

Rule: the start waits for everything that this module imports, so it imports nothing that only other commands
need. `tests/process/test_start.py` lists what must not be loaded.
"""

from __future__ import annotations

import os

import click

from keyfence import _compiled
from keyfence.cli.terminal.policies import POLICY, POLICY_HELP
from keyfence.config.defaults import DEFAULT_ADMIN
from keyfence.config.fields import parse_drain, parse_store, parse_workers
from keyfence.config.references import is_plain_password
from keyfence.config.settings import Overrides
from keyfence.config.upstream import upstream_of
from keyfence.net.addresses import parse_address, parse_listen
from keyfence.policy.diagnostics import FileError
from keyfence.process.run import serve
from keyfence.process.serving.reload import Origin
from keyfence.process.serving.runtime import StartError, run_loop
from keyfence.telemetry.operator_log import warn
from keyfence.upstream.embedded import EmbeddedRedisError

from .terminal.options import checked, is_given
from .terminal.output import fail, fail_with, say


def _store_or_none(text: str) -> None:
    if text != "none":
        parse_store(text)


def _address_or_none(text: str) -> None:
    if text != "none":
        parse_address(text)


@click.command()
@click.option("--config", metavar="FILE", default="", help="Configuration file; the flags below override it.")
@click.option("--policy", metavar="POLICY", type=POLICY, default="", help=POLICY_HELP)
@click.option(
    "--candidate",
    "beside",
    metavar="POLICY",
    type=POLICY,
    default="",
    help="Policy to compare with the one in force on all traffic; see keyfence candidate.",
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
