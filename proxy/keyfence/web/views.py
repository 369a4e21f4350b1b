"""The views of the page: what each one asks, and which of its parts are refreshed.

Rule: a view is made of the answers that the command line gets. A question that has no answer (no findings
store, no policy) leaves its part out and says why.
"""

from __future__ import annotations

import datetime
import shlex
import time
import urllib.parse
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.admin.beside import answers
from keyfence.admin.bodies import BadRequest
from keyfence.admin.queries import number_in
from keyfence.findings.filter import SORTS, Filter, sort_by, states
from keyfence.findings.finding import DAY, State
from keyfence.policy.compiled.tenants import NOBODY
from keyfence.policy.rules import RULES
from keyfence.policy.services import UNKNOWN
from keyfence.policy.units import counted
from keyfence.telemetry.reports.services import commands_of, quantile

from .asked_once import TREND_DAYS, USE_DAYS, Questions
from .words import sentence

Parameters = Mapping[str, str]
Values = dict[str, Any]
PAGE_SIZE = 50
FLEET, LOOK = "/fleet", "/look"
OF_SERVICE = 25  # findings on the page of a service
MAX_COLUMNS = 8  # services, as columns of the matrix
WAIVER_DAYS = 30
FINDING_DAYS = 30  # of the chart of a finding, at most
FILTERS = ("service", "rule", "state", "owner", "entry", "text")
MAX_COMMAND = 8192  # characters
MAX_UNFOLDED = 40  # entries of a policy; more are folded by scope

_OF_A_STORE = frozenset(State) - {State.NEW, State.WAIVED}  # states that only a findings store knows
_SILENT = ("no traffic", "not known", "disabled")  # standings that no command has led to
Load = Callable[[Questions, Parameters], Awaitable[Values]]


class Region(NamedTuple):
    """A part of a page that is refreshed: the content of one element."""

    template: str
    shows: tuple[str, ...]  # the values that it is made of; if one is None, it stays as it is


class View(NamedTuple):
    """One view: its path, its template, the parameters that it takes, and its regions."""

    path: str
    template: str
    load: Load
    parameters: frozenset[str] = frozenset()
    regions: Mapping[str, Region] = {}  # by the id of the element
    load_regions: Load | None = None  # the values of the regions, where that is less than the whole page


# -- overview


async def _overview(questions: Questions, _: Parameters) -> Values:
    summary, why = await _or_why(questions.summary())
    values: Values = {"summary": summary, "why_no_findings": why, "status": await questions.status()}
    values |= {"in_memory": _is_in_memory(summary), "step": await questions.next_step()}
    trend, _why = await _or_why(questions.trend())
    values |= {"trend": trend, "trend_days": TREND_DAYS}
    return values | {"matrix": await _matrix(questions), "traffic": await _traffic(questions)}


async def _or_why(asking: Awaitable[Mapping[str, Any]]) -> tuple[Any, str]:
    """The answer, or None and why there is none."""
    try:
        return await asking, ""
    except ValueError as exc:
        return None, str(exc)


async def _standings(questions: Questions) -> Sequence[Mapping[str, Any]]:
    """The standing of each rule for each service; without a findings store, as far as it is known."""
    found, _ = await _or_why(questions.readiness())
    if found is not None:
        standings: Sequence[Mapping[str, Any]] = found["standings"]
        return standings
    active, _ = await _or_why(questions.findings(Filter(state=states("active"))))
    left = Counter(
        (one["rule"], one["service"])
        for one in (active or {"findings": ()})["findings"]
        if one["severity"] == "must"
    )
    evaluated = await _evaluated(questions)
    modes = (await questions.modes()).get("modes", {})
    return [
        _standing(rule, service, mode, left[rule, service], is_evaluated=bool(evaluated.get(service)))
        for rule, by_service in modes.items()
        for service, mode in by_service.items()
    ]


def _standing(rule: str, service: str, mode: str, left: int, *, is_evaluated: bool) -> Mapping[str, Any]:
    """The standing of a rule for a service without a findings store. `left` is the number of its findings."""
    readiness, why = "not known" if is_evaluated else "no traffic", ""
    if mode == "disabled":
        readiness = "disabled"
    elif mode == "enforce":
        readiness = "enforced"
    elif left:
        readiness, why = "not ready", counted(left, "finding")
    return {"rule": rule, "service": service, "readiness": readiness, "why": why, "asked": None}


