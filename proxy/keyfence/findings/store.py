"""Writes the findings store.

Rule: one batch is one transaction, and counts are added in the database, so several keyfences may write at
once. Every change of a finding's state is an event.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, bindparam, delete, func, select, update

from keyfence.telemetry.clients import meet
from keyfence.telemetry.counters import OTHER
from keyfence.telemetry.tally import KEY, Example, Key, Row, add_examples
from keyfence.telemetry.usage import PART

from .batch import Batch, Seen, UseKey
from .database import Database
from .finding import (
    ACTIONS,
    AT_REST,
    HOUR,
    SETTLE_SECONDS,
    Event,
    State,
    after_time,
    after_violations,
    finding_id,
)
from .history.chain import Head
from .history.chain import Row as HistoryRow
from .instances import KEEP_SECONDS, Compared, Instance, bounded
from .queries import coverage_of
from .spans import SAME_SPAN_SECONDS, Span, seconds
from .tables import (
    bases,
    compared,
    comparisons,
    events,
    findings,
    findings_columns,
    heads,
    history,
    hours,
    instances,
    policies,
    rule_hours,
    spans,
    use_hours,
    uses,
)

MAX_FINDINGS = 20_000  # beyond, new findings are counted by service and rule only
_CHUNK = 500  # ids of one statement
RuleHours = dict[tuple[int, str, str], dict[str, int]]  # by hour, service and rule: counts by action


class _Gone(Exception):
    """Another instance has deleted a finding that was there a moment ago."""


def _insert_of(database: Database) -> Any:
    """`insert` with ON CONFLICT. Each dialect is imported when it is used, because both take a while."""
    if database.is_sqlite:
        from sqlalchemy.dialects import sqlite

        return sqlite.insert
    from sqlalchemy.dialects import postgresql

    return postgresql.insert


class Store:
    """A findings store, as one keyfence instance writes it. Used from one thread at a time."""

    def __init__(self, database: Database, instance: str) -> None:
        """`instance` distinguishes this process from others that write to the same store."""
        self.database = database
        self._instance = instance
        self._insert = _insert_of(database)
        self._uses: dict[UseKey, int] = {}  # their numbers
        self._spans: dict[tuple[str, str], tuple[int, float]] = {}  # number and end of the last one

    def begin_again(self) -> None:
        """Go on in a new database: the file of the old one was deleted or replaced. Raises SQLAlchemyError or
        OSError."""
        self.database.begin_again()
        self._uses.clear()
        self._spans.clear()

    # -- what was seen

    def write(self, batch: Batch) -> list[Event]:
        """Write a batch. Returns the changes of state. Raises SQLAlchemyError, and writes nothing then."""
        while True:
            with contextlib.suppress(_Gone):
                return self._write_once(batch)

    def _write_once(self, batch: Batch) -> list[Event]:
        """The same. Raises _Gone too."""
        known_spans, known_uses = dict(self._spans), dict(self._uses)
        try:
            with self.database.writing() as connection:
                changes = self._write_findings(connection, batch)
                self._write_uses(connection, batch)
                for (kind, service), of_kind in batch.spans.items():
                    for span in of_kind:
                        self._write_span(connection, kind, service, span)
                if batch.instance is not None:
                    self._write_instance(connection, batch.instance)
                    self._write_compared(connection, batch.instance, batch.compared)
                return changes
        except BaseException:
            self._spans, self._uses = known_spans, known_uses
            raise

    def _write_findings(self, connection: Connection, batch: Batch) -> list[Event]:
        seen, known = self._admitted(connection, batch.seen)
        if not seen:
            return []
        # Known ones are left out, because PostgreSQL takes a number for each row, also of one that is there.
        new = [_new_values(one, key, seen[key]) for one, key in _with_ids(seen) if one not in known]
        for chunk in _chunks(new):
            connection.execute(
                self._insert(findings).on_conflict_do_nothing(index_elements=["id"]), list(chunk)
            )
        by_id = {one: seen[key] for one, key in _with_ids(seen)}
        changes: list[Event] = []
        values: list[dict[str, Any]] = []
        cells: list[dict[str, Any]] = []
        of_rules: RuleHours = {}
        gone: list[tuple[int, str]] = []
        for chunk in _chunks(sorted(by_id)):
            chosen = select(*findings_columns).where(findings.c.id.in_(chunk)).order_by(findings.c.id)
            rows = connection.execute(chosen.with_for_update()).mappings().all()
            if len(rows) < len(chunk):
                raise _Gone
            for stored in rows:
                new_violations = by_id[stored["id"]]
                updated, change = _updated(dict(stored), new_violations)
                if updated is None:
                    gone.append((stored["number"], stored["id"]))
                    continue
                of_rule = stored["service"], stored["rule"]
                for hour, counts in new_violations.hours.items():
                    _add_up(of_rules, (hour, *of_rule), counts)
                values.append({"its_number": stored["number"], **updated})
                cells += _cells(stored["number"], new_violations)
                changes += [change] if change is not None else []
        if values:
            connection.execute(update(findings).where(findings.c.number == bindparam("its_number")), values)
            self._add_cells(connection, hours, cells)
        self._forget(connection, gone, of_rules)
        self._add_rule_hours(connection, of_rules)
        self._add_events(connection, changes)
        return changes

    def _admitted(self, connection: Connection, seen: dict[Key, Seen]) -> tuple[dict[Key, Seen], set[str]]:
        """The findings of a batch, with those beyond the limit folded together, and the ids of those that are
        there already."""
        known = _known(connection, seen)
        if len(known) == len(seen):
            return seen, known
        room = MAX_FINDINGS - connection.execute(select(func.count()).select_from(findings)).scalar_one()
        folded = Batch()
        for one, key in _with_ids(seen):
            row = seen[key].row
            if one not in known:
                room -= 1
                if room < 0:
                    row = {**row, "command": OTHER, "entry": "", "shape": OTHER, "hint": "", "examples": []}
            folded.add_seen(seen[key], row)
        return folded.seen, known if room >= 0 else _known(connection, folded.seen)

    def _add_cells(self, connection: Connection, table: Table, cells: list[dict[str, Any]]) -> None:
        """Add counts by action to the rows of `hours` or `rule_hours`."""
        statement = self._insert(table)
        added = {action: table.c[action] + statement.excluded[action] for action in ACTIONS}
        connection.execute(
            statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added), cells
        )

    def _add_events(self, connection: Connection, changes: Sequence[Event]) -> None:
        if changes:
            connection.execute(events.insert(), [one.as_object() for one in changes])

    def _add_rule_hours(self, connection: Connection, of_rules: RuleHours) -> None:
        # In one order, so that two instances never wait for each other.
        rows = [
            {"hour": hour, "service": service, "rule": rule, **of_rules[hour, service, rule]}
            for hour, service, rule in sorted(of_rules)
        ]
        if rows:
            self._add_cells(connection, rule_hours, rows)

    def _forget(self, connection: Connection, gone: Sequence[tuple[int, str]], of_rules: RuleHours) -> None:
        """Delete findings, given by number and id, and take what they have in `hours` from the sums that come
        to their rules."""
        for chunk in _chunks(list(gone)):
            numbers, ids = [number for number, _ in chunk], [one for _, one in chunk]
            left = (
                select(findings.c.service, findings.c.rule, hours)
                .join(hours, findings.c.number == hours.c.finding)
                .where(findings.c.number.in_(numbers))
            )
            for cell in connection.execute(left).mappings().all():
                counts = {action: -cell[action] for action in ACTIONS}
                _add_up(of_rules, (cell["hour"], cell["service"], cell["rule"]), counts)
            connection.execute(delete(hours).where(hours.c.finding.in_(numbers)))
            connection.execute(delete(events).where(events.c.finding.in_(ids)))
            connection.execute(delete(findings).where(findings.c.number.in_(numbers)))

    # -- evidence and spans

    def _write_uses(self, connection: Connection, batch: Batch) -> None:
        if not batch.uses.keys() <= self._uses.keys():
            self._know_uses(connection)
        new = sorted(key for key in batch.uses if key not in self._uses)  # in one order, as above
        if new:
            columns = ("service", "kind", "name", "basis")
            values = [dict(zip(columns, key, strict=True)) | {"last": 0.0} for key in new]
            connection.execute(self._insert(uses).on_conflict_do_nothing(index_elements=columns), values)
            self._know_uses(connection)
        rows = [
            {"use": self._uses[key], "hour": hour, "times": times}
            for key, cells in sorted(batch.uses.items())
            for hour, times in cells.items()
            if key[1] != PART
        ]
        if rows:
            statement = self._insert(use_hours)
            added = {"times": use_hours.c.times + statement.excluded.times}
            connection.execute(
                statement.on_conflict_do_update(index_elements=["use", "hour"], set_=added), rows
            )
        last = [{"its_number": self._uses[key], "at": at} for key, at in sorted(batch.used.items())]
        if last:
            connection.execute(
                update(uses)
                .where(uses.c.number == bindparam("its_number"), uses.c.last < bindparam("at"))
                .values(last=bindparam("at")),
                last,
            )

    def _know_uses(self, connection: Connection) -> None:
        for row in connection.execute(select(uses)):
            self._uses[row.service, row.kind, row.name, row.basis] = row.number

    def _write_span(self, connection: Connection, kind: str, service: str, span: Span) -> None:
        number, end = self._spans.get((kind, service), (0, 0.0))
        if number and 0 <= span.begin - end <= SAME_SPAN_SECONDS:  # less: the clock was set back
            connection.execute(update(spans).where(spans.c.number == number).values(end=span.end))
        else:
            values = {"instance": self._instance, "kind": kind, "service": service}
            made = connection.execute(spans.insert().values(**values, begin=span.begin, end=span.end))
            number = int(made.inserted_primary_key[0])  # type: ignore[index]
        self._spans[kind, service] = number, span.end

    # -- policies

    def policy_taken(self, policy: str, revision: str, now: float) -> None:
        """Remember that a policy was put in force."""
        with self.database.writing() as connection:
            values = {"at": now, "instance": self._instance, "policy": policy, "revision": revision}
            connection.execute(policies.insert().values(values))

    def basis_taken(self, basis: str, parts: str, now: float) -> None:
        """Remember that a basis was put in force, and what evidence under it is drawn from, as JSON."""
        with self.database.writing() as connection:
            values = {"basis": basis, "since": now, "parts": parts, "taken": now}
            statement = self._insert(bases).values(values)
            connection.execute(statement.on_conflict_do_update(index_elements=["basis"], set_={"taken": now}))

    # -- history

    def history_taken(self, rows: Sequence[HistoryRow], head: Head, tail: str, at: int) -> None:
        """Add rows to a chain, which ends with `head` then. `tail` is when its instance has looked since the
        last row that says so."""
        with self.database.writing() as connection:
            if rows:
                # A row may be there already, if a write failed after it was done.
                added = self._insert(history).on_conflict_do_nothing(index_elements=["instance", "number"])
                connection.execute(added, [row._asdict() for row in rows])
            values = {**head._asdict(), "at": at, "tail": tail}
            statement = self._insert(heads).values(values)
            connection.execute(statement.on_conflict_do_update(index_elements=["instance"], set_=values))

    # -- findings that a policy allows, and others

    def resolve(self, ids: Iterable[str], revision: str, now: float) -> list[Event]:
        """Findings that the policy with this revision allows. Returns the changes of state."""
        why = f"revision {revision} of the policy allows all of it"
        return self._change(dict.fromkeys(ids, (State.RESOLVED, why)), now, resolved=revision)

    def still_resolved(self, ids: Iterable[str], revision: str) -> None:
        """The policy with this revision allows findings that an earlier one has resolved."""
        with self.database.writing() as connection:
            for chunk in _chunks(sorted(ids)):
                resolved = findings.c.id.in_(chunk), findings.c.state == str(State.RESOLVED)
                connection.execute(update(findings).where(*resolved).values(resolved_by=revision))

    def reopen(self, ids: Iterable[str], revision: str, now: float) -> list[Event]:
        """Findings that an earlier policy resolved, and of which the one with this revision is not known to
        allow all. Returns the changes of state."""
        why = f"revision {revision} of the policy may not allow all of it"
        return self._change(dict.fromkeys(ids, (State.REOPENED, why)), now)

    # -- instances

    def _write_instance(self, connection: Connection, one: Instance) -> None:
        """Write what this instance says of itself. One that had its name and was silent since this one began
        is forgotten: the same keyfence was started again."""
        values = dataclasses.asdict(one)
        statement = self._insert(instances).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))
        its_own = instances.c.name == one.name, instances.c.environment == one.environment
        earlier = instances.c.id != one.id, instances.c.last < one.started
        connection.execute(delete(instances).where(*its_own, *earlier))

    def _write_compared(self, connection: Connection, one: Instance, found: Compared | None) -> None:
        """Write what this instance says of the fleet's candidate, in place of what it has said before. Of
        those that have ended, what is about another candidate is forgotten."""
        connection.execute(delete(compared).where(compared.c.id == one.id))
        if found is None:
            connection.execute(delete(comparisons).where(comparisons.c.id == one.id))
            return
        values = dataclasses.asdict(found.comparison)
        statement = self._insert(comparisons).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))
        if rows := [{"id": one.id, **row} for row in bounded(found.rows())]:
            connection.execute(compared.insert(), rows)
        if found.comparison.digest:
            ended = comparisons.c.id.not_in(select(instances.c.id))
            is_same = comparisons.c.digest == found.comparison.digest
            is_same &= comparisons.c.revision == found.comparison.revision
            of_policy = comparisons.c.policy == one.policy, comparisons.c.environment == one.environment
            self._forget_compared(connection, ended, *of_policy, ~is_same)

    def _forget_compared(self, connection: Connection, *which: ColumnElement[bool]) -> None:
        connection.execute(delete(comparisons).where(*which))
        connection.execute(delete(compared).where(compared.c.id.not_in(select(comparisons.c.id))))

    def leave(self, instance: str) -> None:
        """The instance with this id ends."""
        with self.database.writing() as connection:
            connection.execute(delete(instances).where(instances.c.id == instance))

    def forget(self, name: str, before: float) -> int:
        """Forget the instances of this name that were not heard of since a time. Returns how many."""
        with self.database.writing() as connection:
            gone = instances.c.name == name, instances.c.last < before
            return connection.execute(delete(instances).where(*gone)).rowcount

    # -- time

    def age(self, now: float) -> list[Event]:
        """Move findings on that nothing was seen of. Returns the changes of state."""
        waiting = [str(one) for one in State if one not in (State.QUIET, State.RESOLVED)]
        with self.database.reading() as connection:
            stored = connection.execute(
                select(
                    findings.c.id, findings.c.service, findings.c.state, findings.c.since, findings.c.last
                ).where(findings.c.state.in_(waiting))
            ).all()
            looking = {one: coverage_of(connection, one) for one in {row.service for row in stored}}
        changes = {}
        for row in stored:
            # Looking at commands says nothing of keys at rest: they go when an audit does not find them.
            unseen = 0.0 if row.service == AT_REST else seconds(looking[row.service], row.last, now)
            state, why = after_time(State(row.state), row.since, unseen, now)
            if state != row.state:
                changes[row.id] = state, why
        return self._change(changes, now) if changes else []

    def _change(self, to: dict[str, tuple[State, str]], now: float, resolved: str = "") -> list[Event]:
        changes = []
        with self.database.writing() as connection:
            for one, (state, why) in sorted(to.items()):
                changed = connection.execute(
                    update(findings)
                    .where(findings.c.id == one, findings.c.state != str(state))
                    .values(state=str(state), since=now, resolved_by=resolved)
                )
                if changed.rowcount:  # else another instance was first
                    changes.append(Event(one, now, state, why))
            self._add_events(connection, changes)
        return changes

    def prune(self, keep: float, now: float) -> None:
        """Delete what is older than `keep` seconds."""
        old, hour = now - keep, int((now - keep) // HOUR)
        with self.database.writing() as connection:
            chosen = select(findings.c.number, findings.c.id).where(findings.c.last < old)
            gone = connection.execute(chosen.with_for_update()).all()
            connection.execute(delete(hours).where(hours.c.hour < hour))
            connection.execute(delete(rule_hours).where(rule_hours.c.hour < hour))
            of_rules: RuleHours = {}
            self._forget(connection, [(number, one) for number, one in gone], of_rules)
            self._add_rule_hours(connection, of_rules)
            connection.execute(delete(use_hours).where(use_hours.c.hour < hour))
            connection.execute(delete(spans).where(spans.c.end < old))
            connection.execute(delete(events).where(events.c.at < old))
            connection.execute(delete(policies).where(policies.c.at < old))
            connection.execute(delete(instances).where(instances.c.last < now - KEEP_SECONDS))
            self._forget_compared(connection, comparisons.c.last < now - KEEP_SECONDS)
            # Rights stay, because their last use is of interest for longer.
            connection.execute(delete(uses).where(uses.c.basis != "", uses.c.last < old))
            known = select(uses.c.basis)
            connection.execute(delete(bases).where(bases.c.taken < old, bases.c.basis.not_in(known)))
        self._uses.clear()


def _with_ids(seen: dict[Key, Seen]) -> list[tuple[str, Key]]:
    # In one order in all instances, so that none waits for another one that waits for it.
    return sorted((finding_id(key), key) for key in seen)


def _known(connection: Connection, seen: Iterable[Key]) -> set[str]:
    """The ids of those of the findings that are in the store."""
    known: set[str] = set()
    for chunk in _chunks(sorted(map(finding_id, seen))):
        known |= set(connection.execute(select(findings.c.id).where(findings.c.id.in_(chunk))).scalars())
    return known


def _new_values(one: str, key: Key, seen: Seen) -> dict[str, Any]:
    """A finding without counts: `_update` adds them."""
    return {
        "id": one,
        **dict(zip(KEY, key, strict=True)),
        "severity": seen.row["severity"],
        "state": str(State.NEW),
        "since": seen.first,
        "first": seen.first,
        "last": seen.last,
        "refusable": seen.refusable,
        **dict.fromkeys(ACTIONS, 0),
        **dict.fromkeys(("owner", "hint", "revision", "resolved_by"), ""),
        **dict.fromkeys(("clients", "examples"), "[]"),
    }


def _updated(stored: dict[str, Any], seen: Seen) -> tuple[dict[str, Any] | None, Event | None]:
    """The values of a stored finding after new violations, and the change of its state, if any. No values:
    nothing is left of it, because its violations were moved to another shape."""
    counts, row = seen.totals(), seen.row
    totals = {action: stored[action] + counts[action] for action in ACTIONS}
    if sum(totals.values()) <= 0:
        return None, None
    before = state = State(stored["state"])
    is_new = not any(stored[action] for action in ACTIONS)
    # Violations under an earlier policy may arrive after the one that resolved the finding.
    is_earlier = row.get("revision") != stored["resolved_by"]
    is_settling = before is State.RESOLVED and is_earlier and seen.last < stored["since"] + SETTLE_SECONDS
    why = ""
    if sum(counts.values()) > 0 and not is_settling:
        state, why = after_violations(None if is_new else before, counts)
    has_changed = is_new or state is not before
    return {
        **totals,
        "state": str(state),
        "since": seen.last if has_changed else stored["since"],
        "resolved_by": "" if has_changed else stored["resolved_by"],
        "first": min(stored["first"], seen.first),
        "last": max(stored["last"], seen.last),
        "refusable": max(stored["refusable"], seen.refusable),
        "severity": "must" if "must" in (row["severity"], stored["severity"]) else "should",
        "hint": row["hint"] or stored["hint"],
        "owner": row.get("contact") or stored["owner"],
        "revision": row.get("revision") or stored["revision"],
        "clients": _merged_clients(stored["clients"], row),
        "examples": _merged_examples(stored["examples"], row, fresh=before is State.RESOLVED),
    }, Event(stored["id"], seen.last, state, why) if has_changed else None


def _add_up(sums: RuleHours, cell: tuple[int, str, str], counts: Mapping[str, int]) -> None:
    """Add counts by action to the sums of a cell."""
    found = sums.setdefault(cell, dict.fromkeys(ACTIONS, 0))
    for action, number in counts.items():
        found[action] += number


def _cells(number: int, seen: Seen) -> list[dict[str, Any]]:
    """The hours of new violations of a finding, as rows."""
    return [
        {"finding": number, "hour": hour} | {action: counts.get(action, 0) for action in ACTIONS}
        for hour, counts in seen.hours.items()
    ]


def _merged_clients(stored: str, row: Row) -> str:
    clients = json.loads(stored)
    for client in row.get("clients", ()):
        meet(clients, client)
    return json.dumps(clients)


def _merged_examples(stored: str, row: Row, *, fresh: bool) -> str:
    """The examples of both; where the finding was resolved, the new ones come first."""
    before, new = json.loads(stored), list(row.get("examples", ()))
    merged: list[Example] = []
    add_examples(merged, [*new, *before] if fresh else [*before, *new])
    return json.dumps(merged)


def _chunks(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[at : at + _CHUNK] for at in range(0, len(values), _CHUNK))
