"""Answers to what sessions ask their owners (`session.conversation.owner_questions`).

Rule: an answer is made of plain values that JSON can carry, and is bounded. Answering changes nothing.

Without workers one process answers everything. A worker answers what it knows, and asks its parent the rest.
What the findings store knows comes from the `Ledger` of the process that has the store.
"""

from __future__ import annotations

import asyncio
import datetime
import heapq
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

from keyfence.downstream.client import Client
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.rules import RULES
from keyfence.resp.values import LEFT_OUT, MAX_ROWS
from keyfence.session.conversation.owner_questions import Kind, Question
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.operator_log import report_fault
from keyfence.telemetry.tally import Row, Tally
from keyfence.upstream.health import Upstream

from .backend import Ledger
from .runtime import Runtime

Answer = Any  # None: there is no answer
OF_LEDGER = frozenset({"findings", "readiness"})  # kinds that `from_ledger` answers
LEDGER_SECONDS = 2.0  # for an answer of the store
NO_STORE = "there is no findings store; set findings: in the configuration"
SPLICED = "keyfence runs with --splice: it evaluates nothing"


class Answers:
    """The answers of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._under_way: set[asyncio.Task[None]] = set()

    def ask(self, question: Question) -> None:
        """Answer a question of a session of this process, in a later turn of the loop."""
        task = asyncio.get_running_loop().create_task(self._answer(question))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, question: Question) -> None:
        if question.kind == "explain":
            try:
                answer = await _explained(self._runtime, *question.content)
            except Exception as exc:
                answer = self._failed(exc)
        else:
            answer = self.answer(question.kind, question.content)
        question.answered(answer)

    def answer(self, kind: Kind, content: Sequence[Any]) -> Answer:
        """Returns the answer of this process alone. A fault in it is reported, and is no answer."""
        try:
            return self._find(kind, content)
        except Exception as exc:
            return self._failed(exc)

    def _failed(self, exc: Exception) -> Answer:
        self._runtime.telemetry.counters.internal_error("answer")
        report_fault(exc)
        return None

    def _find(self, kind: Kind, content: Sequence[Any]) -> Answer:
        runtime = self._runtime
        match kind:
            case "whose":
                return runtime.was_shown(*content)
            case "upstreams":
                return upstreams_of(one.upstream for one in runtime.upstreams)
            case "clients":
                return clients_of(runtime.clients, *content)
            case "stats":
                return stats_of([runtime.telemetry.counters], *content)
            case _:
                return None  # only the ledger knows


async def explained(
    runtime: Runtime, service: str, argv: Sequence[bytes], caller: Caller = NOBODY
) -> dict[str, Any]:
    """What the policy in force says about a command, and what its modes make of that. Raises ValueError."""
    authorizer = runtime.authorizer
    if authorizer is None:
        raise ValueError(SPLICED)
    return await runtime.explainer.command(authorizer, service, argv, caller)


async def _explained(runtime: Runtime, service: str, argv: Sequence[bytes], caller: Caller) -> dict[str, Any]:
    try:
        found = await explained(runtime, service, argv, caller)
    except ValueError as exc:
        return {"error": str(exc)}
    return {name: found[name] for name in ("verdict", "refused", "rule", "message", "hint")} | found


def upstreams_of(upstreams: Iterable[Upstream]) -> dict[str, Any]:
    rows = [
        {
            "address": upstream.address.shown,
            "state": "up" if upstream.up else "down",
            "since": written(upstream.since),
            "reason": "" if upstream.up else upstream.reason,
        }
        for upstream in upstreams
    ]
    return {"upstreams": rows}


# -- clients


def clients_of(clients: Iterable[Client], service: str) -> dict[str, Any]:
    """The clients of a process, those of the service first."""
    now = asyncio.get_running_loop().time()
    everyone = list(clients)
    own_first = chain(
        (one for one in everyone if one.service == service),
        (one for one in everyone if one.service != service),
    )
    rows = [_client(one, now) for one in islice(own_first, MAX_ROWS)]
    return {"clients": rows, LEFT_OUT: len(everyone) - len(rows)}


def _client(client: Client, now: float) -> dict[str, Any]:
    peer = client.peer
    return {
        "address": peer.address,
        "service": client.service,
        "user": peer.user,
        "name": peer.name,
        "library": " ".join(part for part in (peer.library, peer.version) if part),
        "age": round(now - client.connected_at),
        "idle": 0 if client.active else round(now - client.idle_since),
    }


def merged_clients(answers: Iterable[dict[str, Any]], service: str) -> dict[str, Any]:
    """The clients of several processes, from `clients_of` in each."""
    answers = list(answers)
    rows = [row for one in answers for row in one["clients"]]
    rows.sort(key=lambda row: row["service"] != service)
    left_out = sum(one[LEFT_OUT] for one in answers) + len(rows[MAX_ROWS:])
    return {"clients": rows[:MAX_ROWS], LEFT_OUT: left_out}


# -- findings and counts of a service


async def from_ledger(
    ledger: Ledger | None, kind: str, service: str, authorizer: Authorizer | None, tally: Tally
) -> Answer:
    """The answer about findings or readiness. Without a store, findings are those of the tally."""
    if authorizer is None:
        return {"error": SPLICED}
    if ledger is None:
        rows = (row for _, row in tally.rows())
        return findings_of(rows, service) if kind == "findings" else {"error": NO_STORE}
    try:
        async with asyncio.timeout(LEDGER_SECONDS):
            if kind == "findings":
                return await ledger.findings_of(service, MAX_ROWS)
            number = authorizer.number(service)
            modes = {rule: authorizer.modes.mode(rule, number) for rule in RULES}
            return await ledger.readiness_of(authorizer.policy.services[number], modes)
    except ValueError as exc:
        return {"error": str(exc)}
    except TimeoutError:
        return None
    except Exception as exc:
        report_fault(exc)
        return None


def findings_of(rows: Iterable[Row], service: str) -> dict[str, Any]:
    """The violations of a service, the most frequent first."""
    own = [row for row in rows if row["service"] == service and row["count"]]
    most = heapq.nlargest(MAX_ROWS, own, key=lambda row: row["count"])
    return {"findings": [_finding(row) for row in most], LEFT_OUT: len(own) - len(most)}


def _finding(row: Row) -> dict[str, Any]:
    actions = row["actions"]
    return {
        "rule": row["rule"],
        "command": row["command"],
        "entry": row["entry"],
        "shape": row["shape"],
        **{action: actions.get(action, 0) for action in ("refused", "observed", "waived", "late")},
        "first_seen": written(row["first"]),
        "last_seen": written(row["last"]),
        "example": row["example"],
        "hint": row["hint"],
    }


def stats_of(counters: Iterable[Counters], service: str) -> dict[str, Any]:
    """How many commands a service has sent, and what became of them and of their violations."""
    found = dict.fromkeys(("forwarded", "refused", "local"), 0)
    actions = dict.fromkeys(("refused", "observed", "late", "waived"), 0)
    for one in counters:
        for (whose, _, outcome), times in one.commands.items():
            if whose == service:
                found[outcome] = found.get(outcome, 0) + times
        for (whose, *_, action), times in one.violations.items():
            if whose == service:
                actions[action] = actions.get(action, 0) + times
    return {
        "service": service,
        "commands": sum(found.values()),
        "forwarded": found["forwarded"],
        "refused": found["refused"],
        "answered_here": found["local"],
        "violations": sum(actions.values()),
        "violations_by_action": actions,
    }


def written(seconds: float) -> str:
    """Returns Unix seconds as reports show them: `2026-11-21 00:25:52Z`."""
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%SZ}"
