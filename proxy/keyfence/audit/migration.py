"""Carries out a plan, at a pace, and remembers how far it has come.

Rule: every line of the plan has one outcome, and outcomes come in the order of the plan. Some lines are
carried out at the same time, but never two with the same new key: one could take back the copy that the
other relies on. A line may be carried out twice: the second time finds the key moved already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TextIO

from .checkpoint import Checkpoint
from .moving import Fate, Mover, Outcome
from .pace import Pace
from .plan import Plan, PlanError
from .renames import Rename
from .scan import Interrupted, Watcher
from .servers.links import LinkError

MAX_REASONS = 200
MAX_EXAMPLES = 3
_BY_LINE = 1  # buffering: each line of the log is written at once


@dataclasses.dataclass(slots=True)
class Reason:
    """Why keys were left."""

    keys: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Moves:
    """What has become of the keys of a plan."""

    fates: dict[str, int] = dataclasses.field(default_factory=lambda: {str(one): 0 for one in Fate})
    reasons: dict[str, Reason] = dataclasses.field(default_factory=dict)
    lines: int = 0
    seconds: float = 0.0

    def add(self, one: Rename, outcome: Outcome) -> None:
        """Counts a line of the plan."""
        self.lines += 1
        self.fates[outcome.fate] += 1
        if outcome.fate is not Fate.LEFT:
            return
        why = (
            outcome.why if outcome.why in self.reasons or len(self.reasons) < MAX_REASONS else "other reasons"
        )
        reason = self.reasons.setdefault(why, Reason())
        reason.keys += 1
        if len(reason.examples) < MAX_EXAMPLES:
            reason.examples.append(one.shown)

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)


class Migration:
    """One run over a plan."""

    def __init__(
        self,
        plan: Plan,
        movers: Sequence[Mover],
        rate: int,
        checkpoint: Checkpoint,
        log: str = "",
        watch: Watcher = lambda _seen, _all: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each of `movers` moves one key at a time. `log` names a file that gets each line of the plan with
        its outcome."""
        self._plan = plan
        self._total = plan.renames + plan.open
        self._movers = movers
        self._under_way: deque[tuple[Rename, Future[Outcome]]] = deque()  # in the order of the plan
        self._pace = Pace(rate)
        self._checkpoint = checkpoint
        self._log_path = log
        self._log: TextIO | None = None
        self._watch = watch
        self._clock = clock
        self._began = clock()
        self._stopped = False
        self.moves = Moves()

    def stop(self) -> None:
        """Interrupts the run after the keys that are being moved. May be called by a signal handler."""
        self._stopped = True

    def run(self) -> Moves:
        """Goes to the end of the plan. Raises LinkError, Interrupted, CheckpointError, PlanError."""
        resumes = self._checkpoint.resume(self._resume)
        self._log = self._opened(resumes=resumes)
        try:
            self._carry_out(self.moves.lines)
        except (LinkError, Interrupted, PlanError):
            self._save()
            raise
        finally:
            if self._log is not None:
                with contextlib.suppress(OSError):  # a line that could not be written is tried once more
                    self._log.close()
        self.moves.seconds += self._clock() - self._began
        self._checkpoint.remove()
        return self.moves

    def _carry_out(self, done: int) -> None:
        most = len(self._movers)
        # At the end the pool waits for its movers, so no key is left in the middle of its way.
        with ThreadPoolExecutor(most, thread_name_prefix="mover") as pool:
            for number, one in enumerate(self._plan):
                if number < done:
                    continue
                is_alone = one.new is not None and any(one.new == other.new for other, _ in self._under_way)
                self._conclude(0 if is_alone else most - 1)
                if self._stopped:
                    break
                # Its mover is free: at most the `most - 1` lines before this one are under way.
                mover = self._movers[number % most]
                self._under_way.append((one, pool.submit(mover.move, one)))
                if one.new is not None:
                    self._pace.wait(1)
            self._conclude(0)
        if self._stopped and self.moves.lines < self._total:
            raise Interrupted

    def _conclude(self, most: int) -> None:
        """Waits until at most this many lines are under way, and counts the others. What the log lacks is not
        counted: the next run carries it out again. Raises LinkError, PlanError."""
        while len(self._under_way) > most:
            one, moving = self._under_way.popleft()
            outcome = moving.result()
            self._write(one, outcome)
            self.moves.add(one, outcome)
            self._watch(self.moves.lines, self._total)
            if self._checkpoint.is_due:
                self._save()

    def _opened(self, *, resumes: bool) -> TextIO | None:
        if not self._log_path:
            return None
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if resumes else os.O_TRUNC)
        try:
            return os.fdopen(os.open(self._log_path, flags, 0o600), "w", _BY_LINE, encoding="utf-8")
        except OSError as exc:
            raise self._unwritable(exc) from None

    def _unwritable(self, exc: OSError) -> PlanError:
        return PlanError(f"{self._log_path} cannot be written: {(exc.strerror or '').lower()}")

    def _write(self, one: Rename, outcome: Outcome) -> None:
        if self._log is None:
            return
        line: dict[str, Any] = {"old": _text(one.old)}
        line |= {"new": _text(one.new)} if one.new is not None else {}
        line |= {"database": one.database, "outcome": str(outcome.fate)}
        line |= {"why": outcome.why} if outcome.why else {}
        try:
            self._log.write(json.dumps(line) + "\n")
        except OSError as exc:
            raise self._unwritable(exc) from None

    def _resume(self, kept: dict[str, Any]) -> None:
        moves = Moves(**kept)
        moves.reasons = {why: Reason(**one) for why, one in kept["reasons"].items()}
        self.moves = moves

    def _save(self) -> None:
        kept = self.moves.as_object()
        kept["seconds"] += self._clock() - self._began
        self._checkpoint.save(kept)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
