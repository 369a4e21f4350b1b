"""The work of `keyfence migrate`: carries out the renames of a plan.

Rule: without --apply nothing is changed. Exit code 0 means that every key is moved or may be, 1 that some are
left, 2 wrong usage or a Redis that cannot be asked, 130 an interruption.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from keyfence.audit.checkpoint import Checkpoint, CheckpointError
from keyfence.audit.migration import Migration, Moves
from keyfence.audit.moving import Fate, Mover
from keyfence.audit.plan import Plan, PlanError
from keyfence.audit.servers.links import LinkError
from keyfence.audit.servers.nodes import Topology, inspect
from keyfence.audit.servers.router import Router
from keyfence.cli.terminal.options import print_json
from keyfence.cli.terminal.output import fail, say, wrapped
from keyfence.findings.spans import span_text
from keyfence.policy.show import one_line
from keyfence.policy.units import counted

from .asked import Move, is_file
from .progress import interruptible, watching
from .source import opened, settings_of


def run_migration(asked: Move) -> NoReturn:
    """Carries out a plan, prints what became of the keys, and ends the program."""
    settings = settings_of(asked.config, "", asked.url, needs_policy=False)
    if is_file(asked.url):
        fail("a file holds no keys to move; name a Redis: redis://HOST:PORT")
    applies = not asked.dry_run
    try:
        read = Plan(asked.plan)
        with opened(settings, asked.url) as endpoint:
            source, shown = read.header.source, endpoint.address.shown
            if source != shown:
                where = f"the plan is of {source}; its keys are looked for at {shown}"
                say(f"keyfence: {one_line(where)}", err=True)
            topology = Topology(endpoint)
            server = [one.run_id for one in map(inspect, topology.masters())]
            work = {"server": sorted(server), "plan": read.digest, "apply": applies}
            checkpoint = Checkpoint(asked.resume, "migrate", work)
            with contextlib.ExitStack() as stack:
                routers = [
                    stack.enter_context(contextlib.closing(Router(topology))) for _ in range(asked.jobs)
                ]
                movers = [Mover(router, apply=applies) for router in routers]
                moves = _run(read, movers, asked, checkpoint)
    except (LinkError, PlanError, CheckpointError) as exc:
        fail(str(exc))
    if asked.form == "json":
        print_json({"plan": asked.plan, "applied": applies, **moves.as_object()})
    else:
        _print(moves, applies=applies)
    sys.exit(1 if moves.fates[Fate.LEFT] else 0)


def _run(plan: Plan, movers: Sequence[Mover], asked: Move, checkpoint: Checkpoint) -> Moves:
    with watching("keys") as watch:
        one = Migration(plan, movers, asked.rate, checkpoint, asked.log, watch)
        with interruptible(one.stop, checkpoint, lambda: (one.moves.lines, plan.renames + plan.open)):
            return one.run()


def _print(moves: Moves, *, applies: bool) -> None:
    words: dict[Fate, str] = {
        Fate.MOVED: "moved",
        Fate.MOVABLE: "would be moved",
        Fate.DONE: "moved before",
        Fate.GONE: "gone",
        Fate.LEFT: "left",
    }
    counts: dict[str, Any] = {text: moves.fates[one] for one, text in words.items() if moves.fates[one]}
    told = ", ".join(f"{number:,} {text}" for text, number in counts.items()) or "nothing to move"
    total = counted(moves.lines, "key")
    say(f"{total} in {span_text(moves.seconds)}: {told}")
    for why, reason in sorted(moves.reasons.items(), key=lambda item: -item[1].keys):
        say(wrapped(f"{one_line(why)}", f"{reason.keys:>9,}  "))
        for key in reason.examples:
            say(f"{'':11}{one_line(key)}")
    if not applies and moves.fates[Fate.MOVABLE]:
        say("Nothing was changed; --apply moves them.")
