"""The next step: what to do now, in one sentence, with a command and a link to the page.

Rule: the first row of ROWS that applies is the step, so their order is their importance. A row only words
what status, readiness, causes and the rehearsal know; it finds out nothing itself.
"""

from __future__ import annotations

import shlex
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from keyfence.config.defaults import DEFAULT_ADMIN
from keyfence.findings.finding import DAY, QUIET_SECONDS
from keyfence.findings.spans import span_text
from keyfence.net.addresses import Address
from keyfence.policy.services import UNKNOWN
from keyfence.policy.units import clock_text, counted, named, plural
from keyfence.telemetry.reports.services import commands_of

from .asked import CommonCause, Fleet, Question, Readiness

SHARE = 4  # a cause is worth a step if it has one of so many findings
_LOCAL = ("127.0.0.1", "0.0.0.0", "localhost")


class Asked(Protocol):
    """Who answers: a running keyfence, or answers that are kept for a moment."""

    async def status(self) -> Mapping[str, Any]: ...

    async def ask(self, question: Question) -> Any: ...

    async def standing(self) -> Mapping[str, Any]: ...


class Step(NamedTuple):
    """What to do now."""

    name: str  # of its row
    sentence: str
    command: str  # "": there is none
    link: str  # a path of the page; "": there is none
    label: str  # of the link


class Facts(NamedTuple):
    """What the rows look at."""

    status: Mapping[str, Any]
    commands: Mapping[str, int]  # since keyfence began, by service
    active: Mapping[str, Any] | None  # the active findings, and what many of them have in common
    readiness: Mapping[str, Any] | None  # None: not known without a findings store
    standing: Mapping[str, Any] | None  # of the rehearsal of a cluster; None: there is none
    fleet: Mapping[str, Any] | None = None  # None: not known without a findings store


Values = Mapping[str, Any]  # of the texts of a row


async def next_step(asked: Asked, traffic: Sequence[Mapping[str, Any]]) -> Step:
    """The next step. `traffic` is the services' (`telemetry.reports.services`)."""
    status = await asked.status()
    rehearses = status["candidate"] is not None and status["candidate"].get("for")
    facts = Facts(
        status,
        {row["service"]: commands_of(row) for row in traffic if commands_of(row)},
        await _known(asked.ask(CommonCause())),
        await _known(asked.ask(Readiness(QUIET_SECONDS))),
        await _known(asked.standing()) if rehearses else None,
        await _known(asked.ask(Fleet())),
    )
    return step_of(facts)


