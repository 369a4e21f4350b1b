"""A candidate for a whole fleet, from outside: what several keyfences have counted adds up to what the replay
of the same traffic gives, and the candidate that was looked at becomes the policy of all."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.resp import encode
from tests.cli.test_main import Result
from tests.cli.test_main import keyfence as run
from tests.clients.running import ask, eventually
from tests.fleet.publishing import Publisher
from tests.servers import Keyfence, RedisServer, running_redis

POLICY = """policy: shop
claims: ["shop:"]
services: [web, billing]
placeholders: {id: "[a-z0-9]{1,9}"}
scopes: {shop: {prefix: "shop:", writers: [web, billing]}}
keys:
  cart: {key: "shop:cart:<id>", type: hash}
  note: {key: "shop:note:<id>", type: string}
  tag: {key: "shop:tag:<id>", type: set, writers: [billing], readers: [web]}
"""
# Only billing may write notes, web may write tags, and there is an entry for orders.
NEW = POLICY.replace(
    'note:<id>", type: string}', 'note:<id>", type: string, writers: [billing], readers: [web]}'
)
NEW = NEW.replace("set, writers: [billing], readers: [web]}", "set, writers: [web, billing]}") + (
    '  order: {key: "shop:order:<id>", type: string}\n'
)
SERVICES = ("web", "billing")
# Of each kind of command each instance gets as many as the command log represents in full: see its Recorder.
TRAFFIC: dict[tuple[str, ...], tuple[int, int, int]] = {
    ("web", "SET", "shop:note:1", "v"): (12, 3, 1),
    ("web", "APPEND", "shop:note:2", "v"): (2, 0, 6),
    ("web", "GET", "shop:note:1"): (6, 6, 6),
    ("web", "SET", "shop:order:7", "v"): (3, 6, 2),
    ("web", "SADD", "shop:tag:1", "a"): (1, 2, 3),
    ("web", "HSET", "shop:cart:1", "size", "7"): (6, 12, 24),
    ("web", "HSET", "shop:note:3", "a", "b"): (1, 1, 2),
    ("billing", "SET", "shop:note:1", "v"): (3, 0, 6),
    ("billing", "DEL", "shop:order:7"): (0, 3, 3),
    ("billing", "SADD", "shop:tag:1", "b"): (2, 2, 2),
}


class Fleet:
    """Three keyfences of two workers each, with one store of policies and one of findings."""

    def __init__(self, folder: Path, redis: RedisServer, stack: contextlib.ExitStack) -> None:
        self.folder, self.publisher = folder, Publisher()
        self._key = self.publisher.key_file(folder)
        self.url = f"redis://127.0.0.1:{redis.port}"
        self.findings = f"sqlite:///{folder / 'findings.db'}"
        self.old, self.new = folder / "shop.yaml", folder / "new" / "shop.yaml"
        self.new.parent.mkdir()
        self.old.write_text(POLICY)
        self.new.write_text(NEW)
        assert self.command("push", self.old).code == 0
        self.instances = [stack.enter_context(self._start(number)) for number in range(3)]

    def _start(self, number: int) -> Keyfence:
        here = self.folder / str(number)
        here.mkdir()
        listeners = ", ".join(f"{{listen: '127.0.0.1:0', service: {one}}}" for one in SERVICES)
        lines = [
            f"policy: {{redis: '{self.url}', name: shop, trust: '{self.publisher.key}'}}",
            f"upstream: {self.url}",
            "admin: 127.0.0.1:0",
            f"listeners: [{listeners}]",
            f"findings: {self.findings}",
            "modes: [{mode: enforce}]",
            "workers: 2",
        ]
        (here / "keyfence.yaml").write_text("\n".join(lines) + "\n")
        env = {"STATE_DIRECTORY": str(here / "state")}
        return Keyfence("--config", here / "keyfence.yaml", "--record", here / "record.jsonl", env=env)

    def command(self, name: str, *more: object) -> Result:
        """Runs a command on the store of policies."""
        return run(name, *map(str, more), "--to", self.url, "--name", "shop", "--key", str(self._key))

    def candidates(self) -> list[Any]:
        """What each instance compares."""
        return [json.loads(ask(one, "/status")[1])["candidate"] for one in self.instances]

    def send(self) -> None:
        """Sends the traffic, each kind of command on a connection of its own."""
        for (service, *command), times in TRAFFIC.items():
            for one, number in zip(self.instances, times, strict=True):
                with one.connect(service) as connection:
                    for _ in range(number):
                        connection.sendall(encode.command(*command))
                        assert connection.recv(1000)

    def diff(self) -> tuple[int, dict[str, Any]]:
        """What the fleet says of the candidate; no commands before an instance has reported."""
        code, out, _ = run("fleet", "diff", "--findings", self.findings, "--format", "json")
        found = json.loads(out)["candidates"]
        return code, found[0] if found else {"commands": {}}

    def replayed(self) -> dict[str, Any]:
        """What `keyfence diff` says of all that was recorded."""
        log = self.folder / "record.jsonl"
        log.write_text("".join((self.folder / str(one) / "record.jsonl").read_text() for one in range(3)))
        code, out, _ = run("diff", self.old, self.new, "--replay", log, "--format", "json")
        assert code == 1
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield Fleet(tmp_path, stack.enter_context(running_redis(tcp=True)), stack)


def sums(rows: list[dict[str, Any]], name: str, words: dict[str, str]) -> dict[tuple[str, ...], int]:
    """Rows by change, service, rule, command and entry."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        if row[name] in words:
            at = (words[row[name]], row["service"], row["rule"], row["command"], row["entry"])
            found[at] += row["count"]
    return dict(found)


@pytest.mark.timeout(300)  # nine processes and seven loads share the processors with other tests
def test_the_sums_of_a_fleet_are_those_of_the_replay_and_promoting_puts_them_in_force(fleet: Fleet) -> None:
    assert fleet.command("push", fleet.new, "--candidate").code == 0
    eventually(lambda: all(fleet.candidates()), "every instance compares it")
    fleet.send()
    total = sum(map(sum, TRAFFIC.values()))
    eventually(lambda: sum(fleet.diff()[1]["commands"].values()) == total, "every instance has reported")
    code, found = fleet.diff()
    replay = fleet.replayed()
    assert (replay["commands"], replay["undecided"]) == (total, 0)
    by_replay = sums(replay["rows"], "what", {"breaks": "new", "mends": "gone"})
    assert sums(found["rows"], "change", {"new": "new", "gone": "gone"}) == by_replay
    assert by_replay["new", "web", "scope.write", "SET", "note"] == 16
    totals = found["totals"]
    assert (
        totals["new"]
        == totals["newly_refused"]
        == sum(number for (change, *_), number in by_replay.items() if change == "new")
    )
    assert totals["gone"] == totals["newly_allowed"] > 0
    assert (code, found["comparing"], found["lines"]) == (1, 3, [])

    assert fleet.command("promote", 1).code == 0

    def is_in_force() -> bool:
        status = [json.loads(ask(one, "/status")[1]) for one in fleet.instances]
        return all(one["policy"]["signed"]["sequence"] == 2 and one["candidate"] is None for one in status)

    eventually(is_in_force, "every instance has it in force, and compares nothing")
