"""Who runs what, from outside: real keyfences with one findings store, in SQLite or in PostgreSQL."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.admin.client import ask
from keyfence.findings.database import Database
from keyfence.findings.fleet import SILENT_SECONDS, fleet_of
from keyfence.findings.queries import Reader
from tests.cli.test_main import keyfence as run
from tests.postgres import NO_POSTGRESQL, binaries, running_postgresql
from tests.servers import PATIENCE_SECONDS, Keyfence

POLICY = """
policy: shop
owner: {contact: "#shop"}
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9-]+"}
scopes: {shop: {prefix: "shop:", writers: [orders], readers: [billing]}}
keys:
  order: {key: "shop:order:<id>", type: string}
"""
OTHER = POLICY.replace("type: string", "type: [string, list]")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path / 'findings.db'}"
        return
    if binaries() is None:
        pytest.skip(NO_POSTGRESQL)
    with running_postgresql() as server:
        yield server.url


@pytest.fixture
def start(tmp_path: Path, store: str) -> Callable[..., Keyfence]:
    """Starts a keyfence of an environment. `more` are further lines of its configuration."""

    def starts(environment: str, *more: str, policy: str = POLICY, expect_stderr: str = "") -> Keyfence:
        folder = tmp_path / environment
        folder.mkdir(exist_ok=True)
        (folder / "policy.yaml").write_text(policy)
        lines = ["policy: policy.yaml", "admin: 127.0.0.1:0", f"findings: {store}"]
        lines += [f"environment: {environment}"]
        lines += ["listeners: [{listen: '127.0.0.1:0', service: orders}]", *more]
        (folder / "keyfence.yaml").write_text("\n".join(lines) + "\n")
        return Keyfence("--config", folder / "keyfence.yaml", expect_stderr=expect_stderr)

    return starts


def fleet_when(keyfence: Keyfence, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The picture of the fleet, as soon as it is as expected."""
    assert keyfence.ready.admin is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found: dict[str, Any] = ask(keyfence.ready.admin, "/fleet")
        if is_there(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def picture(store: str, now: float) -> dict[str, Any]:
    """The picture at a time, from the store itself."""
    database = Database(store)
    try:
        return fleet_of([Reader(database).fleet()], now)
    finally:
        database.close()


def names(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Environment and health of each instance that has told its admin address."""
    return [(one["environment"], one["health"]) for one in found["instances"] if one["admin"]]


def texts(found: dict[str, Any]) -> list[str]:
    return [one["text"] for one in found["lines"]]


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_two_environments_are_seen_side_by_side(store: str, start: Callable[..., Keyfence]) -> None:
    enforced = "modes: [{rule: scope.write, mode: enforce}]"
    with start("staging", enforced, "workers: 2") as staging, start("prod") as prod:
        assert "; environment staging" in staging.lines[0]
        both = [("prod", "ok"), ("staging", "ok")]
        found = fleet_when(prod, lambda one: names(one) == both)
        assert found["healthy"]
        assert texts(found) == ["staging enforces scope.write, prod observes it"]
        assert {one["name"].rpartition(":")[2] for one in found["instances"]} == {
            str(one.ready.admin).rpartition(":")[2] for one in (staging, prod)
        }
        assert {one["version"] for one in found["instances"]} == {ask(prod.ready.admin, "/status")["version"]}
        code, out, err = run("fleet", "--admin", str(staging.ready.admin))
        assert (code, err) == (0, "")
        assert "staging enforces scope.write, prod observes it" in out
        code, out, _ = run("fleet", "--findings", store, "--json")
        assert code == 0
        assert names(json.loads(out)) == both
    assert picture(store, time.time())["instances"] == []  # those that end by themselves are not missed


def test_what_is_wrong_with_an_instance_is_seen_on_another(start: Callable[..., Keyfence]) -> None:
    with start("prod") as one, start("staging", expect_stderr="nobody") as other:
        fleet_when(one, lambda found: len(names(found)) == 2)
        policy = other_policy(other)
        policy.write_text(POLICY.replace("writers: [orders]", "writers: [nobody]"))
        other.process.send_signal(signal.SIGHUP)
        found = fleet_when(one, lambda found: ("staging", "refused") in names(found))
        assert not found["healthy"]
        assert any("nobody" in text and "refused" in text for text in texts(found))
        assert run("fleet", "--admin", str(one.ready.admin)).code == 1
        ask(other.ready.admin, "/-/observe", {"for": 600, "rule": "scope.write"})
        policy.write_text(OTHER)
        other.process.send_signal(signal.SIGHUP)
        found = fleet_when(one, lambda found: names(found) == [("prod", "ok"), ("staging", "ok")])
        found = fleet_when(one, lambda found: any("break-glass" in text for text in texts(found)))
        assert any(text.startswith("policy shop: prod runs ") for text in texts(found))


def test_an_instance_that_was_killed_is_silent(store: str, start: Callable[..., Keyfence]) -> None:
    with pytest.raises(AssertionError, match="exit code -9"):
        _kill(start)
    assert names(picture(store, time.time() + SILENT_SECONDS + 1)) == [("prod", "silent")]


def _kill(start: Callable[..., Keyfence]) -> None:
    with start("prod") as one:
        fleet_when(one, lambda found: names(found) == [("prod", "ok")])
        one.process.kill()


def other_policy(keyfence: Keyfence) -> Path:
    return Path(ask(keyfence.ready.admin, "/status")["policy"]["file"])
