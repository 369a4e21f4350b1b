"""The chain of the history: the form of a row, its hash, and whether rows are those that were written.

Rule: no I/O. A hash covers everything that a row says and the hash of the row before, in one canonical form,
which never changes after a release.

Each run of an instance has a chain of its own, which no other process writes. So instances write to one store
at once without a lock, none waits for another, and a row's hash is known at the moment of the change, before
the row is written. What ties the chains together: each names the heads of those that it found at its begin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.policy.units import counted, plural

FORMAT = "keyfence-history-1"
BEGIN = "0" * 64  # what the first row of a chain has as the hash before
CHAINS = "chains"  # the kind of rows that name the heads of other chains


class Head(NamedTuple):
    """The last row of a chain: how many rows there are, and its hash."""

    instance: str
    rows: int = 0
    hash: str = BEGIN

    @property
    def text(self) -> str:
        """One line, to be kept in another place."""
        return f"{self.instance} {self.rows} {self.hash}"


class Row(NamedTuple):
    """One change. `instance` is the chain: one run of one process."""

    instance: str
    number: int  # from 1
    at: int  # Unix time in ms
    kind: str
    who: str
    detail: str  # JSON
    previous: str
    hash: str

    @property
    def right_hash(self) -> str:
        """The hash that the row must have."""
        content = [FORMAT, *self[:-1]]
        text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def head(self) -> Head:
        """The head of a chain that ends with this row."""
        return Head(self.instance, self.number, self.hash)

    def data(self) -> dict[str, Any]:
        """The detail as values; empty if it is not what keyfence writes."""
        try:
            found = json.loads(self.detail)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class Fault(NamedTuple):
    """What is wrong with a chain, as one sentence."""

    instance: str
    number: int  # of the row; 0: it is about the whole chain
    text: str


def after(head: Head, at: int, kind: str, who: str, detail: Mapping[str, Any]) -> Row:
    """The row that follows the last one of a chain."""
    text = json.dumps(detail, ensure_ascii=True, separators=(",", ":"), sort_keys=True)
    row = Row(head.instance, head.rows + 1, at, kind, who, text, head.hash, "")
    return row._replace(hash=row.right_hash)


def parse_heads(text: str) -> list[Head]:
    """Heads as `Head.text` has them, one a line. A line of the audit log, which is JSON, has one under
    `history`. Raises ValueError."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        written = _of_audit_log(line) if line.startswith("{") else line
        if not written.strip():
            continue
        words = written.split(" ")
        if len(words) != 3 or not words[1].isdecimal() or len(words[2]) != len(BEGIN):
            raise ValueError(
                f"line {number} is not a head: {line[:60]!r}; keyfence history --head prints them"
            )
        found.append(Head(words[0], int(words[1]), words[2]))
    return found


def _of_audit_log(line: str) -> str:
    try:
        return str(json.loads(line).get("history", ""))
    except (ValueError, RecursionError, AttributeError):
        return line  # which is not a head


def chains_of(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each chain, in order."""
    chains: dict[str, list[Row]] = {}
    for row in rows:
        chains.setdefault(row.instance, []).append(row)
    return {name: sorted(chains[name], key=lambda row: row.number) for name in sorted(chains)}


def faults(
    chains: Mapping[str, Sequence[Row]], heads: Iterable[Head], known: Iterable[Head] = ()
) -> list[Fault]:
    """How the rows differ from those that were written. `heads` are those of the store; `known` were kept in
    another place."""
    found: list[Fault] = []
    ends = {one.instance: one for one in heads}
    for name, rows in chains.items():
        found += _faults_within(name, rows)
        found += _faults_at_end(name, rows, ends.get(name))
    for name in sorted(ends.keys() - chains.keys()):
        found.append(Fault(name, 0, f"missing, all of it: there {_were(ends[name])}"))
    for name, rows in chains.items():
        for row in rows:
            if row.kind == CHAINS:
                found += _faults_against(chains, _named(row), f"row {row.number} of {name} names it")
    return found + _faults_against(chains, known, "a head that was kept names it")


def _faults_within(name: str, rows: Sequence[Row]) -> list[Fault]:
    found = []
    before = Head(name)
    for row in rows:
        if row.number == before.rows and before.rows:
            found.append(Fault(name, row.number, "this row is there twice"))
            continue
        if row.number != before.rows + 1:
            missing = f"{before.rows + 1}" if row.number == before.rows + 2 else ""
            missing = missing or f"{before.rows + 1} to {row.number - 1}"
            found.append(Fault(name, before.rows + 1, f"missing before row {row.number}: {missing}"))
        elif row.previous != before.hash:
            found.append(Fault(name, row.number, f"it does not follow row {before.rows} as that is now"))
        if row.hash != row.right_hash:
            found.append(Fault(name, row.number, "its content is not what was written"))
        before = row.head
    return found


def _were(head: Head) -> str:
    return f"{plural(head.rows, 'was', 'were')} {counted(head.rows, 'row')}"


def _faults_at_end(name: str, rows: Sequence[Row], head: Head | None) -> list[Fault]:
    last = rows[-1].head
    if head is None:
        return [Fault(name, 0, f"its head is missing; there {_were(last)}")]
    if last.rows < head.rows:
        return [Fault(name, last.rows + 1, f"missing at the end: there {_were(head)}")]
    if last.rows > head.rows:
        return [Fault(name, head.rows + 1, f"it was added later: there {_were(head)}")]
    if last.hash != head.hash:
        return [Fault(name, last.rows, "it is not the last row that was written")]
    return []


def _named(row: Row) -> list[Head]:
    """The heads of other chains that a row names."""
    named = row.data().get("heads", {})
    pairs = named.items() if isinstance(named, dict) else ()
    return [Head(str(name), int(one[0]), str(one[1])) for name, one in pairs]


def _faults_against(chains: Mapping[str, Sequence[Row]], heads: Iterable[Head], where: str) -> list[Fault]:
    """How the rows differ from heads that they once had; `where` says who knows them."""
    found = []
    for head in heads:
        rows = [row for row in chains.get(head.instance, ()) if row.number == head.rows]
        if not rows:
            found.append(Fault(head.instance, head.rows, f"this row is missing; {where}"))
        elif rows[0].hash != head.hash:
            found.append(Fault(head.instance, head.rows, f"it has another hash than once; {where}"))
    return found
