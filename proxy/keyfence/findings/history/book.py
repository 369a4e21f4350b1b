"""The history of this process: rows that are chained when something happens, and wait to be written.

Rule: a row is never lost while the process lives, and never changed. A row of a kind in `STATES` says all
that is in force of its kind, so the last one alone is enough. Nothing here does I/O.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keyfence.policy.show import one_line

from .chain import CHAINS, Head, Row, after

START, STOP, LOOKED = "start", "stop", "looked"
POLICY, MODES, WAIVERS, BREAK_GLASS, CANDIDATE = "policy", "modes", "waivers", "break-glass", "candidate"
STATES = (POLICY, MODES, WAIVERS, BREAK_GLASS, CANDIDATE)
LOOKED_SECONDS = 3600.0  # between two rows that say when commands were looked at
SAME_SPAN = 5_000  # ms: a shorter pause in looking is none
MAX_WHO = 200  # characters
MAX_CHAINS = 50  # other chains that one row names; those name the ones before
_Spans = dict[tuple[str, str], list[list[int]]]  # by kind and service: begin and end in ms


class Book:
    """The chain of this process. Any thread may use it."""

    def __init__(self, instance: str, clock: Callable[[], float] = time.time) -> None:
        """`instance` names this process among those of the store; the chain's name is of this run only,
        because in containers names and process ids repeat."""
        self.instance = instance
        self._clock = clock
        self._lock = threading.Lock()
        self._head = self._new_head()
        self._waiting: list[Row] = []
        self._state: dict[str, Mapping[str, Any]] = {}  # by kind: what is in force
        self._looked: _Spans = {}  # since the last row that says so
        self._looked_since = clock()
        self.has_named_others = False

    def _new_head(self) -> Head:
        return Head(f"{'-'.join(one_line(self.instance).split())}:{secrets.token_hex(4)}")

    @property
    def head(self) -> Head:
        """The last row, whether it is written yet or not."""
        return self._head

    def note(self, who: str, *changes: tuple[str, Mapping[str, Any]]) -> None:
        """Add changes of one moment: the kind and the detail of each."""
        with self._lock:
            at = self._now()
            for kind, detail in changes:
                self._add(at, kind, who, detail)

    def stop(self, who: str) -> None:
        """The process ends."""
        with self._lock:
            self._add_looked(who)
            self._add(self._now(), STOP, who, {})

    def look(self, kind: str, service: str, begin: float, end: float) -> None:
        """Commands were looked at, or not, from one time to another. `service` "" is all."""
        with self._lock:
            spans = self._looked.setdefault((kind, service), [])
            first, last = int(begin * 1000), int(end * 1000)
            if spans and 0 <= first - spans[-1][1] <= SAME_SPAN:
                spans[-1][1] = last
            else:
                spans.append([first, last])
            if not 0 <= self._clock() - self._looked_since < LOOKED_SECONDS:
                self._add_looked("keyfence")

    def name_others(self, heads: Sequence[Head]) -> None:
        """Tie this chain to those that are in the store, the newest first."""
        others = {one.instance: [one.rows, one.hash] for one in heads[:MAX_CHAINS]}
        with self._lock:
            self.has_named_others = True
            if others:
                self._add(self._now(), CHAINS, "keyfence", {"heads": others})

    # -- for the writer

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> tuple[list[Row], Head, str]:
        """The rows to write, the head then, and the time looked since the last row that says so, as JSON."""
        with self._lock:
            return list(self._waiting), self._head, json.dumps(_listed(self._looked))

    def written(self, rows: Sequence[Row]) -> None:
        """These rows are in the store."""
        with self._lock:
            done = {row.hash for row in rows}
            self._waiting = [row for row in self._waiting if row.hash not in done]

    def begin_again(self) -> None:
        """The store was lost with the rows in it: begin a new chain with what is in force. It names the one
        that is missing."""
        with self._lock:
            lost, waiting = self._head, self._waiting
            self._head, self._waiting = self._new_head(), []
            self.has_named_others = False
            at = self._now()
            self._add(at, START, "keyfence", {"why": "the findings store was deleted or replaced"})
            self._add(at, CHAINS, "keyfence", {"heads": {lost.instance: [lost.rows, lost.hash]}})
            for kind, detail in list(self._state.items()):
                self._add(at, kind, "keyfence", detail)
            for row in waiting:
                if row.kind not in (*STATES, CHAINS):
                    self._add(row.at, row.kind, row.who, row.data())

    # -- within the lock

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _add(self, at: int, kind: str, who: str, detail: Mapping[str, Any]) -> None:
        row = after(self._head, at, kind, one_line(who)[:MAX_WHO], detail)
        self._head = row.head
        self._waiting.append(row)
        if kind in STATES:
            self._state[kind] = detail

    def _add_looked(self, who: str) -> None:
        if self._looked:
            self._add(self._now(), LOOKED, who, {"spans": _listed(self._looked)})
        self._looked = {}
        self._looked_since = self._clock()


def _listed(spans: _Spans) -> list[list[Any]]:
    return [[kind, service, *one] for (kind, service), each in sorted(spans.items()) for one in each]
