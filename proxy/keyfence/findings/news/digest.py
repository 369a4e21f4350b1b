"""A digest: what has happened in the store between two times, and what is about to.

Rule: it is made once for a period, as plain values that the store keeps. A finding stands in it with names
and counts; no key, no value and no client is in it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.findings.enforced import Enforcement, Stretch
from keyfence.findings.finding import ACTIVE, CLOSED, QUIET_SECONDS, Event, State
from keyfence.findings.history.book import BREAK_GLASS, LOOKED_SECONDS, MODES, STOP, WAIVERS
from keyfence.findings.history.chain import Row, chains_of
from keyfence.findings.queries import Chained, Total
from keyfence.findings.readiness import Readiness
from keyfence.findings.views import Views
from keyfence.policy.rules import RULES
from keyfence.policy.services import UNKNOWN

MAX_FINDINGS = 1_000  # of a list; of others it is only known how many there are
MAX_TEXT = 300  # characters of a name
LISTS = ("new", "reopened", "better")  # of findings
ENDS = ("lapsed", "ending")  # lists of waivers and break-glasses
MODES_OF = ("enforced", "relaxed")  # lists of rules whose mode has changed
_OF_FINDING = ("id", "service", "rule", "severity", "command", "entry", "shape", "owner")
Grouped = Callable[[Iterable[Mapping[str, Any]]], list[dict[str, Any]]]  # findings by cause
Digest = dict[str, Any]


class Bounds(NamedTuple):
    """What a digest covers. Times are Unix seconds."""

    since: float
    until: float
    length: float  # seconds until the next digest: what ends within it is told
    # The last change of state that was there when the digest before was made: a later one is told even if it
    # is written late. None: only its time counts.
    after: int | None = None
    ready: frozenset[tuple[str, str]] = frozenset()  # rules and services that were told as ready before


class Covered(NamedTuple):
    """A digest, and the last change of state that was there when it was made."""

    digest: Digest
    event: int


def digest_of(views: Views, bounds: Bounds, grouped: Grouped) -> Covered:
    """The digest of the store that the views read, under the policy that is in force there."""
    changes, event = views.reader.changes_told(bounds.since, bounds.until, bounds.after)
    chained = views.reader.chained(bounds.since)
    found: Digest = {"environment": _environment(views), "since": bounds.since, "until": bounds.until}
    found |= _findings(views, changes, grouped)
    alive = _alive(chained, bounds.until)
    found |= {name: [] for name in ENDS}
    for end in sorted(_ends(alive), key=lambda one: (one["until"], one["service"], one["rule"])):
        if bounds.since < end["until"] <= bounds.until and end["what"] == "waiver":
            found["lapsed"].append(end)
        elif bounds.until < end["until"] <= bounds.until + bounds.length:
            found["ending"].append(end)
    found |= _mode_changes(chained, bounds)
    found["ready"] = _ready(views, bounds)
    return Covered(found, event)


def _environment(views: Views) -> str:
    """Where the instances of this store run; "" if nobody says, or they do not agree."""
    names = {one.environment for one in views.reader.instances()}
    return names.pop() if len(names) == 1 else ""


# -- findings


def _findings(views: Views, changes: Sequence[Event], grouped: Grouped) -> dict[str, Any]:
    """The findings that have changed, by what became of them, and how many `more` there are of each list."""
    by_finding: dict[str, list[Event]] = {}
    for one in changes:
        by_finding.setdefault(one.finding, []).append(one)
    lists: dict[str, list[Total]] = {name: [] for name in LISTS}
    for total in views.reader.totals(sorted(by_finding)):
        if name := _became(total.state, by_finding[total.id]):
            lists[name].append(total)
    found: dict[str, Any] = {"more": {}}
    for name, totals in lists.items():
        totals.sort(key=lambda one: (-one.violations, one.id))
        if left := len(totals[MAX_FINDINGS:]):
            found["more"][name] = left
        # Only these are read as a whole, because their examples are long.
        ids = [one.id for one in totals[:MAX_FINDINGS]]
        places = {one: at for at, one in enumerate(ids)}
        read = sorted(views.reader.of_ids(ids), key=lambda one: places[one.id])
        rows = grouped([one.as_object() for one in read])
        found[name] = [_row(row, by_finding[row["id"]][-1]) for row in rows]
    return found


def _became(state: State, events: Sequence[Event]) -> str:
    """The list that a finding belongs to, by its changes and by its state now; "": none."""
    states = {one.state for one in events}
    if state in ACTIVE:
        return "new" if State.NEW in states else "reopened" if State.REOPENED in states else ""
    return "better" if state in CLOSED and events[-1].state in CLOSED else ""


def _row(row: Mapping[str, Any], last: Event) -> dict[str, Any]:
    names = {name: str(row[name])[:MAX_TEXT] for name in _OF_FINDING}
    told = {"state": str(last.state), "why": last.why[:MAX_TEXT], "at": last.at, "count": row["total"]}
    return {**names, **told, "cause": str(row.get("cause", ""))[:MAX_TEXT]}


# -- waivers and break-glasses, as the history of the instances has them


def _alive(chained: Chained, until: float) -> list[list[Row]]:
    """The chains of the instances that run. One that was killed is silent for an hour before it counts as
    gone."""
    found = []
    for name, rows in chains_of(chained.rows).items():
        written = max(rows[-1].at, chained.written.get(name, 0))
        if rows[-1].kind != STOP and written >= (until - LOOKED_SECONDS) * 1000:
            found.append(rows)
    return found


def _ends(alive: Iterable[Sequence[Row]]) -> list[dict[str, Any]]:
    """Each waiver and each break-glass of the instances that run, once, with its end in Unix seconds."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rows in alive:
        last = {row.kind: row for row in rows}
        for one in (*_waivers(last.get(WAIVERS)), *_glasses(last.get(BREAK_GLASS))):
            found[tuple(one.values())] = one
    return list(found.values())


