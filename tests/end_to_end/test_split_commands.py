"""Commands with keys of several hash slots, before a real cluster behind one address: sent in parts for the
services that ask for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from keyfence.admin.client import ask
from tests.clients.running import eventually
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import keyfence_with
from tests.servers import Keyfence

POLICY = """policy: p
services: [parts, counts, whole]
scopes: {all: {prefix: "app:", writers: [parts, counts, whole], unregistered: allow}}
"""
CONFIG = """policy: policy.yaml
upstream:
  cluster: ["127.0.0.1:{seed}"]
  expose: single
  connect_timeout: 1s
split: {{parts: [MGET, DEL, UNLINK, EXISTS, TOUCH], counts: EXISTS}}
listeners:
  - {{listen: "127.0.0.1:0", service: parts}}
  - {{listen: "127.0.0.1:0", service: counts}}
  - {{listen: "127.0.0.1:0", service: whole}}
admin: "127.0.0.1:0"
findings: none
modes: [{{mode: enforce}}]
"""
KEYS = [f"app:{number}" for number in range(30)]
CROSSSLOT = "hash to the same slot"

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # The others serve their keys when one of them is gone.
    with running_cluster(settings={"cluster-require-full-coverage": "no"}) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    config = CONFIG.format(seed=cluster.masters[0].port)
    with keyfence_with(tmp_path_factory.mktemp("split"), POLICY, config) as one:
        yield one


@pytest.fixture(params=[2, 3])
def client(keyfence: Keyfence, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with keyfence.client("parts", protocol=request.param) as one:
        one.unlink(*KEYS)
        yield one


def test_values_come_in_the_order_of_the_keys(client: redis.Redis) -> None:
    for key in KEYS[::2]:
        client.set(key, key)
    wanted = [key.encode() if key in KEYS[::2] else None for key in KEYS]
    assert client.mget(KEYS) == wanted
    assert client.mget(KEYS[::-1]) == wanted[::-1]
    assert client.mget([*KEYS, *KEYS]) == wanted * 2
    assert client.execute_command("mGet", *KEYS) == wanted  # type: ignore[no-untyped-call]


def test_numbers_are_sums(client: redis.Redis) -> None:
    for key in KEYS[:12]:
        client.set(key, 1)
    assert client.exists(*KEYS) == 12
    assert client.exists(*KEYS, *KEYS) == 24
    assert client.touch(*KEYS) == 12
    assert client.delete(*KEYS[:6]) == 6
    assert client.unlink(*KEYS) == 6
    assert client.exists(*KEYS) == 0


def test_what_runs_on_a_key_runs_in_the_order_of_a_pipeline(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(40):
        pipe.ping()
        for key in KEYS[:5]:
            pipe.set(key, f"{key}={number}")
        pipe.mget(KEYS[:5])
        pipe.delete(*KEYS[:5])
        pipe.get(KEYS[2])
    wanted: list[object] = []
    for number in range(40):
        values = [f"{key}={number}".encode() for key in KEYS[:5]]
        wanted += [True, *[True] * 5, values, 5, None]
    assert pipe.execute() == wanted


def test_only_the_named_commands_of_a_service_are_sent_in_parts(keyfence: Keyfence) -> None:
    with keyfence.client("counts") as client:
        assert client.exists(*KEYS) == 0
        with pytest.raises(redis.ResponseError, match=CROSSSLOT):
            client.mget(KEYS)
    with keyfence.client("whole") as client, pytest.raises(redis.ResponseError, match=CROSSSLOT):
        client.exists(*KEYS)
    with keyfence.client("parts") as client, pytest.raises(redis.ResponseError, match=CROSSSLOT):
        client.mset(dict.fromkeys(KEYS, "x"))


def test_a_transaction_is_never_sent_in_parts(client: redis.Redis, keyfence: Keyfence) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.ping()
    pipe.mget(KEYS)
    with pytest.raises(redis.RedisError):
        pipe.execute()
    with keyfence.connect("parts") as sock, sock.makefile("rb") as stream:
        answers = []
        for line in ("MULTI", f"DEL {KEYS[0]} {KEYS[1]}", "EXEC"):
            sock.sendall(line.encode() + b"\r\n")
            answers.append(stream.readline())
    assert answers[0] == b"+OK\r\n"
    assert answers[1] == b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
    assert answers[2].startswith(b"-EXECABORT")


def test_the_policy_sees_the_command_as_a_whole(client: redis.Redis) -> None:
    client.set(KEYS[0], "kept")
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.delete(*KEYS, "other:1")
    assert client.get(KEYS[0]) == b"kept"


def test_a_clients_own_connections_take_parts_too(client: redis.Redis) -> None:
    """A watched key gives the client connections of its own, and so does a long request."""
    many = [f"app:{number}:{'x' * 60}" for number in range(1_200)]
    client.set(many[7], "seven")
    assert client.mget(many) == [b"seven" if key == many[7] else None for key in many]
    with client.pipeline() as pipe:
        pipe.watch(KEYS[0])  # type: ignore[no-untyped-call]
        assert pipe.exists(*KEYS, many[7]) == 1
        pipe.multi()
        pipe.set(KEYS[0], "v")
        assert pipe.execute() == [True]
    assert client.unlink(*many) == 1


def test_replies_that_are_too_long_together_are_an_error_and_the_client_stays(client: redis.Redis) -> None:
    for key in KEYS[:6]:
        client.set(key, b"x" * 3_000_000)
    with pytest.raises(redis.ResponseError, match="longer than 16777216 bytes together"):
        client.mget(KEYS[:6])
    assert client.mget(KEYS[:5]) == [b"x" * 3_000_000] * 5
    assert client.unlink(*KEYS) == 6


def test_a_client_that_goes_leaves_the_others_their_replies(keyfence: Keyfence) -> None:
    with keyfence.client("parts") as stays:
        for key in KEYS:
            stays.set(key, key * 2_000)
        wanted = [(key * 2_000).encode() for key in KEYS]
        request = f"MGET {' '.join(KEYS)}\r\n".encode()
        for _ in range(20):
            with keyfence.connect("parts") as goes:
                goes.sendall(request * 3)
            assert stays.mget(KEYS) == wanted


def test_a_hash_slot_moves_under_commands_in_parts(keyfence: Keyfence, cluster: Cluster) -> None:
    moving = "app:{moves}"
    with cluster.client() as direct:
        slot = direct.keyslot(moving)
    source = next(one for one in cluster.masters if one.port == cluster.port_of(slot))
    target = next(one for one in cluster.masters if one is not source)
    wrong: list[object] = []
    rounds = 0
    ends = threading.Event()

    def work() -> None:
        nonlocal rounds
        keys = [*KEYS[:6], moving, *KEYS[6:9]]
        with keyfence.client("parts") as client:
            while not ends.is_set():
                rounds += 1
                pipe = client.pipeline(transaction=False)
                for key in keys:
                    pipe.set(key, f"{key}={rounds}")
                pipe.mget(keys)
                pipe.exists(*keys)
                pipe.delete(*keys)
                pipe.mget(keys)
                got = pipe.execute(raise_on_error=False)[len(keys) :]
                values = [f"{key}={rounds}".encode() for key in keys]
                if got != [values, len(keys), len(keys), [None] * len(keys)]:
                    wrong.append(got)

    def goes_on() -> None:
        last = rounds + 3
        eventually(lambda: rounds >= last, "the load goes on")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        with source.client() as old, target.client() as new:
            old_id, new_id = old.execute_command("CLUSTER", "MYID"), new.execute_command("CLUSTER", "MYID")
            for number in range(40):
                old.set(f"{moving}{number}", "v")
            goes_on()
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
            goes_on()
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 6):
                old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
                goes_on()
            for one in (new, old):
                one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
            goes_on()
    finally:
        ends.set()
        thread.join()
    assert wrong == []


def test_a_reload_holds_for_new_clients(keyfence: Keyfence) -> None:
    config = Path(keyfence.arguments[1])
    assert keyfence.ready.admin is not None
    with keyfence.client("whole") as stays:
        assert stays.ping()
        config.write_text(config.read_text().replace("split: {", "split: {whole: EXISTS, "))
        assert ask(keyfence.ready.admin, "/-/reload", {})["needs_restart"] == []
        with pytest.raises(redis.ResponseError, match=CROSSSLOT):
            stays.exists(*KEYS)
    with keyfence.client("whole") as comes:
        assert comes.exists(*KEYS) >= 0
    split = ask(keyfence.ready.admin, "/status")["upstream"]["split"]
    assert (split["whole"], split["counts"]) == (["EXISTS"], ["EXISTS"])


def test_a_node_that_dies_ends_the_clients_that_wait_for_it_and_no_others(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    """It comes last: the cluster has no replica that takes over."""
    victim = cluster.masters[2]
    with victim.client() as one:
        pid = one.info("server")["process_id"]
    with cluster.client() as direct:
        port = {key: cluster.port_of(direct.keyslot(key)) for key in KEYS}
    elsewhere = next(key for key in KEYS if port[key] != victim.port)
    with keyfence.client("parts", retry=None) as other, keyfence.connect("parts") as sock:
        other.set(elsewhere, "v")
        os.kill(pid, signal.SIGSTOP)
        sock.sendall(f"MGET {' '.join(KEYS)}\r\n".encode())
        assert other.get(elsewhere) == b"v"
        os.kill(pid, signal.SIGKILL)
        assert sock.recv(1) == b""
        assert other.get(elsewhere) == b"v"
        with pytest.raises(redis.RedisError):
            other.mget(KEYS)
        assert other.ping()
