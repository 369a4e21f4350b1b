"""Valkey GLIDE (Rust), phpredis and predis (PHP), with their default settings, get the same through keyfence
as from Redis, from a Redis Cluster, and from a Sentinel."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, half_moved
from tests.end_to_end.clusters import CONFIG, keyfence_with
from tests.sentinel import following, running_sentinels
from tests.servers import PATIENCE_SECONDS, PROJECT, Keyfence, RedisServer, first_port, running_redis

POLICY = """
policy: other-languages
services: [app, reader]
scopes: {all: {prefix: "app:", writers: [app], readers: [reader], unregistered: allow}}
unregistered_scripts: declared
placeholders: {any: ".*"}
channels: {all: {channel: "<any>", publishers: [app], subscribers: [app]}}
grants: {app: {commands: ["FUNCTION LOAD"]}}
"""
PHP = {name: ["php", str(PROJECT / "tests" / "php" / f"{name}.php")] for name in ("phpredis", "predis")}
GLIDE = [sys.executable, "-m", "tests.clients.glide_program"]
CLIENTS = ["glide 2", "glide 3", *PHP]
HAS_GLIDE = importlib.util.find_spec("glide") is not None
LISTENERS = '[{listen: "127.0.0.1:0", service: app}, {listen: "127.0.0.1:0", service: reader}]'
Address = tuple[str, int]


@functools.cache
def has_php() -> bool:
    """Whether PHP and both libraries are here: Debian's php-cli, php-redis and php-predis."""
    code = "exit(extension_loaded('redis') && stream_resolve_include_path('Predis/autoload.php') ? 0 : 1);"
    return bool(shutil.which("php")) and subprocess.run(["php", "-r", code], check=False).returncode == 0


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name in PHP and not has_php():
        pytest.skip("no PHP with phpredis and predis here")
    if name not in PHP and not HAS_GLIDE:
        pytest.skip("valkey-glide is not installed")
    return name


def seen(client: str, scenario: str, address: Address) -> dict[str, Any]:
    """What the steps of a scenario have returned."""
    library, _, protocol = client.partition(" ")
    words = [*PHP.get(library, GLIDE), scenario, f"{address[0]}:{address[1]}", protocol]
    done = subprocess.run(
        words, cwd=PROJECT, capture_output=True, text=True, timeout=PATIENCE_SECONDS * 2, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


# -- one Redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One Redis version: the tests are about clients."""
    with running_redis(tcp=True) as one:
        yield one


@pytest.fixture(scope="module")
def keyfences(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[dict[str, Keyfence]]:
    """keyfence in each mode."""
    folder = tmp_path_factory.mktemp("modes")
    (folder / "policy.yaml").write_text(POLICY)
    with contextlib.ExitStack() as started:
        found = {}
        for mode in ("observe", "enforce"):
            path = folder / f"{mode}.yaml"
            path.write_text(
                f"policy: policy.yaml\nupstream: {server.url}\nadmin: none\nfindings: none\n"
                f"listeners: {LISTENERS}\nmodes: [{{mode: {mode}}}]\n"
            )
            found[mode] = started.enter_context(Keyfence("--config", path))
        yield found


def test_a_client_gets_the_same_as_without_keyfence(
    client: str, server: RedisServer, keyfences: dict[str, Keyfence]
) -> None:
    assert server.port is not None
    server.clear()
    direct = seen(client, "single", ("127.0.0.1", server.port))
    assert "WRONGTYPE" in str(direct["wrong type"])
    for mode, keyfence in keyfences.items():
        server.clear()
        assert seen(client, "single", keyfence.address("app")) == direct, mode


def test_a_refusal_is_an_error_of_its_command_only(
    client: str, server: RedisServer, keyfences: dict[str, Keyfence]
) -> None:
    with server.client() as direct:
        direct.set("app:a", "1")
    answers = seen(client, "refused", keyfences["enforce"].address("reader"))
    for step in {"write", "pipeline", "multi"} & answers.keys():
        assert "[scope.write] reader may not SET app:a" in str(answers[step]), step
    assert answers["read"] == answers["read again"] == "1"
    assert answers.get("same connection", True)
    assert answers.get("number") == answers.get("number again")


# -- a cluster


@pytest.fixture(scope="module")
def of_cluster(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    first = first_port()
    one, other, *_ = cluster.masters
    config = CONFIG.format(seed=one.port, other=other.port, first=first, last=first + 99)
    with keyfence_with(tmp_path_factory.mktemp("cluster"), POLICY, config) as started:
        yield started


def test_a_client_for_clusters_stays_with_keyfence_while_a_hash_slot_moves(
    client: str, cluster: Cluster, of_cluster: Keyfence
) -> None:
    """ASK and the table of hash slots name keyfence's addresses: what is refused reaches no node."""
    port = cluster.masters[0].port
    assert port is not None
    answers = []
    for address in (("127.0.0.1", port), of_cluster.address()):
        for server in cluster.masters:
            server.clear()
        with half_moved(cluster, "app:{moves}"):
            answers.append(seen(client, "cluster", address))
            with cluster.client() as one:
                written = sum(one.exists(f"outside:{number}") for number in range(10))
        assert bool(written) == (address[1] == port)
    direct, through = answers
    assert direct.pop("outside") != through.pop("outside")
    assert through == direct
    assert direct["moves"] == "x"


# -- Sentinels


def test_a_client_that_asks_sentinels_finds_keyfence(tmp_path: Path) -> None:
    if not has_php():
        pytest.skip("no PHP with phpredis and predis here")
    listeners = (
        '[{listen: "127.0.0.1:0", service: app}, {listen: "127.0.0.1:0", service: app, sentinel: true}]'
    )
    with (
        running_sentinels(tmp_path) as watched,
        following(tmp_path, watched, listeners=listeners) as keyfence,
    ):
        own = keyfence.ready.listeners["Sentinel for main"]
        for library in PHP:
            direct = seen(library, "sentinel", ("127.0.0.1", watched.sentinels[0]))
            assert seen(library, "sentinel", own) == direct
