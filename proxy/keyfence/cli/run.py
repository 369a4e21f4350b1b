"""`keyfence run`: reads the options, loads policy and configuration, and serves.

Rule: the start waits for everything that this module imports, so it imports nothing that only other commands
need. `tests/process/test_start.py` lists what must not be loaded.
"""

from __future__ import annotations

import os
from typing import Any

import click

from keyfence import _compiled
from keyfence.cli.terminal.policies import POLICY, POLICY_HELP
from keyfence.config.defaults import DEFAULT_ADMIN
from keyfence.config.fields import parse_drain, parse_store, parse_workers
from keyfence.config.references import is_plain_password
from keyfence.config.settings import Overrides
from keyfence.config.upstream import upstream_of
from keyfence.net.addresses import parse_address, parse_listen
from keyfence.process.provision import start
from keyfence.process.run import serve
from keyfence.process.serving.candidate import CLUSTER, REHEARSED
from keyfence.process.serving.jobs import run_loop
from keyfence.process.serving.packing import pack
from keyfence.process.serving.reload import Origin
from keyfence.process.serving.runtime import StartError
from keyfence.telemetry.operator_log import warn
from keyfence.upstream.embedded import EmbeddedRedisError

from .terminal.options import checked, is_given, value_option
from .terminal.output import fail, say


def _store_or_none(text: str) -> None:
    if text != "none":
        parse_store(text)


def _address_or_none(text: str) -> None:
    if text != "none":
        parse_address(text)


@click.command()
@value_option("--config", "FILE", "Configuration file; the flags below override it.")
@value_option("--policy", "POLICY", POLICY_HELP, type=POLICY)
@value_option(
    "--candidate beside",
    "POLICY",
    "Policy to compare with the one in force on all traffic; see keyfence candidate.",
    type=POLICY,
)
@click.option(
    "--rehearse",
    type=click.Choice([CLUSTER]),
    help="Rehearse a cluster with the policy in force; see keyfence ready --for cluster.",
)
@value_option(
    "--upstream",
    "URL",
    "redis://, rediss:// or unix:// URL, or file:PATH of a file that holds one. "
    "Without it, keyfence starts a Redis.",
    checked(upstream_of),
    envvar="KEYFENCE_UPSTREAM",
)
@value_option(
    "--listen",
    "ADDRESS",
    "HOST:PORT, [IPV6]:PORT, :PORT or unix:PATH; port 0 picks a free port.",
    checked(parse_listen),
)
@value_option("--service", "NAME", "The service that connects to --listen.")
@click.option(
    "--mode",
    type=click.Choice(["observe", "enforce"]),
    help="Mode of every rule; overrides the configuration's modes.",
)
@value_option(
    "--admin", "HOST:PORT", f"Admin address, or none.  [default: {DEFAULT_ADMIN}]", checked(_address_or_none)
)
@value_option(
    "--metrics",
    "HOST:PORT",
    "Address that serves only /metrics and health, or none.  [default: none]",
    checked(_address_or_none),
)
@value_option(
    "--findings",
    "URL",
    "Where findings are kept: sqlite:////PATH/FILE, postgresql://…, or none.  "
    "[default: with --config, a file in the user's state directory]",
    checked(_store_or_none),
)
@value_option("--decision-log", "FILE", "File for violations; - is standard output.")
@value_option(
    "--workers",
    "N",
    "Number of worker processes, or auto: one per core. Without it, one process serves all clients.",
    checked(parse_workers),
)
@value_option(
    "--drain",
    "DURATION",
    "How long clients may take to finish after SIGTERM.  [default: 5s]",
    checked(parse_drain),
)
@value_option("--record", "FILE", "Record a sample of all commands, without values.")
@click.option(
    "--splice", is_flag=True, help="Pass all bytes through unread; listen as configured, apply no policy."
)
def run(config: str, beside: str, rehearse: str | None, splice: bool, **options: Any) -> None:
    """Run the proxy between services and Redis."""
    overrides = Overrides(**options | {"mode": options["mode"] or ""})
    if is_given(click.get_current_context(), "upstream") and is_plain_password(overrides.upstream):
        warn(
            "--upstream holds a password, and process listings show it; write file:PATH or '${NAME}' instead"
        )
    if splice and (beside or rehearse):
        fail(f"--splice applies no policy; omit --{'candidate' if beside else 'rehearse'}")
    if beside and rehearse:
        fail("a rehearsal takes the candidate's place; omit --candidate or --rehearse")
    origin = Origin(config, overrides, spliced=splice)
    (settings, compiled, packed, _), provision = start(origin, beside)
    compared = None if packed is None else (os.path.abspath(beside), packed, "")
    if rehearse:
        if settings.upstream is not None and settings.upstream.cluster:
            fail("keyfence stands before a cluster already; omit --rehearse")
        compared = REHEARSED, pack(settings, compiled), rehearse
    if not all(_compiled.status().values()):
        say(f"keyfence: {_compiled.describe()}", err=True)
    try:
        run_loop(lambda: serve(provision, settings, compiled, compared))
    except (StartError, EmbeddedRedisError) as exc:
        fail(str(exc))
