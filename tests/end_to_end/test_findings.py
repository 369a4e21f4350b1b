"""Findings that outlive keyfence, from outside: real processes, real Redis, SQLite and PostgreSQL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from keyfence.admin.client import AskError, ask
from tests.cli.test_main import process
from tests.clients.running import resident_bytes
from tests.postgres import NO_POSTGRESQL, PostgreSQL, binaries, running_postgresql
from tests.servers import PATIENCE_SECONDS, Keyfence

HOSTILE_KEYS = 1_000_000 if os.environ.get("KEYFENCE_SOAK") else 10_000
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
WITH_LISTS = POLICY.replace("type: string", "type: [string, list]") + '  tmp: {key: "shop:tmp:<id>"}\n'
WITH_TMP = POLICY + '  tmp: {key: "shop:tmp:<id>", type: string}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


@pytest.fixture
def config(folder: Path) -> Callable[..., Path]:
    """Writes a configuration; `more` are further lines."""

    def write(*more: str, name: str = "keyfence") -> Path:
        path = folder / f"{name}.yaml"
        lines = ["policy: policy.yaml", "admin: 127.0.0.1:0"]
        lines += ["listeners: [{listen: '127.0.0.1:0', service: orders}]", *more]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


def findings_of(keyfence: Keyfence, query: str = "") -> dict[str, dict[str, Any]]:
    """The findings of a running keyfence, by command and place."""
    assert keyfence.ready.admin is not None
    found = ask(keyfence.ready.admin, f"/findings{query}")["findings"]
    return {f"{one['command']} {one['shape'] or one['entry']}": one for one in found}


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_findings_outlive_a_restart(config: Callable[..., Path], folder: Path) -> None:
    path = config("findings: sqlite:///findings.db")
    with Keyfence("--config", path) as keyfence, keyfence.client() as client:
        for number in range(7):
            client.set(f"shop:tmp:{number}", "secret value")
        (before,) = findings_of(keyfence).values()
    with Keyfence("--config", path) as keyfence, keyfence.client() as client:
        assert list(findings_of(keyfence).values()) == [before]
        client.set("shop:tmp:100", "x")
        (after,) = findings_of(keyfence).values()
    assert (after["id"], after["first"], after["total"]) == (before["id"], before["first"], 8)
    assert [one["key"] for one in after["examples"]] == [f"shop:tmp:{number}" for number in range(5)]
    assert after["owner"] == "#shop"
    assert b"secret value" not in (folder / "findings.db").read_bytes()


def test_what_is_found_before_the_default_store_is_open_is_in_it(
    config: Callable[..., Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    path = config()
    with Keyfence("--config", path) as keyfence, keyfence.client() as client:
        client.set("shop:tmp:1", "x")  # at once after the ready line; then keyfence ends at once
    with Keyfence("--config", path) as keyfence:
        assert [one["total"] for one in findings_of(keyfence).values()] == [1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_keyfence_loses_at_most_the_last_second(config: Callable[..., Path], workers: int) -> None:
    path = config("findings: sqlite:///findings.db", *([f"workers: '{workers}'"] if workers else []))
    killed = Keyfence("--config", path).__enter__()
    with killed.client() as client:
        client.set("shop:tmp:1", "x")
        until(lambda: bool(_stored(path)))
    killed.process.kill()
    with pytest.raises(AssertionError, match="exit code -9"):
        killed.__exit__(None, None, None)
    with Keyfence("--config", path) as keyfence:
        assert [one["total"] for one in findings_of(keyfence).values()] == [1]


def _stored(config: Path) -> list[Any]:
    """What other processes can read in a configuration's store now."""
    from keyfence.findings.database import Database
    from keyfence.findings.queries import Reader

    database = Database(f"sqlite:///{config.parent / 'findings.db'}")
    try:
        return Reader(database).findings()
    finally:
        database.close()


def test_a_reload_resolves_what_the_new_policy_allows(config: Callable[..., Path], folder: Path) -> None:
    with Keyfence("--config", config("findings: sqlite:///findings.db")) as keyfence:
        admin = keyfence.ready.admin
        assert admin is not None
        with keyfence.client() as client:
            client.set("shop:tmp:1", "x")
            client.set("shop:other:1", "x")
            assert set(findings_of(keyfence)) == {"SET shop:tmp:<int>", "SET shop:other:<int>"}
            (folder / "policy.yaml").write_text(WITH_TMP)
            ask(admin, "/-/reload", {})
            until(lambda: findings_of(keyfence)["SET shop:tmp:<int>"]["state"] == "resolved")
            client.set("shop:tmp:2", "x")
        found = findings_of(keyfence)
        assert found["SET shop:tmp:<int>"]["total"] == 1
        assert found["SET shop:other:<int>"]["state"] == "new"
        single = ask(admin, f"/findings/{found['SET shop:tmp:<int>']['id']}")
        assert [one["state"] for one in single["history"]] == ["new", "resolved"]
        assert single["history"][1]["why"].startswith(f"revision {single['resolved_by']}")


