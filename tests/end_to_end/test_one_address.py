"""keyfence before a real Redis Cluster, for clients that know no clusters: all of it behind one address."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis

from keyfence.upstream.single.refusals import ELSEWHERE
from tests.clients.running import eventually
from tests.cluster import NO_CLUSTER, SLOTS, Cluster, cluster_binary, running_cluster
from tests.end_to_end.clusters import POLICY, keyfence_with, moved_slot, nodes, status_of
from tests.servers import Keyfence, RedisServer

CONFIG = """policy: policy.yaml
upstream:
  cluster: ["127.0.0.1:{seed}"]
  expose: single
listeners: [{{listen: "127.0.0.1:0", service: app}}]
admin: "127.0.0.1:0"
findings: none
modes: [{{mode: observe}}]
"""
CRLF = "\r\n"
KEYS = [f"app:{number}" for number in range(30)]
TAGGED = [f"app:{{moves}}{number}" for number in range(15)]

pytestmark = pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(replicas=1, settings={"cluster-node-timeout": 2000}) as one:
        yield one


@pytest.fixture(scope="module")
def keyfence(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Iterator[Keyfence]:
    config = CONFIG.format(seed=cluster.masters[0].port)
    with keyfence_with(tmp_path_factory.mktemp("single"), POLICY, config) as one:
        yield one


@pytest.fixture(params=[2, 3])
def client(keyfence: Keyfence, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with keyfence.client(protocol=request.param) as one:
        yield one


@contextlib.contextmanager
def directly(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as one:
        yield one


class Load:
    """Counts up all keys again and again, in a thread: one command at a time, and in pipelines."""

    def __init__(self, keyfence: Keyfence, name: str) -> None:
        self.rounds = 0
        self.wrong: list[str] = []
        self._client = keyfence.client()
        self._keys = [f"{key}:{name}" for key in (*KEYS[:9], *TAGGED)]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._client.close()
        assert self.wrong == []

    def _work(self) -> None:
        while not self._ends.is_set():
            self.rounds += 1
            with contextlib.suppress(redis.ConnectionError):
                self._one_by_one()
                self._together()

    def _one_by_one(self) -> None:
        for key in self._keys:
            self._expect(key, self._client.set(key, self.rounds), True)
            self._expect(key, self._client.get(key), b"%d" % self.rounds)

    def _together(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        for key in self._keys:
            pipe.set(key, f"p{self.rounds}")
            pipe.get(key)
        replies = pipe.execute(raise_on_error=False)
        for key, was_set, got in zip(self._keys, replies[::2], replies[1::2], strict=True):
            self._expect(key, was_set, True)
            self._expect(key, got, b"p%d" % self.rounds)

    def _expect(self, key: str, got: Any, wanted: Any) -> None:
        if got != wanted:
            self.wrong.append(f"{key}: {got!r} and not {wanted!r}")

    def goes_on(self) -> None:
        """Wait for two more rounds."""
        last = self.rounds + 2
        eventually(lambda: self.rounds >= last, "the load goes on")


def test_keys_of_all_nodes_are_written_and_read(client: redis.Redis, cluster: Cluster) -> None:
    for key in KEYS:
        client.set(key, key)
    assert [client.get(key) for key in KEYS] == [key.encode() for key in KEYS]
    for server in cluster.masters:
        with directly(server) as node:
            assert node.dbsize() > 0


def test_a_pipeline_of_mixed_keys_gets_its_replies_in_order(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number, key in enumerate(KEYS * 10):
        pipe.set(key, f"{key}={number}")
        pipe.get(key)
        pipe.ping()
    replies = pipe.execute()
    assert replies[1::3] == [f"{key}={number}".encode() for number, key in enumerate(KEYS * 10)]


def test_keys_of_several_hash_slots_in_one_command_get_redis_own_error(client: redis.Redis) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match="hash to the same slot"):
        client.mget(KEYS)
    client.mset(dict.fromkeys(TAGGED, "x"))
    assert client.mget(TAGGED) == [b"x"] * len(TAGGED)


def test_transactions_run_at_the_node_of_their_keys(client: redis.Redis) -> None:
    for number, key in enumerate(KEYS):
        pipe = client.pipeline(transaction=True)
        pipe.set(key, number)
        pipe.incr(key)
        assert pipe.execute() == [True, number + 1]


def test_a_transaction_that_comes_bit_by_bit_finds_its_node(keyfence: Keyfence) -> None:
    with keyfence.connect() as sock, sock.makefile("rb") as stream:
        for key in KEYS[:6]:
            answers = []
            for line in ("MULTI", "PING", f"SET {key} 1", f"INCR {key}"):
                sock.sendall(line.encode() + b"\r\n")
                answers.append(stream.readline())
            assert answers == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 3]
            sock.sendall(b"EXEC\r\n")
            assert b"".join(stream.readline() for _ in range(4)) == b"*3\r\n+PONG\r\n+OK\r\n:2\r\n"


def test_a_transaction_over_several_hash_slots_is_aborted(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=True)
    for key in KEYS:
        pipe.set(key, "never")
    with pytest.raises(redis.exceptions.RedisError):
        pipe.execute()
    assert all(client.get(key) != b"never" for key in KEYS)


def test_watch_holds_at_the_node_of_its_key(client: redis.Redis, keyfence: Keyfence) -> None:
    with keyfence.client() as other:
        for key in KEYS[:6]:
            with client.pipeline() as pipe:
                pipe.watch(key)
                other.set(key, "changed")
                pipe.multi()
                pipe.set(key, "mine")
                with pytest.raises(redis.WatchError):
                    pipe.execute()
            assert client.get(key) == b"changed"


def test_a_key_of_another_node_in_a_watched_transaction_gets_redis_own_error(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    with cluster.client() as direct:
        port = {key: cluster.port_of(direct.keyslot(key)) for key in KEYS[:10]}
    first, other = next((one, two) for one, two in pairwise(port) if port[one] != port[two])
    with keyfence.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(f"WATCH {first}\r\nGET {other}\r\nMULTI\r\nGET {other}\r\nEXEC\r\n".encode())
        answers = stream.readline(), stream.readline()
        assert answers[0] == b"+OK\r\n"
        if answers[1] != b"$-1\r\n":
            stream.readline()
        assert stream.readline() == b"+OK\r\n"
        assert stream.readline() == b"-CROSSSLOT Keys in request don't hash to the same slot\r\n"
        assert stream.readline().startswith(b"-EXECABORT")


def test_a_blocked_client_gets_what_comes(client: redis.Redis, keyfence: Keyfence) -> None:
    with keyfence.client() as other:
        for number in range(4):
            name = f"app:list{number}"
            timer = threading.Timer(0.05, other.rpush, (name, "x"))
            timer.start()
            assert tuple(client.blpop(name, 5)) == (name.encode(), b"x")
            timer.join()


def test_messages_reach_subscribers_at_any_node(keyfence: Keyfence) -> None:
    with contextlib.ExitStack() as stack:
        subscribed = []
        for _ in range(3):
            one = stack.enter_context(keyfence.client().pubsub(ignore_subscribe_messages=True))
            one.subscribe("app:news")
            one.get_message(timeout=5)
            subscribed.append(one)
        with keyfence.client() as client:
            client.publish("app:news", "hello")
        for one in subscribed:
            eventually(partial(received, one, "hello"), "the message comes")


def test_a_subscriber_is_told_that_it_is_served_at_one_node(keyfence: Keyfence) -> None:
    """A repetition would not help, so the error does not ask for one."""
    with keyfence.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(b"HELLO 3\r\nECHO end\r\nSUBSCRIBE app:news\r\n")
        while stream.readline() != b"end\r\n":
            pass
        assert [stream.readline() for _ in range(6)][-1] == b":1\r\n"
        answers = set()
        for key in KEYS[:12]:
            sock.sendall(f"INCR {key}:seen\r\n".encode())
            answers.add(stream.readline())
    assert {answer for answer in answers if not answer.startswith(b":")} == {ELSEWHERE}


def received(one: Any, text: str) -> bool:
    message = one.get_message(timeout=0.1)
    return message is not None and message["data"] == text.encode()


def test_scripts_run_at_the_node_of_their_keys(client: redis.Redis) -> None:
    sha = client.script_load("return {KEYS[1], redis.call('set', KEYS[1], ARGV[1])}")
    for key in KEYS[:6]:
        assert client.evalsha(sha, 1, key, "v")[0] == key.encode()
        assert client.get(key) == b"v"


def test_large_values_go_to_the_node_of_their_key(client: redis.Redis) -> None:
    large = b"x" * 2_500_000
    for key in KEYS[:4]:
        client.set(key, large)
        assert client.get(key) == large
        client.delete(key)


def test_large_values_in_a_pipeline_come_one_after_another(client: redis.Redis) -> None:
    for transaction in (False, True):
        pipe = client.pipeline(transaction=transaction)
        for key in TAGGED[:4]:
            pipe.set(key, "x" * 2_000_000)
        assert pipe.execute() == [True] * 4


def test_a_large_request_of_many_arguments_goes_to_the_node_of_its_key(client: redis.Redis) -> None:
    """A regression: its beginning came in another type, and an internal error ended the client."""
    fields = {f"field{number:06}": "0123456789" for number in range(60_000)}
    key = f"{TAGGED[0]}:hash"
    assert client.hset(key, mapping=fields) == len(fields)
    assert client.hlen(key) == len(fields)
    client.delete(key)
    pairs = {f"{key}:{number:05}": "0123456789" for number in range(60_000)}
    assert client.mset(pairs)
    assert client.delete(*pairs) == len(pairs)


def told(keyfence: Keyfence, *pieces: str) -> list[bytes]:
    """The lines that a client gets, which sends each piece, and then waits for its end."""
    lines = []
    with keyfence.connect() as sock, sock.makefile("rb") as stream:
        for number, piece in enumerate(pieces):
            sock.sendall(f"{piece.replace('; ', CRLF)}{CRLF}ECHO end{number}{CRLF}".encode())
            while (line := stream.readline()) != b"end%d\r\n" % number:
                lines.append(line.removesuffix(b"\r\n"))
    return lines


def test_what_follows_hello_has_its_protocol_at_all_nodes(keyfence: Keyfence) -> None:
    missing = "; ".join(f"GET {key}:missing" for key in KEYS)
    assert told(keyfence, f"HELLO 3; {missing}")[-len(KEYS) - 1 : -1] == [b"_"] * len(KEYS)
    assert told(keyfence, "HELLO 3", f"HELLO 2; {missing}")[-len(KEYS) - 1 : -1] == [b"$-1"] * len(KEYS)


def test_a_client_that_has_left_its_channels_is_served_by_all_nodes(keyfence: Keyfence) -> None:
    with keyfence.client() as other:
        for key in KEYS:
            other.set(key, "x")
        size = other.dbsize()
    lines = told(
        keyfence, "SUBSCRIBE app:news; UNSUBSCRIBE; DBSIZE; " + "; ".join(f"GET {key}" for key in KEYS)
    )
    assert b":%d" % size in lines
    assert lines.count(b"x") == len(KEYS)


def test_a_subscriber_gets_no_half_truths(keyfence: Keyfence) -> None:
    lines = told(keyfence, "HELLO 3", "SUBSCRIBE app:news", "DBSIZE; FLUSHALL; SCAN 0; PING")
    errors = [line for line in lines if line.startswith(b"-")]
    assert [line.partition(b" is not supported here")[0] for line in errors] == [
        *(b"-ERR DBSIZE", b"-ERR FLUSHALL", b"-ERR SCAN"),
    ]
    assert b"+PONG" in lines


def test_a_refused_command_aborts_a_transaction_wherever_it_runs(keyfence: Keyfence) -> None:
    for key in KEYS[:6]:
        with keyfence.connect() as sock, sock.makefile("rb") as stream:
            for line in ("MULTI", "DBSIZE", f"SET {key} aborted", "EXEC"):
                sock.sendall(f"{line}{CRLF}".encode())
                answer = stream.readline()
        assert answer.startswith(b"-EXECABORT")
    with keyfence.client() as client:
        assert all(client.get(key) != b"aborted" for key in KEYS[:6])


def test_what_cannot_be_followed_is_refused_in_observe_too(keyfence: Keyfence) -> None:
    """Behind one address, keyfence must know the keys of each command to find its node."""
    lines = told(
        keyfence, f"MULTI; SET {KEYS[0]} 1; CLIENT REPLY OFF; EXEC", f"SET {KEYS[1]} 2; GET {KEYS[1]}"
    )
    refused = (
        b"-ERR it changes which replies are sent inside MULTI, so keyfence cannot find the nodes of later"
    )
    assert [line[: len(refused)] for line in lines if line != b"$4"] == [
        *(b"+OK", b"+QUEUED", refused, b"-EXECABORT Transaction discarded because of previous errors."),
        *(b"+OK", b"$1", b"2"),
    ]


def test_a_watch_at_another_node_is_refused(keyfence: Keyfence) -> None:
    first, *others = KEYS
    answers = {told(keyfence, f"WATCH {first}", f"WATCH {key}")[2] for key in others}
    assert {answer[:10] for answer in answers} == {b"+OK", b"-CROSSSLOT"}


def test_commands_about_all_keys_ask_all_nodes(client: redis.Redis) -> None:
    assert client.flushall()
    for key in KEYS:
        client.set(key, key)
    every = {key.encode() for key in KEYS}
    assert client.dbsize() == len(KEYS)
    assert set(client.keys("app:*")) == every
    assert set(client.scan_iter(match="app:*", count=3)) == every
    assert client.flushall()
    assert client.dbsize() == 0


def test_a_plain_client_sees_a_redis_without_a_cluster(client: redis.Redis) -> None:
    server = client.info("server")
    assert server.get("server_mode", server.get("redis_mode")) == "standalone"
    assert client.info("cluster")["cluster_enabled"] == 0
    with pytest.raises(redis.ResponseError, match="cluster support disabled"):
        client.execute_command("CLUSTER", "SLOTS")


def test_a_hash_slot_moves_under_load(keyfence: Keyfence, cluster: Cluster) -> None:
    with Load(keyfence, "moves") as load:
        load.goes_on()
        moved_slot(cluster, TAGGED[0], load.goes_on, at_once=6)


def test_the_number_of_connections_does_not_grow_with_transactions(
    keyfence: Keyfence, cluster: Cluster
) -> None:
    def opened() -> int:
        total = 0
        for server in cluster.masters:
            with directly(server) as node:
                total += int(node.info("stats")["total_connections_received"])
        return total

    with keyfence.client() as client:
        for key in KEYS:
            with client.pipeline() as pipe:
                pipe.watch(key)
                pipe.multi()
                pipe.incr(f"{key}")
                pipe.execute()
        before = opened()
        for _ in range(3):
            for key in KEYS:
                with client.pipeline() as pipe:
                    pipe.watch(key)
                    pipe.multi()
                    pipe.incr(key)
                    pipe.execute()
        # keyfence's probes, and those of this test, are connections too.
        assert opened() - before < len(KEYS)


def test_a_replica_takes_over_under_load(keyfence: Keyfence, cluster: Cluster) -> None:
    (replica,) = cluster.replicas
    with Load(keyfence, "failover") as load:
        load.goes_on()
        with directly(replica) as one:
            one.execute_command("CLUSTER", "FAILOVER")
            eventually(lambda: one.info("replication")["role"] == "master", "the replica takes over")
        load.goes_on()


def test_a_primary_is_killed_under_load(keyfence: Keyfence, cluster: Cluster) -> None:
    """Its commands wait until its replica has taken over; those that were under way end their client."""
    first, replica = cluster.masters[0], cluster.replicas[0]
    with directly(replica) as one:
        victim, heir = (replica, first) if one.info("replication")["role"] == "master" else (first, replica)
    with directly(heir) as one:
        eventually(lambda: one.info("replication")["master_link_status"] == "up", "the replica follows")
    with directly(victim) as one:
        pid = one.info("server")["process_id"]
    with Load(keyfence, "killed") as load:
        load.goes_on()
        os.kill(pid, signal.SIGKILL)
        with directly(heir) as one:
            eventually(lambda: one.info("replication")["role"] == "master", "the replica takes over")
        load.goes_on()


def test_a_dead_master_without_a_replica_is_told_and_ends_no_client(tmp_path: Path) -> None:
    with running_cluster(settings={"cluster-node-timeout": 1000}) as cluster:
        config = CONFIG.format(seed=cluster.masters[0].port)
        with (
            keyfence_with(tmp_path, POLICY, config) as keyfence,
            keyfence.client(single_connection_client=True) as client,
        ):
            assert (status_of(keyfence)["slots"], client.dbsize()) == (SLOTS, 0)
            assert {one["announced"] for one in nodes(keyfence)} == {None}
            dead, number = cluster.masters[2], client.client_id()
            dead.kill()
            for _ in range(2):  # at once, and once the cluster knows
                with pytest.raises(redis.exceptions.ClusterDownError, match="a node of the cluster"):
                    client.dbsize()
                eventually(lambda: status_of(keyfence)["slots"] < SLOTS, "the cluster holds it for dead")
            assert client.client_id() == number, "it is the same connection"
            assert f"127.0.0.1:{dead.port} is down, and so are its 5,462 hash slots" in keyfence.stderr()
