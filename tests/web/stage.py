"""A keyfence for the page's tests, without a process: a real policy, a real findings store, real answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyfence.commands.extract import extract
from keyfence.findings.database import Database
from keyfence.findings.filter import Filter
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.views import Views
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.remedies.explain import explain, explain_line
from keyfence.policy.remedies.policy_diffs import with_diffs
from keyfence.policy.rules import RULES
from keyfence.policy.wording.command_log import as_line
from keyfence.policy.wording.tables import tables
from keyfence.process.causes import Causes, common_cause
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.reports.services import service_rows
from keyfence.telemetry.tally import Row
from tests.admin.test_server import FakeControl
from tests.findings.rows import batch, row
from tests.session.sessions import ROUTE, policy

NASTY = '<b onload="x">\x1b[31m\u202eevil\u2066</b>&amp;'


def violation(times: int = 1, at: float | None = None, **fields: Any) -> Row:
    """Violations of scope.write by CubeProxy, as telemetry counts them."""
    argv = [b"HSET", ROUTE, b"HostIP", b"10.0.0.7"]
    when = time.time() if at is None else at
    example = {
        "at": when,
        "decision": "d-1",
        "key": ROUTE.decode(),
        "client": {"address": "10.0.0.7", "library": "redis-py", "version": "5.0.1"},
        "command": as_line(policy(), "CubeProxy", argv, extract(argv), 1),
    }
    values = {
        "service": "CubeProxy",
        "command": "HSET",
        "entry": "sandbox-route",
        "hint": "its writers: CubeMaster",
        "contact": "#cube-redis",
        "clients": [example["client"]],
        "examples": [example],
        "example": example["key"],
    }
    return row(times, when, **(values | fields))


class Stage(FakeControl):
    """A keyfence with the cubesandbox policy."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is for the findings store; None: there is none."""
        super().__init__()
        self.counters = Counters()
        self.version = 0
        self.store: Store | None = None
        if folder is not None:
            self.store = Store(Database(f"sqlite:///{folder / 'findings.db'}"), "here:1")

    def see(self, *rows: Row, asked: int = 0) -> None:
        """Violations are counted now."""
        assert self.store is not None
        self.version += 1
        self.store.write(batch(*rows, at=time.time(), asked=asked, service="CubeProxy"))

    def close(self) -> None:
        if self.store is not None:
            self.store.database.close()

    @property
    def views(self) -> Views:
        if self.store is None:
            raise ValueError("keyfence runs without a findings store; set findings: in the configuration")
        return Views(Reader(self.store.database))

    async def status(self) -> dict[str, Any]:
        return {
            "version": "0.1.0",
            "environment": "",
            "pid": 1,
            "started": 1e9,
            "ready": True,
            "reasons": [],
            "warnings": [],
            "policy": {
                "name": "cubesandbox",
                "revision": "r1",
                "file": "p.yaml",
                "loaded": 1e9,
                "reload": "",
                "server": None,
                "refused": None,
                "describes_keys": True,
            },
            "candidate": None,
            "upstream": {
                "address": "redis://up:6379",
                "up": True,
                "since": 1e9,
                "reason": "",
                "node": "",
                "role": "master",
                "last_failover": None,
                "replicas": [],
            },
            "listeners": await self.addresses(),
            "workers": [{"slot": 0, "pid": 1, "state": "serving", "connections": 1}],
            "clients": {"CubeProxy": 1},
            "modes": {one: {"enforce": 1, "observe": len(RULES) - 1} for one in policy().services},
            "break_glass": [],
            "waivers": 2,
            "waivers_due": {"lapsed": 0, "ending": 0, "first": None},
            "record": "",
            "admin": "http://127.0.0.1:9464",
        }

    async def modes(self) -> dict[str, Any]:
        return {"modes": Modes((), policy().services).matrix(), "break_glass": []}

    async def catch_up(self) -> int:
        return self.version

    async def findings(self, which: Filter) -> dict[str, Any]:
        return self.views.listing(which, time.time())

    async def finding(self, one: str) -> dict[str, Any]:
        return self.views.single(one)

    async def readiness(self, quiet: float) -> dict[str, Any]:
        matrix = Modes((ModeRule("enforce", "type.mismatch", "CubeProxy"),), policy().services).matrix()
        return self.views.readiness(matrix, quiet, time.time())

    async def summary(self) -> dict[str, Any]:
        return self.views.summary()

    async def commoncause(self) -> dict[str, Any]:
        return common_cause(self.views, Causes(policy()))

    async def trend(self, since: float, service: str, commands_since: float) -> dict[str, Any]:
        return self.views.trend(since, service, commands_since)

    async def uses(self, since: float) -> dict[str, Any]:
        return self.views.uses(since)

    async def rights(self, service: str, since: float) -> dict[str, Any]:
        return self.views.rights(policy(), service, since)

    async def fleet(self) -> dict[str, Any]:
        return self.views.fleet(time.time())

    async def owners(self) -> list[str]:
        return self.views.owners() if self.store is not None else []

    async def traffic(self) -> list[dict[str, Any]]:
        return service_rows(self.counters)

    async def reload(self) -> dict[str, Any]:
        return {**await super().reload(), "changed": ["policy"]}

    async def policy(self) -> dict[str, Any]:
        return tables(policy())

    async def explain_example(self, line: Mapping[str, Any]) -> dict[str, Any]:
        return with_diffs(policy(), explain_line(policy(), line))

    async def explain(self, service: str, argv: list[bytes], caller: Caller = NOBODY) -> dict[str, Any]:
        found = with_diffs(policy(), explain(policy(), service, argv, caller))
        return {**found, "actions": [], "refused": False}

    async def standing(self) -> dict[str, Any]:
        return {"rehearsal": None, "in_force": "r1", "services": [], "rows": []}

    async def candidate(self) -> dict[str, Any]:
        return {"candidate": None, "in_force": "r1", "commands": {}, "rows": []}
