"""Findings at rest: what an audit has found in the keys that Redis holds.

Rule: an audit says how many keys break a rule now, so its count replaces the one before it. Only an audit of
the whole key space resolves what it does not find any more. No service is charged with these findings.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from sqlalchemy import Connection, select, update

from keyfence.findings.database import Database
from keyfence.findings.finding import ACTIONS, AT_REST, CLOSED, Event, State, finding_id
from keyfence.findings.tables import events, findings
from keyfence.policy.verdict import Severity

COMMAND = "AUDIT"
MAX_EXAMPLES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class AtRest:
    """Keys of one kind that break one rule."""

    rule: str
    severity: Severity
    entry: str
    shape: str
    keys: int
    owner: str
    hint: str
    examples: Sequence[str]  # keys as they may be shown

    @property
    def id(self) -> str:
        return finding_id((AT_REST, self.rule, COMMAND, self.entry, self.shape))


def write_audit(
    database: Database, found: Sequence[AtRest], source: str, revision: str, now: float, *, whole: bool
) -> list[Event]:
    """Writes what an audit of `source` has found. `whole`: it has looked at all keys. Returns the changes of
    state. Raises SQLAlchemyError, and writes nothing then."""
    changes: list[Event] = []
    with database.writing() as connection:
        for one in _joined(found):
            changes += _write(connection, one, source, revision, now)
        if whole:
            changes += _resolve(connection, {one.id for one in found}, source, revision, now)
        if changes:
            rows = [
                {"finding": one.finding, "at": one.at, "state": str(one.state), "why": one.why}
                for one in changes
            ]
            connection.execute(events.insert(), rows)
    return changes


def _joined(found: Sequence[AtRest]) -> list[AtRest]:
    """The findings with those of one id together: an entry may have keys in several scopes."""
    joined: dict[str, AtRest] = {}
    for one in found:
        before = joined.get(one.id)
        if before is not None:
            worst: Severity = "must" if "must" in (before.severity, one.severity) else "should"
            examples = list(dict.fromkeys([*before.examples, *one.examples]))[:MAX_EXAMPLES]
            one = dataclasses.replace(before, keys=before.keys + one.keys, severity=worst, examples=examples)
        joined[one.id] = one
    return list(joined.values())


def _write(connection: Connection, one: AtRest, source: str, revision: str, now: float) -> list[Event]:
    """Writes one finding. Returns the change of its state, if there is one."""
    client = {"address": source}
    examples = [
        {"at": now, "decision": "", "key": key, "client": client, "command": {}} for key in one.examples
    ]
    values = {
        "severity": one.severity,
        "last": now,
        "at_rest": one.keys,
        "owner": one.owner,
        "hint": one.hint,
        "revision": revision,
        "clients": json.dumps([client]),
        "examples": json.dumps(examples),
        "resolved_by": "",
    }
    stored = connection.execute(
        select(findings.c.number, findings.c.state).where(findings.c.id == one.id).with_for_update()
    ).one_or_none()
    if stored is None:
        names = {"service": AT_REST, "rule": one.rule, "command": COMMAND, "entry": one.entry}
        begun = {"state": str(State.NEW), "since": now, "first": now, **dict.fromkeys(ACTIONS, 0)}
        connection.execute(findings.insert().values(id=one.id, shape=one.shape, **names, **begun, **values))
        return [Event(one.id, now, State.NEW, "first seen")]
    before = State(stored.state)
    change = []
    if before in CLOSED:
        values |= {"state": str(State.REOPENED), "since": now}
        change = [Event(one.id, now, State.REOPENED, f"seen again after it was {before}")]
    connection.execute(update(findings).where(findings.c.number == stored.number).values(values))
    return change


def _resolve(connection: Connection, found: set[str], source: str, revision: str, now: float) -> list[Event]:
    """Resolves the findings of earlier audits of the same keys that this one has not found."""
    before = connection.execute(
        select(findings.c.id, findings.c.clients)
        .where(findings.c.service == AT_REST, findings.c.state != str(State.RESOLVED))
        .order_by(findings.c.id)
    ).all()
    gone = [
        row.id
        for row in before
        if row.id not in found and [one.get("address") for one in json.loads(row.clients)] == [source]
    ]
    for one in gone:
        connection.execute(
            update(findings)
            .where(findings.c.id == one)
            .values(state=str(State.RESOLVED), since=now, at_rest=0, resolved_by=revision)
        )
    return [Event(one, now, State.RESOLVED, "an audit does not find it any more") for one in gone]
