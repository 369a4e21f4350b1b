"""The answers to sessions' questions: what they contain, and that they are bounded."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, cast

from keyfence.downstream.client import Client
from keyfence.policy.verdict import Peer
from keyfence.process.serving.answers import clients_of, findings_of, merged_clients, stats_of
from keyfence.resp.values import LEFT_OUT, MAX_ROWS
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.tally import Row


def row(service: str, count: int, **fields: Any) -> Row:
    actions = {"observed": count - 1, "refused": 1}
    one = {"service": service, "rule": "scope.write", "severity": "must", "command": "SET", "entry": "cart"}
    one |= {"shape": "", "count": count, "actions": actions, "first": 1e9, "last": 1e9 + 60.9}
    return cast(Row, one | {"example": "shop:a", "hint": "its writers: web"} | fields)


def test_findings_are_the_service_s_own_with_the_most_frequent_first() -> None:
    found = findings_of([row("web", 1), row("ops", 9), row("web", 3), row("web", 0)], "web")
    assert [one["observed"] for one in found["findings"]] == [2, 0]
    assert found[LEFT_OUT] == 0
    assert found["findings"][0] == {
        "rule": "scope.write", "command": "SET", "entry": "cart", "shape": "",
        "refused": 1, "observed": 2, "waived": 0, "late": 0,
        "first_seen": "2001-09-09 01:46:40Z", "last_seen": "2001-09-09 01:47:40Z",
        "example": "shop:a", "hint": "its writers: web",
    }  # fmt: skip


def test_findings_beyond_the_limit_are_counted() -> None:
    found = findings_of((row("web", number + 1) for number in range(1000)), "web")
    assert len(found["findings"]) == MAX_ROWS
    assert found["findings"][0]["observed"] == 999
    assert found[LEFT_OUT] == 1000 - MAX_ROWS


def test_stats_add_up_what_several_processes_have_counted() -> None:
    one, other = Counters(), Counters()
    one.command("web", "GET", "forwarded", 5)
    other.command("web", "SET", "forwarded", 2)
    other.command("web", "SET", "refused", 3)
    other.command("web", "KEYFENCE STATS", "local")
    other.command("ops", "SET", "refused", 100)
    one.violation("web", "scope.write", "SET", "cart", "refused", 3)
    other.violation("web", "ttl.required", "SET", "cart", "late", 2)
    other.violation("ops", "scope.write", "SET", "cart", "refused", 100)
    assert stats_of([one, other], "web") == {
        "service": "web",
        "commands": 11,
        "forwarded": 7,
        "refused": 3,
        "answered_here": 1,
        "violations": 5,
        "violations_by_action": {"refused": 3, "observed": 0, "late": 2, "waived": 0},
    }


@dataclasses.dataclass
class Connected:
    service: str
    address: str
    active: bool = False
    connected_at: float = 0.0
    idle_since: float = 0.0

    @property
    def peer(self) -> Peer:
        return Peer(self.address, "alice", "cron@a", "redis-py", "5.0.1")


def listed(clients: list[Connected], service: str) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        for one in clients:
            one.connected_at += now - 60.4
            one.idle_since += now - 7.4
        return clients_of(cast(list[Client], clients), service)

    return asyncio.run(run())


def test_a_client_is_listed_with_what_is_known_of_it() -> None:
    (one,) = listed([Connected("web", "10.0.0.7:5000")], "web")["clients"]
    assert one == {
        "address": "10.0.0.7:5000", "service": "web", "user": "alice", "name": "cron@a",
        "library": "redis-py 5.0.1", "age": 60, "idle": 7,
    }  # fmt: skip
    (busy,) = listed([Connected("web", "10.0.0.7:5000", active=True)], "web")["clients"]
    assert busy["idle"] == 0


def test_the_service_s_own_clients_come_first_and_the_rest_is_counted() -> None:
    everyone = [Connected("ops", f"o{n}") for n in range(300)] + [Connected("web", f"w{n}") for n in range(3)]
    found = listed(everyone, "web")
    assert [one["service"] for one in found["clients"]] == ["web"] * 3 + ["ops"] * (MAX_ROWS - 3)
    assert found[LEFT_OUT] == 303 - MAX_ROWS


def test_the_clients_of_several_processes_are_merged_within_the_limit() -> None:
    of_one = {"clients": [{"service": "ops"}] * MAX_ROWS, LEFT_OUT: 5}
    of_other = {"clients": [{"service": "web"}, {"service": "ops"}], LEFT_OUT: 0}
    found = merged_clients([of_one, of_other], "web")
    assert [one["service"] for one in found["clients"]] == ["web"] + ["ops"] * (MAX_ROWS - 1)
    assert found[LEFT_OUT] == 5 + 2
    assert merged_clients([], "web") == {"clients": [], LEFT_OUT: 0}