async def _known(asking: Awaitable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    try:
        return await asking
    except ValueError:
        return None


def step_of(facts: Facts) -> Step:
    """The first row that applies."""
    for row in ROWS:
        values = row.when(facts)
        if values is not None:
            given = {"admin": _admin_option(facts.status), **values}
            texts = (row.sentence, row.command, row.link, row.label)
            return Step(row.name, *(text.format_map(given) for text in texts))
    raise AssertionError("the last row always applies")


def _admin_option(status: Mapping[str, Any]) -> str:
    """The option that names this keyfence; "" if commands ask it anyway."""
    url = status["admin"]
    return "" if url in ("", f"http://{DEFAULT_ADMIN}") else f" --admin {shlex.quote(url)}"


# -- the conditions: the values of a row's texts, or None


def _refused(facts: Facts) -> Values | None:
    policy = facts.status["policy"]
    if policy is None or policy["refused"] is None:
        return None
    refused = policy["refused"]
    more = f" (and {counted(len(refused['faults']) - 1, 'more fault')})" if len(refused["faults"]) > 1 else ""
    return {"at": clock_text(refused["at"]), "fault": f"{refused['faults'][0].rstrip('.')}{more}"}


def _stale(facts: Facts) -> Values | None:
    policy = facts.status["policy"]
    server = policy["server"] if policy is not None else None
    if server is None or not server["is_stale"]:
        return None
    return {"url": server["url"], "confirmed": clock_text(server["confirmed"] or 0.0)}


def _not_ready(facts: Facts) -> Values | None:
    if facts.status["ready"]:
        return None
    return {"reason": "; ".join(facts.status["reasons"]).rstrip(".")}


def _break_glass(facts: Facts) -> Values | None:
    listed = facts.status["break_glass"]
    if not listed:
        return None
    last = max(listed, key=lambda one: one["until"])
    of = {one["rule"] or "every rule" for one in listed}
    return {"rules": named(sorted(of)), "until": clock_text(last["until"])}


def _lapsed(facts: Facts) -> Values | None:
    due = facts.status["waivers_due"]
    if not due["lapsed"]:
        return None
    number = due["lapsed"]
    return {
        **due["first"],
        "waivers": f"{counted(number, 'waiver')} {plural(number, 'has', 'have')}",
        "first": plural(number, "on", "the first on"),
        "pass": plural(number, "What it covers still passes", "What they cover still passes"),
    }


def _ending(facts: Facts) -> Values | None:
    due = facts.status["waivers_due"]
    if not due["ending"]:
        return None
    others = due["ending"] - 1
    more = f", and {counted(others, 'other')} {plural(others, 'ends', 'end')} soon after" if others else ""
    return {**due["first"], "more": more}


def _upstream(facts: Facts) -> Values | None:
    upstream = facts.status["upstream"]
    cluster = upstream.get("cluster") if upstream is not None else None
    found = [one["text"] for one in cluster["troubles"]] if cluster is not None else []
    found += [text for text in facts.status["warnings"] if text.startswith("upstream ")]
    return {"warning": _capital(found[0])} if found else None


def _instances(facts: Facts, *healths: str) -> list[Mapping[str, Any]]:
    """The instances with one of these healths. This one has rows of its own before."""
    found = facts.fleet["instances"] if facts.fleet is not None else ()
    return [one for one in found if one["health"] in healths]


def _instance_refuses(facts: Facts) -> Values | None:
    found = _instances(facts, "refused", "stale")
    return {"name": found[0]["name"], "reason": found[0]["reason"].rstrip(".")} if found else None


def _instance_silent(facts: Facts) -> Values | None:
    now = facts.fleet["now"] if facts.fleet is not None else 0.0
    found = [one for one in _instances(facts, "silent") if now - one["last"] < DAY]  # else it is no news
    if not found:
        return None
    names, many = [one["name"] for one in found], len(found)
    return {
        "names": f"{named(sorted(names))} {plural(many, 'has', 'have')}",
        "ago": span_text(now - max(one["last"] for one in found)),
        "they": f"{plural(many, 'it', 'they')} still {plural(many, 'runs', 'run')}",
    }


def _fleet_candidate(facts: Facts) -> Values | None:
    """The fleet's candidate, as soon as commands were compared."""
    found = facts.fleet.get("candidates", ()) if facts.fleet is not None else ()
    one = next((one for one in found if one["candidate"] and any(one["commands"].values())), None)
    if one is None:
        return None
    new = one["totals"]["new"] + one["totals"]["stricter"]
    return {
        "number": one["candidate"]["sequence"],
        "instances": f"{one['comparing']} of {counted(len(one['instances']), 'instance')} "
        f"{plural(one['comparing'], 'compares', 'compare')}",
        "commands": counted(sum(one["commands"].values()), "command"),
        "outcome": (
            f"it would refuse, or newly find, {counted(new, 'violation')}"
            if new
            else "it breaks no rule that the policy in force keeps"
        ),
    }


def _spliced(facts: Facts) -> Values | None:
    return {} if facts.status["policy"] is None else None


def _silent(facts: Facts) -> Values | None:
    has_findings = facts.active is not None and facts.active["findings"]
    was_seen = facts.commands if facts.status["policy"]["describes_keys"] else None
    if has_findings or was_seen or _standings(facts, "ready", "not ready", "gap"):
        return None
    return {"since": clock_text(facts.status["started"]), **_way_in(facts)}


def _not_told_apart(facts: Facts) -> Values | None:
    services = set(facts.status["modes"]) - {UNKNOWN}
    if not services or set(facts.commands) != {UNKNOWN}:
        return None
    return {"commands": counted(facts.commands[UNKNOWN], "command"), **_way_in(facts)}


def _undescribed(facts: Facts) -> Values | None:
    if facts.status["policy"]["describes_keys"] or facts.active is None:
        return None
    record = facts.status["record"]
    values = {"findings": counted(facts.active["findings"], "finding"), "source": ""}
    return values | ({"source": f" {shlex.quote(record)}", "admin": ""} if record else {})


def _one_cause(facts: Facts) -> Values | None:
    active = facts.active
    if active is None or active["number"] < 2 or active["number"] * SHARE < active["looked_at"]:
        return None
    is_part = active["looked_at"] < active["findings"]
    of = counted(active["looked_at"], "finding")
    options = (f" --{name} {shlex.quote(value)}" for name, value in active["filter"].items())
    return {
        "number": active["number"],
        "all": f"the {of} with most violations" if is_part else of,
        "cause": active["cause"],
        "options": "".join(options),
        "query": urllib.parse.urlencode({"state": "active", **active["filter"]}),
    }


def _enforceable(facts: Facts) -> Values | None:
    lines = [one for one in (facts.readiness or {"modes": ()})["modes"] if one.get("service") != UNKNOWN]
    if not lines:
        return None
    assert facts.readiness is not None
    rules = {one["rule"] for one in lines}
    of = [f"{one['rule']} for {one['service']}" if one.get("service") else one["rule"] for one in lines]
    return {
        "rules": f"{counted(len(rules), 'rule')} can be enforced",
        "names": named(sorted(of)),
        "them": plural(len(rules), "it", "them"),
        "quiet": span_text(facts.readiness["quiet"]),
    }


def _active(facts: Facts) -> Values | None:
    active = facts.active
    if active is None or not active["findings"]:
        return None
    number, first = active["findings"], active["first"]
    return {
        "id": first["id"],
        "rule": first["rule"],
        "service": first["service"],
        "findings": f"{counted(number, 'finding')} {plural(number, 'is', 'are')} active",
    }


def _on_cluster(facts: Facts) -> Values | None:
    services = facts.standing["services"] if facts.standing is not None else ()
    broken = [one["service"] for one in services if one["readiness"] == "not ready"]
    if not broken:
        return None
    number = f"{len(broken)} of {counted(len(services), 'service')}"
    return {"services": number, "names": named(sorted(broken))}


def _warned(facts: Facts) -> Values | None:
    warnings = facts.status["warnings"]
    return {"warning": _capital(warnings[0])} if warnings else None


def _in_memory(facts: Facts) -> Values | None:
    return {} if facts.readiness is None else None


def _waiting(facts: Facts) -> Values | None:
    left = [one for one in _standings(facts, "not ready", "gap") if one["service"] != UNKNOWN]
    if not left:
        return None
    rules = len({one["rule"] for one in left})
    first = min(left, key=lambda one: (one["readiness"] == "not ready", one["wait"]))
    values = {"rule": first["rule"], "service": first["service"], "why": first["why"]}
    return values | {"rules": f"{counted(rules, 'rule')} cannot be enforced yet"}


def _nothing(facts: Facts) -> Values | None:
    known = {one["rule"] for one in _standings(facts, "enforced") if one["asked"]}
    if not known:
        return {"enforced": ""}
    rules = f"{counted(len(known), 'rule')} with traffic {plural(len(known), 'is', 'are')}"
    return {"enforced": f", and {rules} enforced"}


# -- parts of texts


def _standings(facts: Facts, *words: str) -> list[Mapping[str, Any]]:
    found = facts.readiness["standings"] if facts.readiness is not None else ()
    return [one for one in found if one["readiness"] in words]


def _way_in(facts: Facts) -> Values:
    """Where a client connects, and the beginning of a command that does."""
    served = [one for one in facts.status["listeners"] if not one.get("sentinel")]
    address = served[0]["address"]
    path = Address(address).unix_path
    if path:
        return {"address": address, "redis_cli": shlex.join(["redis-cli", "-s", path])}
    host, port = Address(address).host_port
    at = [] if host in _LOCAL else ["-h", host]
    return {"address": address, "redis_cli": shlex.join(["redis-cli", *at, "-p", str(port)])}


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".")