async def _evaluated(questions: Questions) -> dict[str, int]:
    """How many commands of each service were evaluated since keyfence began."""
    rows, _ = await questions.traffic()
    return {row["service"]: commands_of(row) for row in rows if commands_of(row)}


async def _matrix(questions: Questions) -> Values:
    standings = await _standings(questions)
    known = [one for one in standings if one["readiness"] not in ("no traffic", "disabled")]
    seen = [one for one in known if one["readiness"] != "not known" and one["asked"] != 0]
    seen += [one for one in known if one["readiness"] in ("not ready", "gap")]
    services = list(dict.fromkeys(one["service"] for one in known))
    cells: dict[str, dict[str, Mapping[str, Any]]] = {}
    counts: dict[str, dict[str, int]] = {}
    gaps: dict[str, list[str]] = {}  # how long keyfence must still look: the services
    for one in standings:
        cells.setdefault(one["rule"], {})[one["service"]] = one
        if one["readiness"] == "gap" and one["service"] not in gaps.setdefault(one["why"], []):
            gaps[one["why"]].append(one["service"])
        of_service = counts.setdefault(one["service"], {})
        of_service[one["readiness"]] = of_service.get(one["readiness"], 0) + 1
    shown = {one["rule"] for one in seen} if services else set()
    # Without columns, a rule is only a name.
    of = services if len(services) <= MAX_COLUMNS else []
    rows = [{"rule": rule, "cells": [cells[rule][service] for service in of]} for rule in cells]
    silent = [one for one in rows if one["rule"] not in shown]
    is_known = all(one["readiness"] != "not known" for one in standings)
    common: Values = {"are_without": "traffic or violations" if is_known else "violations"}
    common |= {"services": services, "silent": silent, "gaps": gaps, "by_rule": [], "by_service": []}
    common |= {"evaluated": sum((await _evaluated(questions)).values())}
    if len(services) > MAX_COLUMNS:
        by_service = [{"service": service, "counts": counts[service]} for service in services]
        return common | {"by_service": by_service}
    return common | {"by_rule": [one for one in rows if one["rule"] in shown]}


async def _traffic(questions: Questions, only: str = "") -> list[Values]:
    rows, rates = await questions.traffic()
    trend, _ = await _or_why(questions.trend())
    hours = trend["commands"] if trend is not None else None
    reads = (await questions.status())["policy"] is not None  # else commands pass, and are not counted
    return [
        {
            "service": row["service"],
            "clients": row["clients"],
            "rate": rates.get(row["service"]) if reads else None,
            "commands": commands_of(row) if reads else None,
            "refused": row["refused"] if reads else None,
            "request_50": quantile("request", row["request"], 0.5),
            "request_99": quantile("request", row["request"], 0.99),
            "upstream_50": quantile("upstream", row["upstream"], 0.5),
            "upstream_99": quantile("upstream", row["upstream"], 0.99),
            "day": _last_day(hours if reads else None, row["service"]),
        }
        for row in rows
        if only in ("", row["service"])
    ]


