"""The audit itself: walks over every key of every server, at a pace, and adds up what it finds.

Rule: Redis is only read, a bounded number of keys at a time. What is counted and where the walk stands are
kept together, so an interrupted audit goes on without counting a key twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .checkpoint import Checkpoint
from .facts import NO_IDLE, NO_IDLE_IN_FILES, Asker
from .judge import Facts, Judge, Look
from .pace import Pace, in_sample
from .plan import PlanWriter
from .renames import rename_of
from .servers.links import CannotAsk, Link, LinkError
from .servers.nodes import Server, visiting
from .sums import Sums

MOST_AT_ONCE = 500  # keys of one SCAN and of the pipeline after it

Watcher = Callable[[int, int], None]  # gets the number of keys seen, and of all


class Interrupted(Exception):
    """The audit was told to stop."""


class _Looked(NamedTuple):
    """A key that is to be counted."""

    key: bytes
    look: Look
    was_asked: bool  # Redis was asked about it
    facts: Facts | None


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How an audit looks at keys."""

    rate: int = 0  # keys a second; 0: no limit
    sample: float = 1.0  # the part of the keys that Redis is asked about
    databases: tuple[int, ...] = ()  # only these; empty: all that hold keys
    is_file: bool = False  # the keys come from an RDB file


@dataclasses.dataclass(slots=True)
class Result:
    """What an audit has found."""

    sums: Sums
    began: float  # Unix seconds
    seconds: float = 0.0  # of work, interruptions aside
    seen: int = 0  # keys
    gone: int = 0  # keys that went before Redis was asked about them
    moving: int = 0  # keys that were left out, because their hash slots moved
    moved_slots: int = 0  # hash slots that moved meanwhile: their keys may be missing, or counted twice
    databases: dict[int, int] = dataclasses.field(default_factory=dict)  # keys seen, by database
    notes: dict[str, None] = dataclasses.field(default_factory=dict)
    plan_open: int = 0
    plan_renames: int = 0


