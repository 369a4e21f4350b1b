"""The work of `keyfence audit`: which keys a Redis holds, and what the policy says about them.

Rule: Redis is only read, and what was found is given before anything else may fail. Exit code 0 means that no
key breaks a rule, 1 that some do, 2 wrong usage or a Redis or a store that cannot be used, 130 an
interruption.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from keyfence.audit.checkpoint import Checkpoint, CheckpointError
from keyfence.audit.judge import Judge
from keyfence.audit.plan import Header, PlanError, PlanWriter
from keyfence.audit.scan import Audit, Options, Result, in_order, work_of
from keyfence.audit.servers.links import CannotAsk, Endpoint, LinkError
from keyfence.audit.servers.nodes import Server, Topology, inspect
from keyfence.audit.servers.rdb import expired_keys
from keyfence.audit.summary import summary
from keyfence.cli.terminal.options import print_json
from keyfence.cli.terminal.output import fail, say
from keyfence.config.fields import store_url
from keyfence.policy.loading.load import load_policy
from keyfence.policy.units import counted

from .asked import CONFIGURED, Request, is_file
from .progress import interruptible, watching
from .report import as_markdown, as_text, left_open
from .source import opened, settings_of


def run_audit(asked: Request) -> NoReturn:
    """Audits, prints the report, and ends the program."""
    settings = settings_of(asked.config, asked.policy, asked.source)
    store = _store_url(asked.store, settings.findings)
    judge = Judge(load_policy(settings.policy))
    if store:
        _open_store(store)
    with opened(settings, asked.source) as endpoint:
        try:
            found, result, checkpoint = _audited(asked, judge, endpoint)
        except (LinkError, CannotAsk, CheckpointError, PlanError) as exc:
            fail(str(exc))
    _print(found, result, asked)
    if store:
        _write_findings(store, found, checkpoint)
    checkpoint.remove()
    sys.exit(1 if found["must"] else 0)


def _audited(asked: Request, judge: Judge, endpoint: Endpoint) -> tuple[dict[str, Any], Result, Checkpoint]:
    """The summary of an audit, its result, and the checkpoint to remove when both were given."""
    shown = asked.source if is_file(asked.source) else endpoint.address.shown
    databases = asked.databases or ((endpoint.address.database,) if endpoint.address.database else ())
    options = Options(asked.rate, asked.sample, databases, is_file(asked.source))
    topology = Topology(endpoint)
    servers = in_order(map(inspect, topology.replicas() if asked.replica else topology.masters()))
    header = Header(judge.policy.name, judge.policy.revision, shown)
    opens = _plan_opener(header, asked.output) if asked.plan else None
    work = work_of(judge, servers, options, asked.output, topology.slot_map())
    checkpoint = Checkpoint(asked.resume, "audit", work)
    result = _run(judge, servers, options, checkpoint, opens)
    result.moved_slots = topology.moved_slots()
    if options.is_file and (expired := expired_keys(endpoint)):
        result.notes[f"{counted(expired, 'key')} of the file had expired; the audit leaves them out"] = None
    return summary(judge.policy, shown, servers, options, result), result, checkpoint


def _store_url(store: str, configured: str) -> str:
    if store != CONFIGURED:
        return store_url(store)
    if not configured:
        fail("--store config needs a configuration with a findings store")
    return configured


def _plan_opener(header: Header, output: str) -> Callable[[int], PlanWriter]:
    def opens(at: int) -> PlanWriter:
        stream = None if output else sys.stdout.buffer
        return PlanWriter(header, output, stream, at)

    return opens


def _run(
    judge: Judge,
    servers: list[Server],
    options: Options,
    checkpoint: Checkpoint,
    plan: Callable[[int], PlanWriter] | None,
) -> Result:
    with watching("keys") as watch:
        one = Audit(judge, servers, options, checkpoint, plan, watch)
        with interruptible(one.stop, checkpoint, lambda: (one.result.seen, one.total)):
            return one.run()


def _open_store(url: str) -> None:
    """Opens a findings store and closes it: a walk over all keys is not to end at a store that cannot be
    opened. Such a store ends the command."""
    from keyfence.findings.database import Database, StoreError

    try:
        Database(url).close()
    except StoreError as exc:
        fail(str(exc))


def _write_findings(url: str, found: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Writes the violations into a findings store. A store that cannot be written ends the command."""
    from sqlalchemy.exc import SQLAlchemyError

    from keyfence.audit.at_rest import AtRest, write_audit
    from keyfence.findings.database import Database, StoreError, reason

    names = ("rule", "severity", "entry", "shape", "keys", "owner", "hint", "examples")
    rows = [AtRest(*(one[name] for name in names)) for one in found["violations"]]
    is_all = found["sample"] == 1 and not (found["moving"] or found["moved_slots"])
    whole = is_all and all(one["audited"] for one in found["databases"])
    again = f"; --resume {checkpoint.path} writes it without a new audit" if checkpoint.path else ""
    try:
        database = Database(url)
        try:
            write_audit(database, rows, found["source"], found["revision"], time.time(), whole=whole)
        except SQLAlchemyError as exc:
            fail(f"the findings store {database.shown} cannot be written: {reason(exc)}{again}")
        finally:
            database.close()
    except StoreError as exc:
        fail(f"{exc}{again}")


def _print(found: dict[str, Any], result: Result, asked: Request) -> None:
    renames = f"{counted(result.plan_renames, 'rename')}, and {counted(result.plan_open, 'key')} without one"
    if asked.plan and not asked.output:
        say(f"keyfence: {counted(found['keys'], 'key')}: {renames}", err=True)
        for sentence in left_open(found):
            say(f"keyfence: {sentence}", err=True)
        return
    if asked.plan:
        found |= {"plan": {"file": asked.output, "renames": result.plan_renames, "open": result.plan_open}}
    if asked.form == "json":
        print_json(found)
    else:
        say(as_markdown(found) if asked.form == "markdown" else as_text(found))
        if asked.plan and asked.form == "text":
            say(f"\n{asked.output}: {renames}")
