"""The last reload, if it was refused: what operators see of it.

Rule: it is shown until a reload is accepted.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from keyfence.policy.diagnostics import FileError
from keyfence.policy.units import clock_text, counted
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import warn

MAX_FAULTS = 20  # in the status
NOTHING_RELOADED = "nothing was reloaded: policy and configuration stay as they were"


class Refusal(NamedTuple):
    """A reload that was refused."""

    at: float  # Unix seconds
    faults: list[str]

    @property
    def text(self) -> str:
        more = f" (and {counted(len(self.faults) - 1, 'more fault')})" if len(self.faults) > 1 else ""
        refused = f"what was read at {clock_text(self.at)} was refused, so it is not in force"
        return f"{refused}: {self.faults[0]}{more}"


class Refusals:
    """Remembers the last refusal."""

    def __init__(self, counters: Counters, at_start: FileError | None = None) -> None:
        self.current: Refusal | None = None  # None: the last reload was accepted
        self._counters = counters
        if at_start is not None:
            self.put(_of(at_start))

    def add(self, exc: FileError, policy: str, effect: str = NOTHING_RELOADED) -> None:
        """A reload was refused, with this effect; this policy stays in force."""
        self._counters.policy_failed("load", policy)
        self.put(_of(exc))
        for fault in exc.diagnostics:
            warn(str(fault))
        warn(effect)

    def clear(self) -> None:
        """A reload was accepted."""
        self.put(None)

    def put(self, refusal: Refusal | None) -> None:
        """This is the state of the last reload."""
        self.current = refusal
        self._counters.policy_refused = int(refusal is not None)

    def status(self) -> dict[str, Any] | None:
        """The last refusal, for operators and programs."""
        one = self.current
        return None if one is None else {"at": one.at, "faults": one.faults[:MAX_FAULTS]}


def _of(exc: FileError) -> Refusal:
    return Refusal(time.time(), [str(fault) for fault in exc.diagnostics])
