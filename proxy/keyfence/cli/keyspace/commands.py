"""The commands `keyfence audit` and `keyfence migrate`: their options, and when they are wrong.

Rule: what the work needs (redis-py, the compiler of policies) is imported when the work begins, so that the
other commands start without it.
"""

from __future__ import annotations

from typing import Any

import click

from keyfence.audit.pace import parse_rate, parse_sample
from keyfence.audit.plan import KIND
from keyfence.cli.terminal.options import checked, format_option, is_given, value_option
from keyfence.cli.terminal.output import fail
from keyfence.cli.terminal.policies import POLICY
from keyfence.config.fields import parse_store

from .asked import CONFIGURED, RATE, Move, Request, is_file

_RATE = "Keys a second, or none: as fast as Redis answers."
_config_option = value_option("--config", "FILE", "Configuration with the upstream, its login and TLS.")
_resume_option = value_option("--resume", "FILE", "Keep the progress here, and go on from it.")


def _store(text: str) -> None:
    if text != CONFIGURED:
        parse_store(text)


@click.command()
@click.argument("source", metavar="[URL|FILE.rdb]", default="")
@value_option("--policy", "POLICY", "Policy; overrides the configuration's.", type=POLICY)
@_config_option
@value_option("--rate", "KEYS/s", _RATE, parse_rate, default=f"{RATE}/s", show_default=True)
@value_option(
    "--sample",
    "PERCENT",
    "Ask Redis about a part of the keys, as 1%. Names are always all looked at.",
    parse_sample,
    default="100%",
    show_default=True,
)
@_resume_option
@click.option("--replica", is_flag=True, help="Read replicas instead of masters.")
@click.option(
    "--database",
    "databases",
    metavar="N",
    multiple=True,
    type=click.IntRange(0),
    help="Only this database; may be given several times.  [default: all that hold keys]",
)
@value_option(
    "--store",
    "URL",
    "Write the violations into this findings store; config: the configuration's.",
    checked(_store),
)
@click.option(
    "--plan", type=click.Choice([KIND]), help="Write the renames of deprecated keys, for keyfence migrate."
)
@value_option("--output", "FILE", "File for the plan.  [default: standard output]")
@format_option("text", "json", "markdown")
def audit(**options: Any) -> None:
    """Judge every key that a Redis holds, or an RDB file, by the policy.

    URL has the forms of an upstream: redis://, rediss:// or unix://, with ${NAME} or file:PATH for what is
    secret. Of a cluster, all masters are read. Nothing is changed.

    Exit code 0: no key breaks a rule; 1: some do; 2: wrong usage, or Redis cannot be asked.
    """
    asked = Request(**options)
    if asked.output and not asked.plan:
        fail("--output is for --plan; the report goes to standard output")
    if asked.plan and asked.resume and not asked.output:
        fail("an audit that can be resumed needs a file for its plan; add --output")
    if asked.resume and is_file(asked.source):
        fail("--resume is for a live Redis; a file is always read from its beginning")
    if is_file(asked.source) and not is_given(click.get_current_context(), "rate"):
        asked = asked._replace(rate=0)
    from .audit import run_audit

    run_audit(asked)


@click.command()
@click.argument("plan", metavar="PLAN")
@click.argument("url", metavar="[URL]", default="")
@_config_option
@click.option("--dry-run/--apply", default=True, help="Only look, or move the keys.  [default: dry-run]")
@value_option("--rate", "KEYS/s", _RATE, parse_rate, default="500/s", show_default=True)
@value_option(
    "--jobs",
    "NUMBER",
    "Keys to move at the same time.",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
)
@_resume_option
@value_option("--log", "FILE", "Write each key with its outcome, as JSON lines.")
@format_option("text", "json")
def migrate(**options: Any) -> None:
    """Move deprecated keys to their standard form, by a PLAN of keyfence audit --plan migrate.

    Each key is copied (COPY, which never overwrites), compared, and then removed, unless it has changed
    meanwhile. Without --apply, nothing is changed.

    Exit code 0: every key is moved, or may be; 1: some are left; 2: wrong usage, or Redis cannot be asked.
    """
    from .migrate import run_migration

    run_migration(Move(**options))
