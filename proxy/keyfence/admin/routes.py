"""The routes of the admin listener: one table.

Rule: everything that depends on a route comes from this table: the router, the access check, the page `GET /`
and the table in docs/operations.md (a test compares them).
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from keyfence.findings.filter import SORTS

from . import handlers
from .control import Control
from .token import Role

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")  # Markdown's
Handler = Callable[[Control, web.Request], Awaitable[web.Response]]
READING = frozenset({"GET", "HEAD", "OPTIONS"})  # the methods that change nothing


class Who(enum.Enum):
    """Who may use a route."""

    ANYONE = "anyone, under any host name"  # it names no key; scrapers and probes use all sorts of names
    READERS = "everyone who reaches the address"
    OPERATORS = "operators"  # with the token, or from this machine where there is none


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """A request that the admin listener serves. `body`, `meaning` and `answer` are documentation only."""

    method: str
    path: str
    who: Who
    handler: Handler
    meaning: str
    answer: str = "200"
    body: str = ""
    on_metrics: bool = False  # the metrics listener serves it too
    role: Role = "operate"  # that a token needs for it, if only operators may use it


def _open(path: str, handler: Handler, meaning: str, answer: str = "200") -> Route:
    return Route("GET", path, Who.ANYONE, handler, meaning, answer, on_metrics=True)


def _reading(path: str, handler: Handler, meaning: str, answer: str = "200") -> Route:
    return Route("GET", path, Who.READERS, handler, meaning, answer)


def _operating(
    method: str, path: str, handler: Handler, meaning: str, answer: str = "200", body: str = ""
) -> Route:
    return Route(method, path, Who.OPERATORS, handler, meaning, answer, body)


def _asking(method: str, path: str, handler: Handler, meaning: str, body: str) -> Route:
    """For operators too, but it changes nothing."""
    return Route(method, path, Who.OPERATORS, handler, meaning, body=body, role="read")


ROUTES = (
    _open("/metrics", handlers.metrics, "counters of all workers in Prometheus' text format"),
    _open("/healthz", handlers.healthz, "whether the process lives"),
    _open(
        "/readyz",
        handlers.readyz,
        "whether clients can be served: listeners are open, Redis answers and "
        "[takes writes](#redis-cluster-and-sentinel), the process is not ending; with `?strict` also: the "
        "policy in force [is what it should be](#reload-by-itself)",
        "200, or 503 with `reasons`; `warnings` about Redis, the policy, the findings store and removed "
        "sockets",
    ),
    _reading("/status", handlers.status, "what runs, and since when (`keyfence status`)"),
    _reading(
        "/next",
        handlers.next_,
        "what to do now, in one sentence, with the command (`keyfence status` ends with it)",
        "200 with `name`, `sentence`, `command`, `link` (of the page), `label`",
    ),
    _reading(
        "/report",
        handlers.report,
        "violations so far, by service, rule, command and entry or key shape (`keyfence report`)",
    ),
    _reading(
        "/findings",
        handlers.findings,
        "findings, with their states and examples (`keyfence findings`). Filters: `service`, `rule`, "
        "`state`, `owner`, `entry`, `text`, `since` (Unix seconds), `limit`, `offset`; the order: `sort` "
        f"({', '.join(SORTS)})",
    ),
    _reading(
        "/findings/{id}",
        handlers.finding,
        "one finding with its history and its violations by hour (`keyfence findings ID`)",
        "200; 404 where there is none",
    ),
    _reading(
        "/evidence",
        handlers.evidence,
        "the rules that each service's commands were checked against, the findings that were reopened, and "
        "what is not known since the policy changed (`keyfence gate`): `since` (Unix seconds)",
    ),
    _reading(
        "/readiness",
        handlers.readiness,
        "which rules can be enforced for which services (`keyfence ready`); `quiet` is in seconds",
    ),
    _reading(
        "/unused",
        handlers.unused,
        "the rights that nobody has used for some seconds: `for` (`keyfence ready --unused`)",
    ),
    _reading(
        "/what-if",
        handlers.what_if,
        "what modes would refuse of what was seen (`keyfence what-if`): `mode` (RULE=enforce, several "
        "times), `service`, `since`",
    ),
    _reading(
        "/fleet",
        handlers.fleet,
        "what the keyfences with the same findings store run, their health, what differs between them "
        "(`keyfence fleet`), and what the fleet's candidate would change (`keyfence fleet diff`)",
        "200 with `healthy`, `instances`, `differences`, `lines`, `candidates`",
    ),
    _reading(
        "/news",
        handlers.news,
        "what has happened since a time, and what is about to, as [news](news.md) says it (`keyfence news`): "
        "`since` (Unix seconds; the last day), `owner`",
    ),
    _reading(
        "/modes",
        handlers.modes,
        "the mode of each rule for each service, the policy's revision, open break-glasses",
    ),
    _reading("/waivers", handlers.waivers, "the waivers in force, as their file has them"),
    _reading("/listeners", handlers.listeners, "the addresses that clients connect to, and their services"),
    _reading(
        "/workers",
        handlers.workers,
        "the processes that serve clients: `slot`, `pid`, `state` (starting, serving, draining), `started`, "
        "`revisions`, `connections`",
    ),
    _reading(
        "/candidate",
        handlers.candidate,
        "the candidate policy, how many commands both policies have evaluated, and what it would change "
        "(`keyfence candidate show`)",
        "200 with `candidate` (or null), `in_force`, `commands`, `rows`",
    ),
    _reading(
        "/rehearsal",
        handlers.standing,
        "which services would break on a cluster, and why (`keyfence ready --for cluster`)",
        "200 with `rehearsal` (or null), `in_force`, `services`, `rows`",
    ),
    _asking(
        "POST",
        "/explain",
        handlers.explain,
        'how the policy, modes and waivers in force evaluate a command; optional `"user"` and '
        '`"certificate"` (a name) identify the sender, for policies with tenants',
        body='{"service": …, "argv": […]}',
    ),
    _operating(
        "POST",
        "/-/observe",
        handlers.observe,
        "break-glass: observe instead of refusing; `rule` and `service` are optional (`keyfence observe`)",
        "200; 400 where 100 are open already",
        body='{"for": seconds, "rule": …, "service": …}',
    ),
    _operating(
        "DELETE", "/-/observe", handlers.end_observe, "end every break-glass (`keyfence observe --end`)"
    ),
    _operating(
        "POST",
        "/-/reload",
        handlers.reload,
        "read policy, configuration and waivers again (`keyfence reload`)",
        "200 with `policy`, `revision`, `changed`, `needs_restart`; 422 with `diagnostics`",
        body="{}",
    ),
    _operating(
        "POST",
        "/-/restart",
        handlers.restart,
        "replace the workers one by one; answers when this is done (`keyfence restart`)",
        "200 with `restarted`; 400 where there are no workers, or one does not start",
        body="{}",
    ),
    _operating(
        "POST",
        "/-/candidate",
        handlers.load_candidate,
        "compare the policy in a file, which keyfence reads, with the one in force "
        '(`keyfence candidate load`); `{"for": "cluster"}` rehearses a cluster',
        "200 with `file`, `for`, `policy`, `revision`, `since`; 422 with `diagnostics`",
        body='{"file": …}',
    ),
    _operating(
        "DELETE",
        "/-/candidate",
        handlers.drop_candidate,
        "end the comparison (`keyfence candidate drop`)",
        "200 with `dropped` (or null)",
    ),
    _operating(
        "POST",
        "/-/candidate/promote",
        handlers.promote_candidate,
        "reload, if the policy's own file has become the candidate (`keyfence candidate promote`)",
        "200 as for a reload; 400 if the file is not the candidate, or there is none; 422 with `diagnostics`",
        body="{}",
    ),
)
_ROLES: dict[tuple[str, str], Role] = {
    (route.method, route.path): route.role for route in ROUTES if route.who is Who.OPERATORS
}
_ANY_NAME = frozenset(route.path for route in ROUTES if route.who is Who.ANYONE)


def checks_host(path: str) -> bool:
    """Whether the Host header of a request for this path is checked: for all but the open paths."""
    return path not in _ANY_NAME


def needed_role(method: str, path: str) -> Role | None:
    """The role that a request needs; None: no operator. By the table; `operate` for all others whose method
    may change something."""
    return _ROLES.get((method, path), None if method in READING else "operate")


def index(routes: Iterable[Route]) -> str:
    """The page `GET /`: one line for each route."""
    lines = [
        f"{one.method:<6} {one.path:<11} {one.body}{': ' if one.body else ''}{one.meaning}" for one in routes
    ]
    return _LINK.sub(r"\1", "\n".join(["keyfence", "", *lines])) + "\n"


def docs_table() -> str:
    """The table of docs/operations.md, in Markdown."""
    lines = ["| request | who may | meaning | answer |", "|---|---|---|---|"]
    for one in ROUTES:
        request = f"`{one.method} {one.path}`" + (f" `{one.body}`" if one.body else "")
        of_role = f", role `{one.role}`" if one.who is Who.OPERATORS else ""
        who = f"{one.who.value}; metrics listener too" if one.on_metrics else one.who.value + of_role
        lines.append(f"| {request} | {who} | {one.meaning} | {one.answer} |")
    return "\n".join(lines) + "\n"
