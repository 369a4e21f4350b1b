"""The tally: how often each service breaks each rule, and since when. The report shows it.

Rule: one row for each (service, rule, command, entry, key shape). The number of rows is bounded; beyond it
the finest fields of a row become `other`, so that sums stay exact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from keyfence.policy.verdict import Peer

from .clients import Client, listed, meet
from .counters import OTHER
from .decision_log import new_decision_id
from .masking import mask, masked_hint
from .sink import Group, Occurrence, Sink

MAX_ROWS = 10_000
MAX_COARSE = 1_000  # further rows, with service and rule only
MAX_EXAMPLES = 5  # of a row
MAX_COMMANDS = 1_000  # examples that are held with their commands; more have none

Key = tuple[str, str, str, str, str]
KEY = ("service", "rule", "command", "entry", "shape")


class Example(TypedDict):
    """One command of a row. It holds no value and no secret."""

    at: float  # Unix seconds
    decision: str  # its id; "" for none
    key: str  # as it may be shown
    client: Client
    command: dict[str, Any]  # a line of the command log; empty where keys are masked, or there are too many
    digest: NotRequired[str]  # of the command, which tells whether another one is the same
    times: NotRequired[int]  # violations of the row that are known to be by exactly this command


class Row(TypedDict):
    """A row as the admin listener serves it. Times are Unix seconds."""

    service: str
    rule: str
    severity: str
    command: str
    entry: str  # a name of the policy; "" for none
    shape: str  # the learned shape, for keys that no entry covers; else ""
    count: int
    actions: dict[str, int]  # observed, refused, waived, late
    first: float
    last: float
    clients: NotRequired[list[Client]]  # address, user, name, library, version of each
    example: str  # the first key that was seen, as it may be shown
    hint: str
    revision: NotRequired[str]  # of the policy that the last finding in full was made under
    contact: NotRequired[str]  # the owner of the key's policy file
    examples: NotRequired[list[Example]]  # of different keys
    registered: NotRequired[bool]  # of an unregistered script: the policy in force registers it


class Tally(Sink):
    """The rows of one process, or the sum of several."""

    def __init__(self) -> None:
        self._rows: dict[Key, Row] = {}
        self._met: dict[Key, Peer] = {}  # the last client of a row
        self._mask_keys = False
        self._commands = 0  # examples that are held with their commands

    # -- as a sink

    def record(self, group: Group, found: Occurrence) -> str:
        key = group[:5]
        row = self._rows.get(key)
        if row is None:
            row = self.new_row(group, found)
            if len(self._rows) < MAX_ROWS:  # else the row is folded into one without examples
                self._exemplify(row, found)
            self.add(row)
            return ""
        violation, client, revision, times, _, at = found[:6]
        self.count(row, group.action, at, times)
        row["revision"] = revision
        self._exemplify(row, found)
        if self._met.get(key) is not client:
            self._met[key] = client
            meet(row["clients"], listed(client))
        if violation.severity == "must":  # some findings of a row may be a should
            row["severity"] = "must"
        return ""

    def _exemplify(self, row: Row, found: Occurrence) -> None:
        """Keep the command of a finding as an example, if its key is a new one and there is room."""
        if found.describe is None:
            return
        examples = row.setdefault("examples", [])
        key = found.violation.shown
        if len(examples) >= MAX_EXAMPLES and all(one["key"] != key for one in examples):
            return
        try:
            command = found.describe() if self._commands < MAX_COMMANDS else {}
        except Exception:  # a fault here must not stop the command
            command = {}
        new = Example(
            at=found.at,
            decision=found.decision or new_decision_id(),
            key=key,
            client=listed(found.client),
            command=command,
            digest=_digest(command),
            times=found.times,
        )
        known = len(examples)
        add_examples(examples, [new])
        if len(examples) > known:
            self._commands += bool(command)

    def repeat(self, group: Group, times: int, _now: float, at: float) -> None:
        self.count(self._rows[group[:5]], group.action, at, times)

    def holds(self, group: Group) -> bool:
        return group[:5] in self._rows

    def mask(self, mask_keys: bool) -> None:
        self._mask_keys = mask_keys

    # -- rows

    def new_row(self, group: Group, found: Occurrence) -> Row:
        """A row for a finding that has none yet."""
        violation = found.violation
        example, hint = violation.shown, violation.hint
        if self._mask_keys:
            example = "" if violation.key is None else mask(violation.key)
            hint = masked_hint(violation)
        return Row(
            service=group.service,
            rule=group.rule,
            severity=violation.severity,
            command=group.command,
            entry=group.entry,
            shape=group.shape,
            count=found.times,
            actions={group.action: found.times},
            first=found.at,
            last=found.at,
            clients=[listed(found.client)],
            example=example,
            hint=hint,
            revision=found.revision,
            contact=violation.contact,
        )

    def hand_over(self, row: Row, before: Sequence[int]) -> list[Example]:
        """Returns the examples of a row with the times that have come since they were `before`. The row keeps
        them without their commands."""
        examples = row.get("examples", [])
        given: list[Example] = []
        for at, one in enumerate(examples):
            new = one.get("times", 1) - (before[at] if at < len(before) else 0)
            if new:
                given.append({**one, "times": new})
            self._commands -= bool(one["command"])
            examples[at] = _bare(one)
        return given

    def find(self, key: Key) -> Row | None:
        """The row that a finding belongs to, for `count`."""
        return self._rows.get(key)

    @staticmethod
    def count(row: Row, action: str, at: float, times: int = 1) -> None:
        row["count"] += times
        actions = row["actions"]
        actions[action] = actions.get(action, 0) + times
        row["last"] = at

    def add(self, row: Row) -> None:
        """Add a row, or add its counts to the row with the same key."""
        known = self._rows.get(key_of(row))
        if known is None:
            row = self._admit(row)
            known = self._rows.get(key_of(row))
        if known is None:
            self._rows[key_of(row)] = _copy(row)
            return
        for client in row.get("clients", ()):
            meet(known.setdefault("clients", []), client)
        known["count"] += row["count"]
        if row["severity"] == "must":  # some findings of a row may be a should
            known["severity"] = "must"
        for action, number in row["actions"].items():
            known["actions"][action] = known["actions"].get(action, 0) + number
        known["first"] = min(known["first"], row["first"])
        known["last"] = max(known["last"], row["last"])
        _add_examples(known, row)
        known["example"] = known["example"] or row["example"]
        known["hint"] = known["hint"] or row["hint"]

    def _admit(self, row: Row) -> Row:
        if len(self._rows) < MAX_ROWS:
            return row
        coarse: Row = {**row, "command": OTHER, "entry": "", "shape": OTHER, "example": "", "hint": ""}
        coarse["examples"] = []
        known = key_of(coarse) in self._rows
        if not known and len(self._rows) >= MAX_ROWS + MAX_COARSE:
            coarse |= {"service": OTHER, "rule": OTHER}
        return coarse

    def rows(self) -> Iterable[tuple[Key, Row]]:
        """All rows with their keys, for reading only."""
        return self._rows.items()

    def snapshot(self) -> list[Row]:
        """Copies of all rows without their examples, the most frequent first. Another thread may ask for it
        while this one goes on counting."""
        rows = list(self._rows.values())  # at once: the table must not grow meanwhile
        copies: list[Row] = [_copy(row, with_examples=False) for row in rows if row["count"]]
        return sorted(copies, key=lambda row: -row["count"])

    def absorb(self, rows: Iterable[Row]) -> None:
        """Add the rows of another tally: of a worker, or of the decision log. Their examples come without
        commands."""
        for row in rows:
            self.add({**row, "examples": [_bare(one) for one in row.get("examples", ())]})


def _bare(example: Example) -> Example:
    return {**example, "command": {}}


def _add_examples(known: Row, row: Row) -> None:
    add_examples(known.setdefault("examples", []), row.get("examples", ()))
    if "revision" in row:
        known["revision"] = row["revision"]


def add_examples(known: list[Example], new: Iterable[Example]) -> None:
    """Add examples of different keys, as far as there is room, and the times of those that are known."""
    for one in new:
        same = next((other for other in known if other["key"] == one["key"]), None)
        if same is None:
            if len(known) < MAX_EXAMPLES:
                known.append(one.copy())
        elif _digest_of(same) == _digest_of(one) != "":
            same["times"] = same.get("times", 1) + one.get("times", 1)


def _digest(command: Mapping[str, Any]) -> str:
    """A text that differs for different commands; "" for none."""
    if not command:
        return ""
    return hashlib.blake2b(json.dumps(command, sort_keys=True).encode(), digest_size=8).hexdigest()


def _digest_of(example: Example) -> str:
    return example.get("digest") or _digest(example["command"])


def _copy(row: Row, *, with_examples: bool = True) -> Row:
    copy: Row = {**row, "actions": dict(row["actions"]), "clients": list(row.get("clients", ()))}
    if not with_examples:
        copy.pop("examples", None)
    elif "examples" in row:
        copy["examples"] = [one.copy() for one in row["examples"]]
    return copy


def key_of(row: Row) -> Key:
    return row["service"], row["rule"], row["command"], row["entry"], row["shape"]