def _last_day(hours: Mapping[str, Mapping[int, int]] | None, service: str) -> list[int] | None:
    """The commands of a service in each of the last 24 hours; None: not known."""
    if hours is None:
        return None
    this_hour, of_service = int(time.time() // 3600) * 3600, hours.get(service, {})
    return [of_service.get(this_hour - back * 3600, 0) for back in range(23, -1, -1)]


# -- findings


def filter_of(parameters: Parameters) -> Filter:
    """The findings that the parameters of a URL choose. Raises BadRequest."""
    try:
        return Filter(
            service=parameters.get("service", ""),
            rule=parameters.get("rule", ""),
            owner=parameters.get("owner", ""),
            entry=parameters.get("entry", ""),
            text=parameters.get("text", ""),
            state=states(parameters.get("state", "")),
            sort=sort_by(parameters.get("sort", "") or "cause"),
            limit=PAGE_SIZE,
            offset=int(number_in(parameters, "offset", 0.0)),
        )
    except ValueError as exc:
        raise BadRequest(str(exc)) from None


async def _findings(questions: Questions, parameters: Parameters) -> Values:
    listed = await _list(questions, parameters)
    policy, _ = await _or_why(questions.policy())
    return listed | {
        "sorts": SORTS,
        "rules": list(RULES),
        "services": policy["services"] if policy else [],
        "owners": await questions.owners(),
    }


async def _list(questions: Questions, parameters: Parameters) -> Values:
    which = filter_of(parameters)
    found = await _required(questions.findings(which))
    return {
        "given": {name: parameters.get(name, "") for name in FILTERS} | {"sort": which.sort},
        "findings": found["findings"],
        "by_cause": all("cause" in one for one in found["findings"]),
        "in_memory": _is_in_memory(found),
        "is_known": not (_is_in_memory(found) and which.state and _OF_A_STORE.issuperset(which.state)),
        "total": found["total"],
        "offset": which.offset,
        "size": PAGE_SIZE,
        "looks": questions.control.looks,
    }


def _is_in_memory(answer: Mapping[str, Any] | None) -> bool:
    """Whether an answer about findings comes from the report, and not from a store."""
    return answer is not None and bool(answer.get("in_memory"))


async def _required(asking: Awaitable[Mapping[str, Any]], status: int = 400) -> Mapping[str, Any]:
    try:
        return await asking
    except ValueError as exc:
        raise BadRequest(sentence(str(exc)), status) from None


async def _finding(questions: Questions, parameters: Parameters) -> Values:
    counted = await _counts(questions, parameters)
    finding = counted["finding"]
    examples = finding["examples"]
    verdict, why_not = None, ""
    if examples and examples[0]["command"] and not counted["looks"]:
        verdict, why_not = await _or_why(questions.control.explain_example(examples[0]["command"]))
    until = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=WAIVER_DAYS)
    owner = finding["owner"] or "who will mend it"
    waiver = await questions.control.waiver(finding["id"], owner, "why it must pass until then", until)
    # With `mask_keys`, and of commands that were evaluated without their arguments, no command is kept.
    shown = [{**one, "command": {"argv": [], **one["command"]}} for one in examples]
    return counted | {
        "finding": {**finding, "examples": shown},
        "verdict": verdict,
        "why_no_verdict": why_not,
        "docs": _page_of(finding, (await _or_why(questions.policy()))[0]),
        "remedies": [one for one in verdict["remedies"] if one["rule"] == finding["rule"]] if verdict else [],
        "waiver": f"  - {waiver['line']}" if waiver["line"] else "; ".join(waiver["left"]),
        "waivers_file": waiver["file"],
        "until": until.isoformat(),
    }


async def _counts(questions: Questions, parameters: Parameters) -> Values:
    finding = await _required(questions.finding(parameters["id"]), 404)
    now = time.time()
    begin = max(min(finding["first"], now - DAY), now - FINDING_DAYS * DAY)
    trend = {"begin": begin, "end": now}
    shown = {**finding, "in_memory": _is_in_memory(finding)}
    return {"finding": shown, "trend": trend, "looks": questions.control.looks}


# -- services, policy


async def _services(questions: Questions, _: Parameters) -> Values:
    policy, _why = await _or_why(questions.policy())
    traffic = await _traffic(questions)
    seen = {one["service"] for one in traffic}
    services = policy["services"] if policy else []
    silent = [one for one in services if one not in seen and one != UNKNOWN]
    return {"traffic": traffic, "silent": silent, "matrix": await _matrix(questions)}


async def _service(questions: Questions, parameters: Parameters) -> Values:
    service = parameters["service"]
    policy, _why = await _or_why(questions.policy())
    rows = await _rows(questions, parameters)
    is_listed = policy is not None and service in policy["services"]
    if not (is_listed or rows["findings"] or rows["traffic"]):
        raise BadRequest(f"{service!r} is not a service of the policy, and has sent nothing.", 404)
    rights, why_no_rights = await _or_why(questions.rights(service))
    trend, _ = await _or_why(questions.trend(service))
    standings = [one for one in await _standings(questions) if one["service"] == service]
    return rows | {
        "service": service,
        "rights": rights["rights"] if rights else None,
        "why_no_rights": why_no_rights,
        "is_listed": is_listed or policy is None,
        "trend": trend,
        "standings": sorted(standings, key=lambda one: one["readiness"] in _SILENT),
        "all_rules": list(RULES),
        "days": USE_DAYS,
    }