def test_a_baseline_covers_the_findings_that_the_policy_in_force_does_not_allow(
    config: Callable[..., Path], folder: Path
) -> None:
    baseline = ("--baseline", "--owner", "ada", "--until", "2099-01-01")
    with Keyfence("--config", config("findings: sqlite:///findings.db")) as keyfence:
        admin = keyfence.ready.admin
        assert admin is not None
        with keyfence.client() as client:
            for number in range(12):  # more than a finding has examples
                client.set(f"shop:tmp:{number}", "x")
                client.set(f"shop:other:{number}", "x")
                client.lpush(f"shop:order:{number}", "x")
            until(lambda: sorted(one["total"] for one in findings_of(keyfence).values()) == [12] * 3)
            (folder / "policy.yaml").write_text(WITH_LISTS)
            ask(admin, "/-/reload", {})
            for place in ("SET shop:tmp:<int>", "LPUSH order"):
                until(lambda place=place: findings_of(keyfence)[place]["state"] == "resolved")
        code, text, said = process("waivers", admin, *baseline)
        assert code == 0
        assert "shop:other:" in text
        assert "shop:tmp:" not in text
        assert "type.mismatch" not in text
        assert said == (
            "keyfence: left out 2 findings that the policy in force allows, that waivers cover, or that were "
            "not seen for 7 days (2 resolved); --all covers them too\n"
        )
        code, text, said = process("waivers", admin, *baseline, "--all")
        assert (code, said) == (0, "")
        assert "shop:other:" in text
        assert "shop:tmp:" in text
        assert "type.mismatch" in text
    code, _, said = process("waivers", "--all")
    assert code == 2
    assert "--all is for --baseline" in said


def test_without_a_configuration_nothing_is_kept(folder: Path) -> None:
    arguments = ("--policy", folder / "policy.yaml", "--admin", "127.0.0.1:0")
    with Keyfence(*arguments, "--listen", "127.0.0.1:0") as keyfence:
        with keyfence.client("unknown") as client:
            client.get("shop:order:7")
        (found,) = (one for one in findings_of(keyfence).values() if one["rule"] == "scope.read")
        assert found["total"] == 1
        assert found["examples"][0]["command"]["argv"] == ["GET", "shop:order:7"]
        with pytest.raises(AskError, match="keyfence runs without a findings store; set findings:"):
            ask(keyfence.ready.admin, "/readiness")
    with Keyfence(*arguments, "--listen", "127.0.0.1:0") as keyfence:
        assert findings_of(keyfence) == {}


def test_the_default_store_is_in_the_state_directory(config: Callable[..., Path], folder: Path) -> None:
    path = config()
    state = folder / "state"
    with Keyfence("--config", path, env={"XDG_STATE_HOME": str(state)}) as keyfence:
        assert findings_of(keyfence) == {}
    (made,) = [one for one in (state / "keyfence").iterdir() if one.suffix == ".db"]
    assert made.name.startswith("keyfence-")


def test_a_default_store_that_cannot_be_written_is_told_and_keyfence_serves(
    config: Callable[..., Path], folder: Path
) -> None:
    (folder / "file").touch()
    environment = {"XDG_STATE_HOME": str(folder / "file")}
    told = r"the findings store sqlite:\S+ cannot be opened: .*; findings are lost when .*\n$"
    with (
        Keyfence("--config", config(), env=environment, expect_stderr=told) as keyfence,
        keyfence.client() as client,
    ):
        client.set("shop:order:1", "x")


def test_a_named_store_that_cannot_be_written_fails_the_start(
    config: Callable[..., Path], folder: Path
) -> None:
    (folder / "file").touch()
    why = r"ended with 2; .*cannot be opened: (file exists|not a directory)"
    with pytest.raises(AssertionError, match=why):
        Keyfence("--config", config("findings: sqlite:///file/findings.db")).__enter__()