def _listed(row: Row | None, name: str) -> Iterator[Mapping[str, Any]]:
    of_row = row.data().get(name) if row is not None else None
    return (one for one in (of_row if isinstance(of_row, list) else ()) if isinstance(one, dict))


def _waivers(row: Row | None) -> Iterator[dict[str, Any]]:
    for one in _listed(row, "in_force"):
        try:
            day = datetime.date.fromisoformat(str(one.get("until")))
        except ValueError:
            continue
        end = datetime.datetime.combine(day + datetime.timedelta(days=1), datetime.time(), datetime.UTC)
        about = {name: str(one.get(name, ""))[:MAX_TEXT] for name in ("service", "rule", "owner", "reason")}
        on = one.get("entry") or one.get("keys") or one.get("scope") or one.get("command") or ""
        yield {"what": "waiver", **about, "on": str(on)[:MAX_TEXT], "until": end.timestamp()}


def _glasses(row: Row | None) -> Iterator[dict[str, Any]]:
    for one in _listed(row, "open"):
        until = one.get("until")
        if isinstance(until, int) and until:  # else it ends with the age of the policy
            about = {name: str(one.get(name, ""))[:MAX_TEXT] for name in ("service", "rule")}
            who = str(one.get("who", ""))[:MAX_TEXT]
            yield {
                "what": "break-glass",
                **about,
                "owner": "",
                "reason": who,
                "on": "",
                "until": until / 1000,
            }


# -- modes


def _mode_changes(chained: Chained, bounds: Bounds) -> dict[str, list[dict[str, Any]]]:
    """The rules that are enforced since, and that are no longer."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in MODES_OF}
    since, until = int(bounds.since * 1000), int(bounds.until * 1000)
    named = [row.data() for row in chained.rows if row.kind == MODES and row.at <= until]
    rules = {rule for one in named for rule in one.get("enforce", ()) if rule in RULES}
    if not rules or not any(since < row.at <= until for row in chained.rows):
        return found
    enforcement = Enforcement(chained, since, until)
    for rule in sorted(rules):
        for service in enforcement.services():
            if changed := _change(enforcement.of(rule, service)):
                name, at = changed
                found[name].append({"rule": rule, "service": service, "at": at / 1000})
    return found


def _change(stretches: Sequence[Stretch]) -> tuple[str, int] | None:
    """How a rule's status differs at the end from what it was, and since when. Gaps are no change."""
    known = [one for one in stretches if one.status != "gap"]
    if not known:
        return None
    is_enforced = known[-1].status == "enforced"
    before = [one for one in known if (one.status == "enforced") is not is_enforced]
    if not before:
        return None
    at = next(one.begin for one in known if one.begin >= before[-1].end)
    return ("enforced" if is_enforced else "relaxed"), at


def _ready(views: Views, bounds: Bounds) -> list[dict[str, Any]] | None:
    """The rules that can be enforced, and whether they could at the last digest; None: nobody knows without
    a policy."""
    modes = views.in_force.modes
    if views.in_force.policy is None or modes is None:
        return None
    standings = views.readiness(modes.matrix(), QUIET_SECONDS, bounds.until)["standings"]
    pairs = [
        (one["rule"], one["service"])
        for one in standings
        if one["readiness"] == Readiness.READY and one["service"] != UNKNOWN
    ]
    return [{"rule": rule, "service": of, "new": (rule, of) not in bounds.ready} for rule, of in pairs]