# -- the table


class Row(NamedTuple):
    """One step: when it is due, and its texts, into which the values of `when` go."""

    name: str
    when: Callable[[Facts], Values | None]
    sentence: str
    command: str = ""
    link: str = ""
    label: str = ""


ROWS = (
    Row(
        "refused",
        _refused,
        "What was read at {at} was refused, so it is not in force: {fault}. Correct it, then reload.",
        "keyfence reload{admin}",
        "/policy",
        "The policy in force",
    ),
    Row(
        "stale",
        _stale,
        "The policy is stale: {url} has confirmed it last at {confirmed}. Find out why, then reload.",
        "keyfence reload{admin}",
        "/#process",
        "What runs",
    ),
    Row(
        "not ready",
        _not_ready,
        "Clients cannot be served: {reason}.",
        "keyfence status{admin}",
        "/#process",
        "What runs",
    ),
    Row(
        "break-glass",
        _break_glass,
        "Break-glass is open until {until}: violations of {rules} pass. After that, the configured modes are "
        "in force again.",
        "keyfence observe --end{admin}",
        "/findings?state=active",
        "The active findings",
    ),
    Row(
        "lapsed",
        _lapsed,
        "{waivers} lapsed, {first} {until} ({service}, {rule}). {pass}; mend it, or give a later date.",
        "keyfence waivers{admin}",
        "/findings?state=waived",
        "The waived findings",
    ),
    Row(
        "ending",
        _ending,
        "The waiver for {service} and {rule} ends on {until}{more}. Mend what it covers before.",
        "keyfence waivers{admin}",
        "/findings?state=waived",
        "The waived findings",
    ),
    Row("upstream", _upstream, "{warning}.", "keyfence status{admin}", "/#process", "What runs"),
    Row(
        "instance refuses",
        _instance_refuses,
        "The policy of {name} is not what it should be: {reason}.",
        "keyfence fleet{admin}",
        "/fleet",
        "The fleet",
    ),
    Row(
        "instance silent",
        _instance_silent,
        "{names} not reported for {ago}. See whether {they}.",
        "keyfence fleet{admin}",
        "/fleet",
        "The fleet",
    ),
    Row(
        "spliced",
        _spliced,
        "keyfence runs with --splice: it passes every command unread. Start it without, and it sees what "
        "services do.",
    ),
    Row(
        "silent",
        _silent,
        "No client has used a key since keyfence began, {since}. Have one connect to {address}.",
        "{redis_cli}",
        "/services",
        "The services",
    ),
    Row(
        "not told apart",
        _not_told_apart,
        "No service is told apart: nothing identifies the clients of all {commands}. Give each service a "
        "listener, or say under identify: who is who. Each client can ask who it is:",
        "{redis_cli} KEYFENCE WHOAMI",
        "/services",
        "The services",
    ),
    Row(
        "no policy",
        _undescribed,
        "The policy describes no keys yet, so each use of a key is a finding: {findings} so far. Draft a "
        "policy of what was seen.",
        "keyfence draft{source}{admin} -o policy.yaml",
        "/findings?state=active",
        "What was seen",
    ),
    Row(
        "fleet candidate",
        _fleet_candidate,
        "{instances} the fleet's candidate {number}, on {commands} so far: {outcome}.",
        "keyfence fleet diff{admin}",
        "/fleet",
        "What it would change",
    ),
    Row(
        "one cause",
        _one_cause,
        "{number} of {all} have one cause: {cause}.",
        "keyfence findings --state active{options}{admin}",
        "/findings?{query}",
        "These findings",
    ),
    Row(
        "enforceable",
        _enforceable,
        "{rules}: {names}. keyfence was looking for {quiet}, and no command broke {them}.",
        "keyfence ready --write-modes{admin}",
        "/#enforcement",
        "The state of enforcement",
    ),
    Row(
        "findings",
        _active,
        "{findings}. Begin with {rule} by {service}.",
        "keyfence findings {id}{admin}",
        "/findings/{id}",
        "What to do about it",
    ),
    Row(
        "cluster",
        _on_cluster,
        "A cluster would break {services}: {names}.",
        "keyfence ready --for cluster{admin}",
        "/candidate",
        "What would break",
    ),
    Row("warned", _warned, "{warning}.", "keyfence status{admin}", "/#process", "What runs"),
    Row(
        "no store",
        _in_memory,
        "No finding is active. Which rules can be enforced is not known: that needs a findings store. Set "
        "findings: in the configuration, and restart keyfence.",
        "",
        "/#enforcement",
        "The state of enforcement",
    ),
    Row(
        "waiting",
        _waiting,
        "No finding is active, and {rules}. The first is {rule} for {service}: {why}.",
        "keyfence ready{admin}",
        "/#enforcement",
        "The state of enforcement",
    ),
    Row(
        "nothing",
        _nothing,
        "Nothing to do: no finding is active{enforced}.",
        "",
        "/#enforcement",
        "The state of enforcement",
    ),
)
