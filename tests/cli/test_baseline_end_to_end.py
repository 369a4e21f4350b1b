"""From observe to enforce with a baseline: known violations pass, new ones are refused."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.cli.test_main import process
from tests.servers import Keyfence, RedisServer, running_redis

POLICY = """
policy: ac
services: [app]
scopes: {billing: {prefix: "ac:stg:billing:", writers: [app]}}
keys: {invoice: {key: "ac:stg:billing:invoice:<id>"}}
placeholders: {id: "[0-9]+"}
"""
BASELINE = ("--baseline", "--owner", "a", "--until", "2099-01-01")
WORDS = ["auth", "cart", "mail", "search", "flags", "quota", "audit", "push"]


@pytest.fixture(scope="module")
def redis_behind() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def known(chance: random.Random) -> list[list[str]]:
    """The violations that the services commit today, on a few keys of each kind."""
    some = [["SET", f"ac:stg:{word}:token:{chance.getrandbits(64):016x}", "1"] for word in WORDS * 3]
    some += [["SET", f"ac:stg:{word}:meta-{uuid.UUID(int=chance.getrandbits(128), version=4)}", "1"]
             for word in WORDS * 3]  # fmt: skip
    some += [["SMEMBERS", "rq:groups"], ["GET", "ac:dev:lock"], ["SCAN", "0", "MATCH", "ac:stg:*"]]
    some += [["GET", f"rq:job:{number}"] for number in range(3)]
    chance.shuffle(some)
    return some


NEW = [
    ["SET", "ac:stg:evil:token:0123456789abcdef", "1"],
    ["SET", "ac:stg:auth:other:0123456789abcdef", "1"],
    ["SET", "ac:stg:auth:token:more:0123456789abcdef", "1"],
    ["SET", "ac:prod:auth:token:0123456789abcdef", "1"],
    ["SMEMBERS", "rq:workers"],
    ["GET", "rq:groups"],
    ["GET", "ac:dev:unlock"],
    ["SCAN", "0", "MATCH", "ac:*"],
    ["SCAN", "0", "MATCH", "ac:stg:x*"],
]


def refused(client: redis.Redis, commands: list[list[str]]) -> list[list[str]]:
    found = []
    for command in commands:
        try:
            client.execute_command(*command)
        except redis.exceptions.NoPermissionError:
            found.append(command)
    return found


@pytest.mark.parametrize("source", ["log", "running", "workers"])
def test_a_baseline_admits_known_violations_and_refuses_new_ones(
    source: str, tmp_path: Path, redis_behind: RedisServer
) -> None:
    (tmp_path / "p.yaml").write_text(POLICY)
    (tmp_path / "w.yaml").write_text("waivers: []\n")
    config = tmp_path / "keyfence.yaml"
    lines = [
        "policy: p.yaml", "waivers: w.yaml", f"upstream: {redis_behind.url}", "admin: 127.0.0.1:0",
        'listeners: [{listen: "127.0.0.1:0", service: app}]', "decision_log: log.jsonl",
        *(["workers: 2"] if source == "workers" else []),
    ]  # fmt: skip
    config.write_text("\n".join(lines) + "\n")
    with Keyfence("--config", config, "--mode", "observe") as keyfence:
        for seed in range(2):  # each on another connection, perhaps of another worker
            with keyfence.client("app") as client:
                assert refused(client, known(random.Random(seed))) == []
        where = str(tmp_path / "log.jsonl") if source == "log" else keyfence.ready.admin
        if source != "log":
            code, text, message = process(
                "waivers", where, "--baseline", "--owner", "a", "--until", "2099-01-01"
            )
    if source == "log":
        code, text, message = process("waivers", where, *BASELINE)
    assert (code, message) == (0, "")
    (tmp_path / "w.yaml").write_text(text)
    with Keyfence("--config", config, "--mode", "enforce") as keyfence, keyfence.client("app") as client:
        # Keys that were seen, and other keys of the same kinds.
        assert refused(client, known(random.Random(7)) + known(random.Random(0))) == []
        assert refused(client, NEW) == NEW
        code, message, _ = process(
            "waivers", keyfence.ready.admin, "--waivers", tmp_path / "w.yaml", "--json"
        )
        assert code == 0
        assert {one["state"] for one in json.loads(message)} <= {"in use", "too early"}