async def _rows(questions: Questions, parameters: Parameters) -> Values:
    service = parameters["service"]
    left = tuple(one for one in State if one is not State.RESOLVED)
    which = Filter(service=service, state=left, sort="last", limit=OF_SERVICE)
    found, why = await _or_why(questions.findings(which))
    return {
        "findings": found["findings"] if found else [],
        "in_memory": _is_in_memory(found),
        "why_no_findings": why,
        "traffic": await _traffic(questions, service),
    }


async def _policy(questions: Questions, parameters: Parameters) -> Values:
    policy = await _required(questions.policy())
    found, why = await _or_why(questions.uses())
    used: dict[str, dict[str, int | None]] = {}
    for entry in policy["entries"]:
        used[entry["name"]] = dict.fromkeys(("read", "write"), 0 if found else None)
    for one in found["uses"] if found else []:
        row = used.get(one["name"])
        if row is not None and one["kind"] in row:
            row[one["kind"]] = (row[one["kind"]] or 0) + one["times"]
    entries = found["findings"] if found else {}
    text = parameters.get("text", "").strip()
    # In a thread, because there may be thousands.
    groups = await answers.do(_by_scope, policy, text, entries)
    is_open = bool(text) or len(policy["entries"]) <= MAX_UNFOLDED
    shown: Values = {"text": text, "groups": groups, "is_open": is_open, "days": USE_DAYS}
    return shown | {"policy": policy, "used": used, "found": entries, "why_no_findings": why}


