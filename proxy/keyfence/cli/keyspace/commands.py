"""The commands `keyfence audit` and `keyfence migrate`: their options, and when they are wrong.

Rule: what the work needs (redis-py, the compiler of policies) is imported when the work begins, so that the
other commands start without it.
"""

from __future__ import annotations

import click

from keyfence.audit.pace import parse_rate, parse_sample
from keyfence.audit.plan import KIND
from keyfence.cli.terminal.options import checked, format_option, is_given
from keyfence.cli.terminal.output import fail
from keyfence.cli.terminal.policies import POLICY
from keyfence.config.fields import parse_store

from .asked import CONFIGURED, RATE, Request, is_file


def _store(text: str) -> None:
    if text != CONFIGURED:
        parse_store(text)


@click.command()
@click.argument("source", metavar="[URL|FILE.rdb]", default="")
@click.option(
    "--policy", metavar="POLICY", type=POLICY, default="", help="Policy; overrides the configuration's."
)
@click.option(
    "--config", metavar="FILE", default="", help="Configuration with the upstream, its login and TLS."
)
@click.option(
    "--rate",
    metavar="KEYS/s",
    default=f"{RATE}/s",
    show_default=True,
    callback=checked(parse_rate),
    help="Keys a second, or none: as fast as Redis answers.",
)
@click.option(
    "--sample",
    metavar="PERCENT",
    default="100%",
    show_default=True,
    callback=checked(parse_sample),
    help="Ask Redis about a part of the keys, as 1%. Names are always all looked at.",
)
@click.option("--resume", metavar="FILE", default="", help="Keep the progress here, and go on from it.")
@click.option("--replica", is_flag=True, help="Read replicas instead of masters.")
@click.option(
    "--database",
    "databases",
    metavar="N",
    multiple=True,
    type=click.IntRange(0),
    help="Only this database; may be given several times.  [default: all that hold keys]",
)
@click.option(
    "--store",
    metavar="URL",
    default="",
    callback=checked(_store),
    help="Write the violations into this findings store; config: the configuration's.",
)
@click.option(
    "--plan", type=click.Choice([KIND]), help="Write the renames of deprecated keys, for keyfence migrate."
)
@click.option("--output", metavar="FILE", default="", help="File for the plan.  [default: standard output]")
@format_option("text", "json", "markdown")
def audit(
    source: str,
    policy: str,
    config: str,
    rate: str,
    sample: str,
    resume: str,
    replica: bool,
    databases: tuple[int, ...],
    store: str,
    plan: str | None,
    output: str,
    form: str,
) -> None:
    """Judge every key that a Redis holds, or an RDB file, by the policy.

    URL has the forms of an upstream: redis://, rediss:// or unix://, with ${NAME} or file:PATH for what is
    secret. Of a cluster, all masters are read. Nothing is changed.

    Exit code 0: no key breaks a rule; 1: some do; 2: wrong usage, or Redis cannot be asked.
    """
    if output and not plan:
        fail("--output is for --plan; the report goes to standard output")
    if plan and resume and not output:
        fail("an audit that can be resumed needs a file for its plan; add --output")
    if resume and is_file(source):
        fail("--resume is for a live Redis; a file is always read from its beginning")
    from .audit import run_audit

    paced = is_given(click.get_current_context(), "rate")
    run_audit(
        Request(
            source,
            policy,
            config,
            parse_rate(rate) if paced else None,
            parse_sample(sample),
            resume,
            replica,
            databases,
            store,
            plan is not None,
            output,
            form,
        )
    )


@click.command()
@click.argument("plan", metavar="PLAN")
@click.argument("url", metavar="[URL]", default="")
@click.option(
    "--config", metavar="FILE", default="", help="Configuration with the upstream, its login and TLS."
)
@click.option("--dry-run/--apply", default=True, help="Only look, or move the keys.  [default: dry-run]")
@click.option(
    "--rate",
    metavar="KEYS/s",
    default="500/s",
    show_default=True,
    callback=checked(parse_rate),
    help="Keys a second, or none: as fast as Redis answers.",
)
@click.option(
    "--jobs",
    metavar="NUMBER",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="Keys to move at the same time.",
)
@click.option("--resume", metavar="FILE", default="", help="Keep the progress here, and go on from it.")
@click.option("--log", metavar="FILE", default="", help="Write each key with its outcome, as JSON lines.")
@format_option("text", "json")
def migrate(
    plan: str, url: str, config: str, dry_run: bool, rate: str, jobs: int, resume: str, log: str, form: str
) -> None:
    """Move deprecated keys to their standard form, by a PLAN of keyfence audit --plan migrate.

    Each key is copied (COPY, which never overwrites), compared, and then removed, unless it has changed
    meanwhile. Without --apply, nothing is changed.

    Exit code 0: every key is moved, or may be; 1: some are left; 2: wrong usage, or Redis cannot be asked.
    """
    from .migrate import run_migration

    run_migration(plan, url, config, parse_rate(rate), jobs, resume, log, form, applies=not dry_run)
