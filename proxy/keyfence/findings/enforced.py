"""When a rule was enforced for a service, from the history of all instances.

Rule: at a time the worst instance counts: enforced means that at least one instance looked at commands, and
each that did enforced the rule. What the history does not say is a gap, never enforced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .history.book import BREAK_GLASS, LOOKED, LOOKED_SECONDS, MODES, POLICY, STATES, WAIVERS
from .history.chain import Row, chains_of
from .queries import Chained
from .spans import OPAQUE, Span, clipped, union

Status = Literal["enforced", "observed", "off", "gap"]
_RANKS: dict[Status, int] = {"enforced": 0, "observed": 1, "off": 2, "gap": 3}
NOT_LOOKING = "no instance looked"
BEFORE = "before the history"
UNREAD = "commands passed unread"
# How long after its last row the time is believed that only the head of a chain names: no hash covers it.
_TAIL = int((LOOKED_SECONDS + 60) * 1000)
UNWRITTEN = 30_000  # ms: for so long what an instance does may not be written yet


class Stretch(NamedTuple):
    """A time in which nothing changed. Times are Unix times in ms."""

    begin: int
    end: int
    status: Status
    why: str

    def as_object(self) -> dict[str, Any]:
        return {**self._asdict(), "begin": self.begin / 1000, "end": self.end / 1000}


class _State(NamedTuple):
    """What one instance had in force from one time to another."""

    span: Span
    in_force: dict[str, Mapping[str, Any]]  # by kind

    def of(self, rule: str, service: str) -> tuple[Status, str]:
        """The status of a rule for a service, and why it is not better."""
        policy, modes = self.in_force.get(POLICY, {}), self.in_force.get(MODES, {})
        if not policy or policy.get("passthrough"):
            return "gap", "passthrough"
        if service not in modes.get("services", ()):
            return "gap", "not a service of the policy"
        if _names(modes, "disabled", rule, service):
            return "off", ""
        if not _names(modes, "enforce", rule, service):
            return "observed", ""
        if rule in policy.get("should", ()):
            return "observed", "only a should of the policy"
        for one in self.in_force.get(BREAK_GLASS, {}).get("open", ()):
            if one["rule"] in ("", rule) and one["service"] in ("", service):
                return "gap", f"break-glass by {one['who']}"
        waived = self.in_force.get(WAIVERS, {}).get("in_force", ())
        number = sum((one["rule"], one["service"]) == (rule, service) for one in waived)
        return "enforced", f"waivers: {number}" if number else ""


def _names(modes: Mapping[str, Any], mode: str, rule: str, service: str) -> bool:
    named = modes.get(mode, {}).get(rule, ())
    return named == ["*"] or service in named


class _Instance:
    """What the chain of one run of an instance says."""

    def __init__(self, rows: Sequence[Row], tail: str) -> None:
        looked = [one for row in rows if row.kind == LOOKED for one in row.data().get("spans", ())]
        last = max(rows[0].at, *(row.at for row in rows if row.kind == LOOKED), 0)
        # No hash covers the tail, so it counts for an hour after the last row only.
        for kind, service, begin, end in _listed(tail):
            begin, end = max(begin, last), min(end, last + _TAIL)
            looked += [[kind, service, begin, end]] if begin < end else []
        self.present = union(Span(one[2], one[3]) for one in looked if one[0] != OPAQUE)
        self.unread: dict[str, list[Span]] = {}
        for kind, service, begin, end in looked:
            if kind == OPAQUE:
                self.unread.setdefault(service, []).append(Span(begin, end))
        self.states = list(_states(rows, int(self.present[-1].end))) if self.present else []

    def says(self, rule: str, service: str) -> Iterator[Stretch]:
        """What it had in force while it was looking."""
        for state in self.states:
            status, why = state.of(rule, service)
            for one in clipped(self.present, *state.span):
                yield Stretch(int(one.begin), int(one.end), status, why)
        for one in self.unread.get(service, ()):
            yield Stretch(int(one.begin), int(one.end), "gap", UNREAD)


def _listed(tail: str) -> list[list[Any]]:
    try:
        found = json.loads(tail)
    except (ValueError, RecursionError):
        return []
    return (
        [one for one in found if isinstance(one, list) and len(one) == 4] if isinstance(found, list) else []
    )


def _states(rows: Sequence[Row], end: int) -> Iterator[_State]:
    in_force: dict[str, Mapping[str, Any]] = {}
    since = 0
    for row in rows:
        if row.kind not in STATES:
            continue
        at = max(since, row.at)  # a clock may be set back
        if in_force and at > since:
            yield _State(Span(since, at), dict(in_force))
        in_force[row.kind] = row.data()
        since = at
    if end > since:
        yield _State(Span(since, end), in_force)


class Enforcement:
    """Answers when rules were enforced between two times, in ms."""

    def __init__(self, chained: Chained, since: int, until: int) -> None:
        chains = chains_of(chained.rows)
        self.instances = [_Instance(rows, chained.tails.get(name, "")) for name, rows in chains.items()]
        self.began = min((row.at for row in chained.rows), default=until)
        seen = max((int(one.present[-1].end) for one in self.instances if one.present), default=0)
        self.since = since
        # What was done in the last seconds may not be written yet, and is no gap.
        self.until = seen if 0 <= until - seen < UNWRITTEN else until

    def services(self) -> list[str]:
        """All that a policy had in this time."""
        found: set[str] = set()
        for one in self.instances:
            for state in one.states:
                if state.span.begin < self.until and state.span.end > self.since:
                    found |= set(state.in_force.get(MODES, {}).get("services", ()))
        return sorted(found)

    def of(self, rule: str, service: str) -> list[Stretch]:
        """The status of a rule for a service at each time, in order and without holes."""
        said = (stretch for one in self.instances for stretch in one.says(rule, service))
        return list(_worst(said, self.since, self.until, self.began))


def _worst(said: Iterable[Stretch], since: int, until: int, began: int) -> Iterator[Stretch]:
    """The worst of what the instances say at each time; a gap where none says anything."""
    changes: dict[int, Counter[tuple[int, Status, str]]] = {since: Counter(), until: Counter()}
    if since < began < until:
        changes[began] = Counter()
    for one in said:
        begin, end = max(one.begin, since), min(one.end, until)
        if begin < end:
            key = (_RANKS[one.status], one.status, one.why)
            changes.setdefault(begin, Counter())[key] += 1
            changes.setdefault(end, Counter())[key] -= 1
    now: Counter[tuple[int, Status, str]] = Counter()
    at, why = since, ""
    status: Status | Literal[""] = ""
    times = sorted(changes)
    for time in times:
        now.update(changes[time])
        worst = max((key for key, number in now.items() if number > 0), default=None)
        said_now = worst[1:] if worst else ("gap", BEFORE if time < began else NOT_LOOKING)
        if (status, why) != said_now or time == until:
            if status and at < time:
                yield Stretch(at, time, status, why)
            at, (status, why) = time, said_now


def totals(stretches: Iterable[Stretch]) -> dict[Status, int]:
    """For how many ms each status held."""
    found: dict[Status, int] = dict.fromkeys(_RANKS, 0)
    for one in stretches:
        found[one.status] += one.end - one.begin
    return found