def _by_scope(policy: Mapping[str, Any], text: str, found: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """The entries that have a text in their names, keys or services, by the innermost scope around their
    keys ("" is none, and None is several), with the number of their findings. Scopes stand as in the
    policy."""
    groups: dict[str | None, list[Mapping[str, Any]]] = {one["name"]: [] for one in policy["scopes"]}
    for one in policy["entries"]:
        if text.casefold() in _words(one):
            scopes = {form["under"] for form in one["forms"]}
            groups.setdefault(scopes.pop() if len(scopes) == 1 else None, []).append(one)
    return [
        {"scope": scope, "entries": listed, "findings": sum(found.get(one["name"], 0) for one in listed)}
        for scope, listed in groups.items()
        if listed
    ]


def _words(entry: Mapping[str, Any]) -> str:
    """What a search for an entry looks at."""
    words = [entry["name"], entry["about"], entry["owner"], *entry["types"], *entry["legacy"]]
    for form in entry["forms"]:
        words += [form["key"], *form["writers"], *form["consumers"], *form["readers"]]
    return "\n".join(words).casefold()


# -- explain, candidate


async def _explain(questions: Questions, parameters: Parameters) -> Values:
    policy = await _required(questions.policy())
    service, command = parameters.get("service", ""), parameters.get("command", "")
    values: Values = {"services": policy["services"], "given": {"service": service, "command": command}}
    if not command:
        return values | {"explained": None, "fault": ""}
    try:
        if len(command) > MAX_COMMAND:
            raise ValueError(f"the command is longer than {MAX_COMMAND} characters")
        argv = [word.encode("utf-8", "surrogateescape") for word in shlex.split(command)]
        if not argv:
            raise ValueError("this is not a command; its name comes first")
        return values | {"explained": await questions.control.explain(service, argv, NOBODY), "fault": ""}
    except ValueError as exc:
        return values | {"explained": None, "fault": sentence(str(exc))}


def _page_of(finding: Mapping[str, Any], policy: Mapping[str, Any] | None) -> str:
    """The page that describes the convention of a finding's keys, at the entry's part; "" if the policy names
    none."""
    if policy is None:
        return ""
    named = (one["docs"] for one in policy["entries"] if one["name"] == finding["entry"])
    pages = {one["docs"] for one in policy["files"]}
    return next(named, pages.pop() if len(pages) == 1 else "")


async def _candidate(questions: Questions, _: Parameters) -> Values:
    values = dict(await _required(questions.candidate()))
    rehearses = values["candidate"] is not None and values["candidate"]["for"]
    return values | {"standing": await _required(questions.standing()) if rehearses else None}


async def _fleet(questions: Questions, _: Parameters) -> Values:
    found = await _required(questions.fleet())
    return {"fleet": found, "is_signed": any(one["sequence"] for one in found["instances"])}


async def _look(questions: Questions, _: Parameters) -> Values:
    """What `keyfence look` has seen, which finds it out and words it; this only shows it."""
    seen = await questions.look()
    return {"seen": seen or None, "is_folded": len(seen.get("services", ())) > MAX_COLUMNS}


_TRAFFIC = Region("live/traffic.html", ("traffic",))
_MATRIX = Region("live/matrix.html", ("matrix",))

VIEWS = (
    View(
        "/",
        "overview.html",
        _overview,
        regions={
            "next": Region("live/next.html", ("step",)),
            "headline": Region("live/headline.html", ("summary", "status")),
            "concerns": Region("live/concerns.html", ("status", "step")),
            "glass": Region("live/glass.html", ("status",)),
            "new": Region("live/new.html", ("summary",)),
            "matrix": _MATRIX,
            "trend": Region("live/trend.html", ("trend",)),
            "latest": Region("live/latest.html", ("summary",)),
            "traffic": _TRAFFIC,
            "process-state": Region("live/process.html", ("status",)),
        },
    ),
    View(
        "/findings",
        "findings.html",
        _findings,
        frozenset({*FILTERS, "sort", "offset"}),
        {"rows": Region("live/rows.html", ("findings", "total"))},
        load_regions=_list,
    ),
    View(
        "/findings/{id}",
        "finding.html",
        _finding,
        regions={"counts": Region("live/counts.html", ("finding",))},
        load_regions=_counts,
    ),
    View("/services", "services.html", _services, regions={"traffic": _TRAFFIC, "matrix": _MATRIX}),
    View(
        "/services/{service}",
        "service.html",
        _service,
        regions={"traffic": _TRAFFIC, "rows": Region("live/of_service.html", ("findings",))},
        load_regions=_rows,
    ),
    View("/policy", "policy.html", _policy, frozenset({"text"})),
    View("/explain", "explain.html", _explain, frozenset({"service", "command"})),
    View(
        FLEET,
        "fleet.html",
        _fleet,
        regions={"instances": Region("live/fleet.html", ("fleet", "is_signed"))},
    ),
    View(
        LOOK,
        "look.html",
        _look,
        regions={
            "kinds": Region("live/kinds.html", ("seen",)),
            "uses": Region("live/uses.html", ("seen",)),
            "keep": Region("live/keep.html", ("seen",)),
        },
    ),
    View(
        "/candidate",
        "candidate.html",
        _candidate,
        regions={
            "standing": Region("live/standing.html", ("standing",)),
            "rows": Region("live/candidate.html", ("candidate", "commands", "rows")),
        },
    ),
)
MENU = (
    ("/", "Overview"),
    ("/findings", "Findings"),
    ("/services", "Services"),
    ("/policy", "Policy"),
    ("/explain", "Explain"),
    ("/candidate", "Candidate"),
    (FLEET, "Fleet"),  # if there is one
)
# In `keyfence look`, which knows no policy and tells services apart by itself.
MENU_OF_LOOK = ((LOOK, "Look"), ("/findings", "Findings"))
VIEWS_OF_LOOK = frozenset({LOOK, "/findings", "/findings/{id}"})


def view_at(address: str) -> tuple[View, Parameters] | None:
    """The view at a path with its query, and its parameters without the empty ones; None if there is none."""
    try:
        parts = urllib.parse.urlsplit(address)
        query = dict(urllib.parse.parse_qsl(parts.query, max_num_fields=20))
    except ValueError:
        return None
    for view in VIEWS:
        place = _place_in(view.path, parts.path)
        if place is not None and query.keys() <= view.parameters:
            return view, query | place
    return None


def _place_in(pattern: str, path: str) -> dict[str, str] | None:
    """The parameter that a path has at the end of a pattern; None if it does not fit."""
    fixed, brace, rest = pattern.partition("{")
    if not brace:
        return {} if path == pattern else None
    value = path.removeprefix(fixed)
    fits = value != path and value and "/" not in value
    return {rest.removesuffix("}"): urllib.parse.unquote(value)} if fits else None