class Audit:
    """One walk over the keys of some servers."""

    def __init__(
        self,
        judge: Judge,
        servers: Sequence[Server],
        options: Options,
        checkpoint: Checkpoint,
        plan: Callable[[int], PlanWriter] | None = None,
        watch: Watcher = lambda _seen, _all: None,
    ) -> None:
        """`plan` opens the file of the renames. Its argument is how many bytes of an earlier run's file to
        keep."""
        self._judge = judge
        self._servers = servers
        self._options = options
        self._checkpoint = checkpoint
        self._open_plan = plan
        self._plan: PlanWriter | None = None
        self._watch = watch
        self._pace = Pace(options.rate)
        self._stations = [
            (server, database)
            for server in servers
            for database in sorted(server.keys)
            if not options.databases or database in options.databases
        ]
        self.total = sum(server.keys[database] for server, database in self._stations)
        self.result = Result(Sums(judge), time.time())
        self._at = (0, "0")  # the station, and the cursor there
        self._written = 0  # bytes of the plan that an interrupted audit has written for certain
        self._began = time.monotonic()
        self._stopped = False

    def stop(self) -> None:
        """Interrupts the walk after the keys that are being looked at. May be called by a signal handler."""
        self._stopped = True

    def run(self) -> Result:
        """Walks to the end. The checkpoint stays. The caller removes it once the report is given.

        Raises LinkError, CannotAsk, Interrupted, CheckpointError, PlanError.
        """
        self._checkpoint.resume(self._resume)
        if self._open_plan is not None:
            self._plan = self._open_plan(self._written)
        try:
            self._walk()
            self._save()
            self._finish()
        except (LinkError, CannotAsk, Interrupted):  # between two batches: what is counted is complete
            self._save()
            raise
        finally:
            if self._plan is not None:
                self._plan.close()
        return self.result

    def _walk(self) -> None:
        first = self._at[0]
        for index, (server, database) in enumerate(self._stations[first:], first):
            if index != self._at[0]:
                self._at = (index, "0")
            with visiting(server, database) as link:
                self._visit(link, server, database)

    def _visit(self, link: Link, server: Server, database: int) -> None:
        """Walks over one database of one server."""
        link.attempt("READONLY")  # on a cluster's replica; others refuse it
        notes = self.result.notes
        if self._options.is_file or not server.tracks_idle:
            notes[NO_IDLE_IN_FILES if self._options.is_file else NO_IDLE] = None
        asks_idle = server.tracks_idle and not self._options.is_file
        asker = Asker(link, dataclasses.replace(server, tracks_idle=asks_idle), self._judge, notes)
        index, cursor = self._at
        while True:
            after, keys = link.scan(cursor, self._pace.batch(MOST_AT_ONCE))
            # Nothing is counted before Redis has answered for all of them.
            looked = [
                one
                for at in range(0, len(keys), MOST_AT_ONCE)
                for one in self._asked(asker, keys[at : at + MOST_AT_ONCE])
            ]
            self._count(looked, database, asker.moving)
            asker.moving = 0
            cursor = after.decode()
            if cursor == "0":
                self._at = (index + 1, "0")
                return
            self._at = (index, cursor)
            self._watch(self.result.seen, self.total)
            if self._stopped:
                raise Interrupted
            if self._checkpoint.is_due:
                self._save()
            self._pace.wait(max(len(keys), 1))

    def _asked(self, asker: Asker, keys: Sequence[bytes]) -> list[_Looked]:
        """What is known about some keys."""
        looks = [(key, self._judge.look(key)) for key in keys]
        part, plans = self._options.sample, self._open_plan is not None
        # A plan is whole, whatever the sample is.
        chosen = [one for one in looks if in_sample(one[0], part) or (plans and _is_deprecated(one[1]))]
        facts = dict(zip((key for key, _ in chosen), asker.ask(chosen) if chosen else (), strict=True))
        return [_Looked(key, look, key in facts, facts.get(key)) for key, look in looks]

    def _count(self, looked: Sequence[_Looked], database: int, moving: int) -> None:
        result = self.result
        result.moving += moving
        result.gone -= moving  # they are without facts too
        for key, look, was_asked, facts in looked:
            if facts is None:
                if was_asked:
                    result.gone += 1
                else:
                    result.sums.add(key, look, None)
                continue
            result.sums.add(key, look, facts, self._judge.of_facts(key, look.target, facts))
            if self._plan is not None:
                rename = rename_of(self._judge, key, look, facts, database)
                if rename is not None:
                    self._plan.add(rename)
        result.seen += len(looked)
        result.databases[database] = result.databases.get(database, 0) + len(looked)

    # -- going on after an interruption

    def _resume(self, kept: Mapping[str, Any]) -> None:
        index, cursor = kept["at"]
        result = self.result
        result.sums.take(kept["groups"])
        result.began, result.seconds = float(kept["began"]), float(kept["seconds"])
        result.seen, result.gone, result.moving = (int(kept[name]) for name in ("seen", "gone", "moving"))
        result.databases = {int(name): int(number) for name, number in kept["databases"].items()}
        result.notes = dict.fromkeys(kept["notes"])
        result.plan_renames, result.plan_open = kept["renames"]
        self._at = int(index), str(int(cursor))
        self._written = int(kept["plan"])

    def _save(self) -> None:
        if not self._checkpoint.path:
            return
        result = self.result
        written = self._plan.settle() if self._plan is not None else 0
        self._checkpoint.save(
            {
                "at": self._at,
                "groups": result.sums.as_object(),
                "began": result.began,
                "seconds": result.seconds + time.monotonic() - self._began,
                "seen": result.seen,
                "gone": result.gone,
                "moving": result.moving,
                "databases": result.databases,
                "notes": list(result.notes),
                "plan": written,
                "renames": self._renames(),
            }
        )

    def _renames(self) -> tuple[int, int]:
        plan = self._plan
        written = (plan.renames, plan.open) if plan is not None else (0, 0)
        return self.result.plan_renames + written[0], self.result.plan_open + written[1]

    def _finish(self) -> None:
        self.result.seconds += time.monotonic() - self._began
        self.result.sums.settle()
        self.result.plan_renames, self.result.plan_open = self._renames()
        if self._plan is not None:
            self._plan.settle()
        self._watch(self.result.seen, self.total)


def _is_deprecated(look: Look) -> bool:
    return look.place.kind == "legacy" or (look.target is not None and look.target.successor is not None)


def work_of(
    judge: Judge, servers: Sequence[Server], options: Options, plan: str, slot_map: object = None
) -> dict[str, Any]:
    """What must be the same for an interrupted audit to go on. `slot_map` is a cluster's."""
    return {
        "server": [server.run_id for server in servers],
        "hash slot map": slot_map,
        "policy revision": judge.policy.revision,
        "sample": options.sample,
        "databases": list(options.databases),
        "plan": plan,
    }


def in_order(servers: Iterable[Server]) -> list[Server]:
    """The servers in a fixed order, so that an audit resumes where it stood."""
    return sorted(servers, key=lambda one: one.run_id)
