"""With `reload: auto` keyfence takes in a changed policy by itself, and says everywhere if it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.running import ask, configure, eventually, metric
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, running_redis
from tests.web.person import Person

FILES = {
    "services.yaml": "policy: services\nservices: [CubeMaster, CubeProxy, cube-proxy-sidecar]\n",
    "a.yaml": """policy: a
claims: ["a:"]
services: [CubeMaster, CubeProxy]
placeholders: {word: "[a-z]+"}
scopes: {s: {prefix: "a:", writers: [WRITER]}}
keys: {words: {key: "a:<word>", type: string}}
""",
}
SET = b"SET a:k v\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as one:
        yield one


class Volume:
    """A running keyfence whose policy is a ConfigMap's volume, as kubelet writes it."""

    def __init__(self, folder: Path, server: RedisServer, start: Callable[..., Keyfence], *more: str) -> None:
        server.clear()
        self._folder = folder / "policy"
        self._folder.mkdir()
        self._revisions = 0
        self.put("CubeMaster")
        for name in FILES:
            (self._folder / name).symlink_to(f"..data/{name}")
        config = configure(folder, server.url, "reload: auto", *more, mode="enforce")
        lines = config.read_text().splitlines()
        config.write_text("\n".join([f"policy: {self._folder}", *lines[1:]]) + "\n")
        self.keyfence = start("--config", config)
        self.revision = self.status()["policy"]["revision"]

    def put(self, writer: str) -> None:
        """Write a new revision beside the old one, and swap the link to it."""
        self._revisions += 1
        revision = self._folder / f"..2026_07_01_12_00_00.{self._revisions}"
        revision.mkdir()
        for name, text in FILES.items():
            (revision / name).write_text(text.replace("WRITER", writer))
        (self._folder / "..data_tmp").symlink_to(revision.name)
        os.replace(self._folder / "..data_tmp", self._folder / "..data")

    def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(ask(self.keyfence, "/status")[1])
        return found

    def may_write(self, service: str) -> bool:
        with self.keyfence.connect(service) as connection:
            connection.sendall(SET)
            return connection.recv(1000).startswith(b"+OK")

    def is_strictly_ready(self) -> bool:
        return ask(self.keyfence, "/readyz?strict")[0] == 200


def test_a_swapped_configmap_is_in_force_in_all_workers_without_an_order(
    tmp_path: Path, server: RedisServer, start_keyfence: Callable[..., Keyfence]
) -> None:
    one = Volume(tmp_path, server, start_keyfence, "workers: 2")
    assert (one.may_write("CubeMaster"), one.may_write("CubeProxy")) == (True, False)
    one.put("CubeProxy")
    eventually(lambda: one.may_write("CubeProxy"), "the new policy is in force")
    eventually(lambda: not one.may_write("CubeMaster"), "it is in force in all workers")
    policy = one.status()["policy"]
    assert isinstance(policy, dict)
    assert policy["revision"] != one.revision
    assert (policy["reload"], policy["refused"]) == ("auto", None)
    assert metric(one.keyfence, "keyfence_policy_info", revision=policy["revision"]) == 2


def test_a_faulty_policy_is_refused_on_every_surface_until_it_is_right(
    tmp_path: Path, server: RedisServer, start_keyfence: Callable[..., Keyfence]
) -> None:
    one = Volume(tmp_path, server, start_keyfence)
    assert one.is_strictly_ready()
    one.put("Nobody")
    eventually(lambda: not one.is_strictly_ready(), "the new policy is refused")
    assert (one.may_write("CubeMaster"), one.may_write("CubeProxy")) == (True, False)
    status, body = ask(one.keyfence, "/readyz")
    assert (status, json.loads(body)["reasons"]) == (200, [])
    (warning,) = json.loads(body)["warnings"]
    assert "was refused, so it is not in force" in warning
    assert "a.yaml:5" in warning
    assert json.loads(ask(one.keyfence, "/readyz?strict")[1])["reasons"] == [warning]
    assert metric(one.keyfence, "keyfence_policy_refused") == 1
    assert metric(one.keyfence, "keyfence_policy_load_failures_total") == 1
    policy = one.status()["policy"]
    assert isinstance(policy, dict)
    assert policy["revision"] == one.revision
    assert "'Nobody'" in policy["refused"]["faults"][0]
    assert "was refused, so it is not in force" in Person(one.keyfence).read("/")
    command = [sys.executable, "-m", "keyfence", "status", "--admin", one.keyfence.ready.admin]
    told = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=True
    )
    assert f"warning     {warning}" in told.stdout
    assert "reload      auto" in told.stdout
    one.put("CubeProxy")
    eventually(one.is_strictly_ready, "the next policy is accepted")
    assert one.may_write("CubeProxy")
    assert metric(one.keyfence, "keyfence_policy_refused") == 0
    assert metric(one.keyfence, "keyfence_policy_load_failures_total") == 1
    one.keyfence.expect_stderr = "'Nobody'(.|\n)*nothing was reloaded"
