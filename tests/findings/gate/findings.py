"""Findings and evidence for tests of the gate."""

from __future__ import annotations

from typing import Any

from keyfence.findings.finding import DAY, EVERY_COMMAND, Finding, State, Unjudged, finding_id
from keyfence.findings.gate.judgement import Judgement, judge
from keyfence.findings.gate.sources import Evidence
from keyfence.telemetry.tally import Example

NOON = 1_700_000_000.0 // DAY * DAY + DAY / 2  # Unix seconds


def example(key: str = "order:7", decision: str = "d-82b2029b") -> Example:
    return Example(at=NOON, decision=decision, key=key, client={"address": "10.0.0.7"}, command={})


def finding(state: State = State.NEW, **fields: Any) -> Finding:
    """A finding: `shop` writes to an entry `order` that is not its own."""
    key = {"service": "shop", "rule": "scope.write", "command": "SET", "entry": "order", "shape": ""}
    key |= {name: fields.pop(name) for name in tuple(fields) if name in key}
    values: dict[str, Any] = {
        "severity": "must",
        "state": state,
        "since": NOON,
        "first": NOON,
        "last": NOON,
        "counts": {"observed": 6},
        "owner": "#billing",
        "hint": "its writers: billing",
        "revision": "r1",
        "clients": [{"address": "10.0.0.7"}],
        "examples": [example()],
    }
    return Finding(id=finding_id(tuple(key.values())), **key, **(values | fields))  # type: ignore[arg-type]


def unjudged(rule: str = "ttl.required") -> Unjudged:
    """A rule of which nobody can tell what it says of commands of `shop`."""
    return Unjudged("shop", rule, NOON, "the entry order changed")


def evidence(*findings: Finding, commands: int | None = 1204, **fields: Any) -> Evidence:
    """What a source has that saw commands of `shop`, and these findings."""
    asked = {("shop", EVERY_COMMAND): commands or 0, ("shop", "scope.write"): 80}
    return Evidence(findings, **({"asked": asked, "commands": commands, "is_silent": not commands} | fields))


def judged(*findings: Finding, **fields: Any) -> Judgement:
    """The gate's answer to these findings, without a time and a baseline."""
    return judge(evidence(*findings, **fields))
