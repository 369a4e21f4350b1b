"""A signed policy is in force only as it was signed, wherever it comes from, and never an older one again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence.fleet.copy import Copy, read_copy
from keyfence.fleet.manifest import parse_signed
from keyfence.fleet.model import PolicyServer
from keyfence.fleet.redis_store import RedisStore
from keyfence.fleet.redis_url import parse_redis_url
from keyfence.fleet.signed import KeptFloor, floor_of, read_floor, replay_fault
from keyfence.fleet.source import PolicySource
from keyfence.process.provision import Provision
from keyfence.process.serving.reload import Origin
from tests.clients.running import ask, configure, eventually, metric
from tests.fleet.publishing import NAME, Publisher
from tests.fleet.refused import shows_refusal
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis

POLICY = """policy: fleet
claims: ["a:"]
services: [CubeMaster, CubeProxy, cube-proxy-sidecar]
placeholders: {word: "[a-z]+"}
scopes: {s: {prefix: "a:", writers: [WRITER]}}
keys: {words: {key: "a:<word>", type: string}}
"""
SET = b"SET a:k v\r\n"


def by(writer: str) -> str:
    return POLICY.replace("WRITER", writer)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Instance:
    """A keyfence whose policy is signed, and that keeps its state in a folder."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        redis.clear()
        self.folder, self._redis = folder, redis
        self.publisher = Publisher()
        self._running = contextlib.ExitStack()

    @property
    def env(self) -> dict[str, str]:
        return {"STATE_DIRECTORY": str(self.folder / "state")}

    def configure(self, source: str, *more: str) -> Path:
        config = configure(self.folder, self._redis.url, *more, mode="enforce")
        lines = config.read_text().splitlines()
        said = f"policy: {{{source}, name: {NAME}, trust: '{self.publisher.key}'}}"
        config.write_text("\n".join([said, *lines[1:]]) + "\n")
        return config

    def run(self, source: str, *more: str, expect_stderr: str = "") -> None:
        config = self.configure(source, *more)
        one = Keyfence("--config", config, env=self.env, expect_stderr=expect_stderr)
        self.keyfence = self._running.enter_context(one)

    def stop(self) -> None:
        self._running.close()

    def refused_start(self, source: str) -> str:
        """Returns what a start says that is refused."""
        done = subprocess.run(
            [sys.executable, "-m", "keyfence", "run", "--config", self.configure(source)],
            cwd=PROJECT,
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 2
        return done.stderr

    def writer(self) -> str:
        return "".join(one for one in ("CubeMaster", "CubeProxy") if self._may_write(one))

    def _may_write(self, service: str) -> bool:
        with self.keyfence.connect(service) as connection:
            connection.sendall(SET)
            return connection.recv(1000).startswith(b"+OK")

    def policy(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask(self.keyfence, "/status")[1])["policy"]
        return found

    def sequence(self) -> int:
        return int(self.policy()["signed"]["sequence"])

    def is_strictly_ready(self) -> bool:
        return ask(self.keyfence, "/readyz?strict")[0] == 200

    def refuses(self, kind: str) -> None:
        """Waits until what was read last is refused for this, on every surface."""
        shows_refusal(self.keyfence, kind)


@pytest.fixture
def instance(tmp_path: Path, redis: RedisServer) -> Iterator[Instance]:
    one = Instance(tmp_path, redis)
    yield one
    one.stop()


def test_files_are_in_force_as_they_were_signed_and_not_again_when_they_are_old(instance: Instance) -> None:
    file, publisher = instance.folder / "shop.yaml", instance.publisher
    publisher.write(file, 7, by("CubeMaster"))
    instance.run("path: shop.yaml", "reload: auto", expect_stderr="changed content:(.|\n)*replayed:")
    assert (instance.writer(), instance.sequence()) == ("CubeMaster", 7)
    file.write_text(by("CubeProxy"))
    instance.refuses("changed content: ")
    publisher.write(file, 6, by("CubeProxy"))
    instance.refuses("replayed: it has sequence 6, and 7 was in force")
    assert instance.writer() == "CubeMaster"
    publisher.write(file, 8, by("CubeProxy"))
    eventually(instance.is_strictly_ready, "the next version is accepted")
    assert (instance.writer(), instance.sequence()) == ("CubeProxy", 8)
    instance.stop()
    publisher.write(file, 7, by("CubeMaster"))
    assert "replayed: it has sequence 7, and 8 was in force" in instance.refused_start("path: shop.yaml")


class Stored:
    """A Redis as the store, and the instance that reads it."""

    def __init__(self, instance: Instance, server: RedisServer) -> None:
        self.instance, self.server = instance, server
        self.store = RedisStore(parse_redis_url(f"redis://:SECRET@127.0.0.1:{server.port}"), NAME)
        (instance.folder / "store").write_text(f"redis://:SECRET@127.0.0.1:{server.port}\n")
        (instance.folder / "store").chmod(0o600)
        self.source = "redis: 'file:store'"

    def push(self, text: str) -> int:
        return self.instance.publisher.push(self.store, text)

    def change(self, **fields: str) -> None:
        """Changes the newest version in its place, and signals it, as a service with rights there could."""
        with self.server.client() as client:
            newest = int(client.get("keyfence:{shop}:sequence") or 0) + 1
            client.hset(f"keyfence:{{shop}}:version:{newest}", mapping=fields)
            self.point(newest)

    def point(self, sequence: int) -> None:
        """Says that this is the newest version."""
        with self.server.client() as client:
            client.set("keyfence:{shop}:sequence", sequence)
            client.publish("keyfence:{shop}:changed", sequence)


@pytest.fixture
def stored(instance: Instance) -> Iterator[Stored]:
    with running_redis(tcp=True, password="SECRET") as server:
        yield Stored(instance, server)


def test_what_is_pushed_to_redis_is_in_force_by_a_signal_and_nothing_else_is(
    instance: Instance, stored: Stored
) -> None:
    """The poll is 30 s, and each step waits less."""
    stored.push(by("CubeMaster"))
    kinds = "unsigned:(.|\n)*changed content:(.|\n)*untrusted key:(.|\n)*'Nobody'(.|\n)*replayed:"
    instance.run(stored.source, "workers: 2", expect_stderr=kinds)
    assert (instance.writer(), instance.sequence()) == ("CubeMaster", 1)
    stored.push(by("CubeProxy"))
    eventually(lambda: instance.writer() == "CubeProxy", "the second version is in force")
    stored.change(content=by("CubeMaster"))
    instance.refuses("unsigned: ")
    signature = instance.publisher.version(4, by("CubeProxy")).signed.text().decode()
    stored.change(content=by("CubeMaster"), signature=signature)
    instance.refuses("changed content: ")
    signature = Publisher().version(5, by("CubeMaster")).signed.text().decode()
    stored.change(content=by("CubeMaster"), signature=signature)
    instance.refuses("untrusted key: ")
    stored.push(by("Nobody"))
    instance.refuses("'Nobody'")
    stored.point(1)
    instance.refuses("replayed: it has sequence 1, and 2 was in force")
    assert instance.writer() == "CubeProxy"
    stored.point(6)
    assert stored.push(by("CubeMaster")) == 7
    eventually(lambda: instance.writer() == "CubeMaster", "the next version is in force")
    eventually(instance.is_strictly_ready, "nothing is refused any more")
    assert instance.policy()["file"] == f"redis://127.0.0.1:{stored.server.port}/keyfence/shop"
    assert "SECRET" not in json.dumps(instance.policy()) + ask(instance.keyfence, "/metrics")[1]


def test_a_redis_that_is_lost_leaves_the_policy_in_force_over_a_restart_and_no_replay_after_it(
    instance: Instance, stored: Stored
) -> None:
    stored.push(by("CubeMaster"))
    stored.push(by("CubeProxy"))
    source = f"{stored.source}, poll: 1s"
    instance.run(source, expect_stderr="does not answer|cannot be reached")
    stored.server.pause()
    failures = "keyfence_policy_fetch_failures_total"
    eventually(lambda: metric(instance.keyfence, failures) > 0, "it is noticed")
    assert instance.writer() == "CubeProxy"
    instance.stop()
    instance.run(source, expect_stderr="does not answer(.|\n)*answers again(.|\n)*replayed:")
    assert (instance.writer(), instance.sequence()) == ("CubeProxy", 2)
    assert not instance.is_strictly_ready(), "it is the copy on disk"
    stored.server.resume()
    eventually(instance.is_strictly_ready, "the store confirms it")
    stored.point(1)
    instance.refuses("replayed: it has sequence 1, and 2 was in force")
    assert instance.writer() == "CubeProxy"


class Kept:
    """What an instance keeps on disk of a policy that is signed again and again."""

    def __init__(self, folder: Path) -> None:
        self.publisher = Publisher()
        self.server = PolicyServer("redis://nowhere", signed_as=NAME)
        self.path = folder / "state" / "policy.yaml"
        self.provision = Provision(Origin(), source=PolicySource(self.server, None))
        self.provision.path, self.provision.floor = self.path, KeptFloor(folder / "state" / "sequence")

    def accept(self, number: int) -> None:
        """This version is in force."""
        signed = self.publisher.sign(number, {"shop.yaml": by("CubeMaster")})
        copy = Copy(by("CubeMaster").encode(), str(number), 1.0, signed.text())
        asyncio.run(self.provision.accepted(self.provision.source, copy, signed))

    def sequence(self) -> int:
        floor = read_floor(self.provision.floor.path or Path())
        return 0 if floor is None else floor.sequence

    def starts(self) -> bool:
        """Whether a start without the server takes what is kept."""
        copy = read_copy(self.path, self.server.id)
        assert copy is not None
        floor = read_floor(self.provision.floor.path or Path())
        signed = parse_signed(copy.signature)
        return not replay_fault(signed, floor, self.publisher.trust)


@pytest.mark.parametrize("is_between", [False, True], ids=["before the copy", "after the copy"])
def test_a_start_takes_the_copy_on_disk_after_keyfence_has_ended_while_it_kept_the_next_one(
    is_between: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    kept.accept(1)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    of = "keyfence.fleet.signed.write_floor" if is_between else "keyfence.process.provision.write_copy"
    monkeypatch.setattr(of, end)
    with pytest.raises(KeyboardInterrupt):
        kept.accept(2)
    assert kept.sequence() == 1
    assert kept.starts()


def test_a_sequence_is_not_kept_without_its_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = Kept(tmp_path)
    kept.accept(1)
    with monkeypatch.context() as patch:
        patch.setattr("keyfence.process.provision.write_copy", no_room)
        kept.accept(2)
    assert kept.provision.floor.known is not None
    assert kept.provision.floor.known.sequence == 2, "it holds until a restart"
    assert (kept.sequence(), kept.starts()) == (1, True)
    assert "sequence (the policy itself cannot be kept): after a restart" in capsys.readouterr().err
    kept.accept(2)
    assert (kept.sequence(), kept.starts(), kept.provision.notes()) == (2, True, [])


def test_a_sequence_that_cannot_be_kept_is_said_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    provision = Provision(Origin())
    provision.floor = KeptFloor(path := tmp_path / "state" / "policy.yaml.sequence")
    signed = Publisher().sign(7, {"shop.yaml": by("CubeMaster")})
    asyncio.run(provision.accepted(None, None, signed))
    assert provision.floor.known == floor_of(signed), "it holds until a restart"
    (note,) = provision.notes()
    assert note.startswith("the policy's sequence cannot be kept in ")
    (tmp_path / "state").unlink()
    asyncio.run(provision.accepted(None, None, signed))
    assert provision.notes() == []
    assert read_floor(path) == floor_of(signed)