def test_a_stream_of_hostile_keys_is_one_finding(config: Callable[..., Path], folder: Path) -> None:
    with (
        Keyfence("--config", config("findings: sqlite:///findings.db")) as keyfence,
        keyfence.client() as client,
    ):
        before = resident_bytes(keyfence)
        for _ in range(HOSTILE_KEYS // 500):
            pipe = client.pipeline(transaction=False)
            for _ in range(500):
                pipe.get(b"shop:" + os.urandom(12))
            pipe.execute()
        found = findings_of(keyfence)
        assert sum(one["total"] for one in found.values()) == HOSTILE_KEYS
        assert resident_bytes(keyfence) - before < 64 << 20
        assert len(found) <= 200  # what is learned first has shapes of its own
        assert all(len(one["examples"]) <= 5 for one in found.values())
    assert (folder / "findings.db").stat().st_size < 2_000_000


@pytest.fixture
def postgresql() -> Iterator[PostgreSQL]:
    if binaries() is None:
        pytest.skip(NO_POSTGRESQL)
    with running_postgresql() as server:
        yield server


def test_three_keyfences_share_one_picture(config: Callable[..., Path], postgresql: PostgreSQL) -> None:
    path = config(f"findings: {postgresql.url}")
    with (
        Keyfence("--config", path) as one,
        Keyfence("--config", path) as two,
        Keyfence("--config", path) as three,
    ):
        for keyfence in (one, two, three):
            with keyfence.client() as client:
                pipe = client.pipeline(transaction=False)
                for number in range(1_000):
                    pipe.set(f"shop:tmp:{number}", "x")
                pipe.execute()
        for keyfence in (one, two, three):
            findings_of(keyfence)  # it writes before it answers
        for keyfence in (one, two, three):
            assert [found["total"] for found in findings_of(keyfence).values()] == [3_000]


def test_an_outage_of_the_database_stops_nothing_and_loses_nothing(
    config: Callable[..., Path], postgresql: PostgreSQL
) -> None:
    told = r"store postgresql://\S+ cannot be written: .*findings wait in memory\n.*nothing was lost\n"
    path = config(f"findings: {postgresql.url}")
    with Keyfence("--config", path, expect_stderr=told) as keyfence, keyfence.client() as client:
        client.set("shop:tmp:1", "x")
        assert [found["total"] for found in findings_of(keyfence).values()] == [1]
        postgresql.stop()
        for number in range(100):
            client.set(f"shop:tmp:{number}", "x")
        with pytest.raises(Exception, match="the findings store cannot be read"):
            findings_of(keyfence)
        assert keyfence.ready.admin is not None
        assert b"keyfence_findings_write_failures_total 0" not in _metrics(keyfence)
        client.set("shop:tmp:x", "x")
        postgresql.start()

        def is_back() -> bool:
            try:
                return sum(found["total"] for found in findings_of(keyfence).values()) == 102
            except Exception:
                return False

        until(is_back)


def _metrics(keyfence: Keyfence) -> bytes:
    import urllib.request

    with urllib.request.urlopen(f"{keyfence.ready.admin}/metrics") as answer:
        return bytes(answer.read())


def test_time_in_which_keyfence_was_stopped_is_a_gap(config: Callable[..., Path]) -> None:
    with Keyfence("--config", config("findings: sqlite:///findings.db")) as keyfence:
        admin = keyfence.ready.admin
        assert admin is not None
        with keyfence.client() as client:
            client.get("shop:order:1")

        def standing() -> dict[str, Any]:
            rows = ask(admin, "/readiness?quiet=1000")["standings"]
            return next(one for one in rows if (one["service"], one["rule"]) == ("orders", "scope.read"))

        until(lambda: standing()["wait"] < 1000)
        assert standing()["readiness"] == "gap"
        keyfence.process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        keyfence.process.send_signal(signal.SIGCONT)
        assert standing()["asked"] == 1


def test_refusals_are_findings_with_their_decision_ids(config: Callable[..., Path]) -> None:
    path = config("findings: sqlite:///findings.db", "modes: [{mode: enforce}]")
    with Keyfence("--config", path) as keyfence, keyfence.client() as client:
        with pytest.raises(redis.exceptions.NoPermissionError) as caught:
            client.set("shop:tmp:1", "x")
        (found,) = findings_of(keyfence).values()
        assert found["counts"] == {"refused": 1}
        assert found["examples"][0]["decision"] in str(caught.value)
        assert found["examples"][0]["command"]["argv"] == ["SET", "shop:tmp:1", "?"]
