"""A policy that is too old has the configured effect until it is confirmed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from types import SimpleNamespace
from typing import Any, cast

from keyfence.fleet.copy import Copy
from keyfence.fleet.model import Answer, PolicyServer, Then
from keyfence.fleet.source import PolicySource
from keyfence.policy.enforcement.modes import BreakGlass
from keyfence.process.freshness import Freshness
from keyfence.process.glass import Glass
from keyfence.telemetry.counters import Counters


class Processes:
    """The processes that serve clients, as far as orders reach them."""

    def __init__(self) -> None:
        self.glass: list[BreakGlass] = []
        self.shut_because = ""

    async def set_glass(self, glass: list[BreakGlass]) -> None:
        self.glass = list(glass)

    async def shut(self, why: str) -> None:
        self.shut_because = why

    def observes(self, rule: str) -> bool:
        return any(one.covers(rule, "web", time.time()) for one in self.glass)


def stage(then: Then) -> tuple[Freshness, Glass, Processes, PolicySource]:
    """Returns what acts on the age of a policy that is too old, and that policy."""
    processes = Processes()
    runtime = SimpleNamespace(glass=[], telemetry=SimpleNamespace(counters=Counters()))
    glass = Glass(cast(Any, runtime), cast(Any, processes))
    server = PolicyServer("https://policies.example/shop.yaml", stale_after=60.0, then=then)
    source = PolicySource(server, Copy(b"one", "", time.time() - 100))
    return Freshness(glass, cast(Any, processes)), glass, processes, source


def confirm(source: PolicySource) -> None:
    source.answered(Answer(None, "", False), time.time())


def test_it_is_kept_and_said() -> None:
    freshness, _, processes, source = stage("keep")
    asyncio.run(freshness.tick(source))
    assert "the policy is stale, and it stays in force" in freshness.text
    assert (processes.glass, processes.shut_because) == ([], "")
    confirm(source)
    asyncio.run(freshness.tick(source))
    assert (freshness.acts, freshness.text) == ("", "")


def test_all_clients_are_refused_until_it_is_confirmed() -> None:
    freshness, _, processes, source = stage("refuse")
    asyncio.run(freshness.tick(source))
    assert processes.shut_because == "the policy is older than stale_after allows"
    confirm(source)
    asyncio.run(freshness.tick(source))
    assert processes.shut_because == ""


def test_everything_is_observed_beside_what_operators_have_opened() -> None:
    freshness, glass, processes, source = stage("observe")
    authorizer = cast(Any, SimpleNamespace(policy=SimpleNamespace(services=("web",))))
    asyncio.run(glass.open(authorizer, 60.0, "scope.write", None))
    asyncio.run(freshness.tick(source))
    assert processes.observes("key.unregistered")
    assert [one["rule"] for one in glass.listing()] == ["scope.write"], "the age is no operator's"
    asyncio.run(glass.end())
    assert processes.observes("key.unregistered"), "it is still too old"
    confirm(source)
    asyncio.run(freshness.tick(source))
    assert processes.glass == []


def test_a_reload_that_changes_the_effect_or_the_source_holds_at_once() -> None:
    freshness, _, processes, source = stage("observe")
    asyncio.run(freshness.tick(source))
    source.server = dataclasses.replace(source.server, then="refuse")
    asyncio.run(freshness.tick(source))
    assert (processes.glass, bool(processes.shut_because)) == ([], True)
    asyncio.run(freshness.tick(None))
    assert (freshness.acts, processes.shut_because) == ("", "")
