"""Redis is asked in time, in the right database and in batches. A missing answer causes no violation."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Peer
from keyfence.process.serving.ttl_check import BATCH, TtlWatch
from keyfence.telemetry.telemetry import Telemetry
from keyfence.upstream.address import UpstreamAddress
from keyfence.upstream.health import Upstream
from tests.servers import Keyfence, RedisServer, running_redis

POLICY = parse_policy(
    """
policy: late
services: [one, two]
placeholders: {id: "[0-9]{1,6}"}
scopes: {all: {prefix: "k:", writers: [one, two]}}
keys: {must: {key: "k:<id>", ttl: {max: 100s}}}
"""
)

SIZES = parse_policy(
    """
policy: sizes
services: [one, two]
scopes: {all: {prefix: "k:", writers: [one, two], max_value: 6b, max_fields: 2, max_members: 2}}
keys:
  string: {key: "k:string", type: string}
  hash: {key: "k:hash", type: hash}
  any: {key: "k:any"}
  other: {key: "k:other"}
"""
)

LOCKS = parse_policy(
    """
policy: locks
services: [one, two]
placeholders: {id: "[0-9]{1,6}"}
scopes: {all: {prefix: "k:", writers: [one, two]}}
keys: {lock: {key: "k:<id>", type: string, ttl: {max: 100s}}}
unregistered_scripts: declared
"""
)


def asker(service: int, database: int = 0, *, address: str = "10.0.0.1:5") -> Asker:
    return Asker(service, database=database, peer=Peer(address))


class Bench:
    """A table, its watch and an authorizer, with a clock that the test sets."""

    def __init__(
        self,
        address: UpstreamAddress,
        *,
        modes: Modes | None = None,
        limit: int = 10_000,
        policy: CompiledPolicy = POLICY,
    ) -> None:
        self.now = 0.0
        self.table = PendingTtls(limit, lambda: self.now)
        self.telemetry = Telemetry()
        self.upstream = Upstream(address, connect_timeout=5.0)
        self.failures: list[str] = []
        self.errors: list[Exception] = []
        self.watch = TtlWatch(
            self.table, self.upstream, self.telemetry, self.failures.append, self.errors.append
        )
        self.authorizer = Authorizer(policy, modes or Modes((), policy.services), pending=self.table)

    def hset(self, key: str, database: int = 0) -> None:
        self.authorizer.authorize(asker(0, database), [b"HSET", key.encode(), b"f", b"v"])

    def send(self, service: int, command: str, database: int = 0) -> None:
        self.authorizer.authorize(asker(service, database), command.encode().split())

    @property
    def late(self) -> dict[str, int]:
        return {
            f"{service} {rule} {command} {action}": number
            for (service, rule, command, _, action), number in self.telemetry.counters.violations.items()
        }

    @property
    def unanswered(self) -> int:
        return self.telemetry.counters.pending_ttl_unanswered


def at(server: RedisServer, **options: str) -> UpstreamAddress:
    return UpstreamAddress("unix", path=str(server.socket_path), shown="redis", **options)


@contextlib.contextmanager
def looking(bench: Bench) -> Iterator[Callable[[], None]]:
    """Checks the due keys in an event loop of its own."""
    with asyncio.Runner() as runner:

        def look() -> None:
            runner.run(bench.watch.look())

        try:
            yield look
        finally:
            bench.watch.close()
            runner.run(asyncio.sleep(0))


def test_a_key_without_a_time_to_live_is_reported_with_its_writer(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server))
    with redis_server.client() as client, looking(bench) as look:
        client.hset("k:1", "f", "v")
        client.hset("k:2", "f", "v")
        client.expire("k:2", 60)
        for key in ("k:1", "k:2", "k:3"):
            bench.hset(key)
        bench.now = 4.9
        look()
        assert bench.late == {}
        bench.now = 5.0
        look()
        assert bench.late == {"one ttl.required HSET late": 1}
        (row,) = bench.telemetry.tally.snapshot()
        assert (row["example"], row["entry"]) == ("k:1", "must")
        assert len(bench.table) == 0
        assert bench.unanswered == 0


def test_each_key_is_asked_for_in_its_database(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server))
    with redis_server.client(db=3) as client, looking(bench) as look:
        client.hset("k:1", "f", "v")
        for database in (3, 0, 7, 3):
            bench.hset("k:1", database)
        bench.now = 5.0
        look()
        assert bench.late == {"one ttl.required HSET late": 1}
        client.hset("k:2", "f", "v")
        bench.hset("k:2", 3)
        bench.hset("k:2", 0)
        bench.now = 10.0
        look()
        assert bench.late == {"one ttl.required HSET late": 2}


def test_after_a_failover_the_new_primary_is_asked() -> None:
    """The former one may go on, and believe that it is the primary."""
    with running_redis(tcp=True) as former, running_redis(tcp=True) as new:
        assert former.port is not None
        assert new.port is not None
        bench = Bench(UpstreamAddress("tcp", "127.0.0.1", former.port, shown="redis"))
        with former.client() as there, new.client() as here, looking(bench) as look:
            there.hset("k:1", "f", "v")
            here.hset("k:2", "f", "v")
            bench.hset("k:1")
            bench.now = 5.0
            look()
            assert bench.late == {"one ttl.required HSET late": 1}
            bench.upstream.move("127.0.0.1", new.port, "the test")
            bench.hset("k:2")
            bench.now = 10.0
            look()
            assert bench.late == {"one ttl.required HSET late": 2}


UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def test_an_unlock_script_causes_no_violation_for_the_key_that_it_removed(redis_server: RedisServer) -> None:
    """Another client creates the key again: with a late check, with one at once, or unseen by keyfence."""
    again = {"SETNX": ["SETNX", "k:1", "w"], "SET": ["SET", "k:1", "w"], "unseen": []}
    for name, command in again.items():
        bench = Bench(at(redis_server), policy=LOCKS)
        with redis_server.client() as client, looking(bench) as look:
            client.flushall()
            sha1 = client.script_load(UNLOCK)
            client.set("k:1", "token", nx=True, px=30_000)
            bench.authorizer.authorize(
                asker(0, address="c"), [b"EVALSHA", sha1.encode(), b"1", b"k:1", b"token"]
            )
            assert client.evalsha(sha1, 1, "k:1", "token") == 1
            bench.now += 0.3
            look()
            client.set("k:1", "w")
            if command:
                bench.authorizer.authorize(asker(1, address="d"), [word.encode() for word in command])
            for _ in range(20):
                bench.now += 1.0
                look()
        assert bench.late == ({"two ttl.required SETNX late": 1} if name == "SETNX" else {}), name


def test_a_script_that_leaves_its_key_without_a_time_to_live_is_reported(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server), policy=LOCKS)
    with redis_server.client() as client, looking(bench) as look:
        client.set("k:1", "other's")
        sha1 = client.script_load(UNLOCK)
        unlock = [b"EVALSHA", sha1.encode(), b"1", b"k:1", b"token"]
        bench.authorizer.authorize(asker(0, address="c"), unlock)
        assert client.evalsha(sha1, 1, "k:1", "token") == 0
        for now in (0.3, 5.0):
            bench.now = now
            look()
    assert bench.late == {"one ttl.required EVALSHA late": 1}


def test_many_keys_are_asked_for_in_batches(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server))
    with redis_server.client() as client, looking(bench) as look:
        client.hset("k:7", "f", "v")
        for number in range(5 * BATCH + 1):
            bench.hset(f"k:{number}")
        bench.now = 5.0
        look()
        assert bench.late == {"one ttl.required HSET late": 1}
        assert (len(bench.table), bench.unanswered) == (0, 0)


def test_a_key_that_grew_too_large_is_reported_with_its_last_writer(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server), policy=SIZES)
    with redis_server.client() as client, redis_server.client(db=3) as third, looking(bench) as look:
        client.append("k:string", "1234567")
        client.hset("k:hash", mapping={"f": "1", "g": "1"})
        third.rpush("k:any", 1, 2, 3)
        for _ in range(3):
            bench.send(0, "APPEND k:string 1234")
        bench.send(0, "HSET k:hash f v")
        bench.send(0, "RENAME k:other k:any", database=3)  # of no type that is known
        bench.now = 1.0
        bench.send(1, "SADD k:any a", database=3)  # which Redis has refused: it is a list
        bench.now = 4.9
        look()
        assert bench.late == {}
        bench.now = 5.0
        look()
        assert bench.late == {"one value.size APPEND late": 1}
        (row,) = bench.telemetry.tally.snapshot()
        assert (row["example"], row["entry"]) == ("k:string", "string")
        bench.now = 10.0
        look()
        assert bench.late == {"one value.size APPEND late": 1, "one key.members RENAME late": 1}
        assert len(bench.table.sizes) == 0
        assert bench.telemetry.counters.pending_size_unanswered == 0


def test_sizes_that_redis_does_not_return_cause_no_violation(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["default on nopass ~* +@all -strlen"])
    bench = Bench(at(server), policy=SIZES)
    with server.client() as client, looking(bench) as look:
        client.append("k:string", "1234567")
        client.rpush("k:any", 1, 2, 3)
        bench.send(0, "APPEND k:string 1234")
        bench.send(0, "RPUSH k:any 3")
        bench.now = 5.0
        look()
        assert bench.late == {"one key.members RPUSH late": 1}
        assert bench.telemetry.counters.pending_size_unanswered == 1
        assert len(bench.failures) == 1
        assert "strlen" in bench.failures[0]
        server.kill()
        bench.send(0, "RPUSH k:any 3")
        bench.now = 10.0
        look()
        assert bench.telemetry.counters.pending_size_unanswered == 2
        assert len(bench.table.sizes) == 0


def test_sizes_without_room_are_counted(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server), policy=SIZES, limit=2)
    with looking(bench) as look:
        for database in range(5):
            bench.send(0, "RPUSH k:any 3", database=database)
        look()
        look()
        assert bench.telemetry.counters.pending_size_dropped == 3


def test_keys_without_room_are_counted(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server), limit=2)
    with looking(bench) as look:
        for number in range(5):
            bench.hset(f"k:{number}")
        look()
        look()
        assert bench.telemetry.counters.pending_ttl_dropped == 3
        assert [pending.key for pending in bench.table] == [b"k:3", b"k:4"]


def test_a_late_verdict_is_late_in_enforce_too_and_heeds_modes_and_waivers(redis_server: RedisServer) -> None:
    rules = (ModeRule("disabled", "ttl.required", "two"), ModeRule("enforce"))
    modes = Modes(rules, POLICY.services, [Waiver("one", "ttl.required", "must", "INCR")])
    bench = Bench(at(redis_server), modes=modes)
    with redis_server.client() as client, looking(bench) as look:
        client.mset({"k:1": "1", "k:2": "1", "k:3": "1"})
        bench.hset("k:1")
        bench.authorizer.authorize(asker(0, address="c"), [b"INCR", b"k:2"])
        bench.authorizer.authorize(asker(1, address="c"), [b"INCR", b"k:3"])
        bench.now = 5.0
        look()
        assert bench.late == {"one ttl.required HSET late": 1, "one ttl.required INCR waived": 1}


def test_an_unreachable_server_causes_no_violation(tmp_path: object) -> None:
    bench = Bench(UpstreamAddress("unix", path=f"{tmp_path}/none", shown="redis"))
    with looking(bench) as look:
        bench.hset("k:1")
        bench.hset("k:2")
        bench.now = 5.0
        look()
        assert (bench.late, bench.unanswered, len(bench.table)) == ({}, 2, 0)
        assert bench.failures == ["no such file or directory"]


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}], ids=["none", "wrong"])
def test_a_server_that_requires_credentials_causes_no_violation(
    options: dict[str, str], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(password="secret")
    bench = Bench(at(server, **options))
    with server.client() as client, looking(bench) as look:
        client.hset("k:1", "f", "v")
        for number in (1, 2):
            bench.hset("k:1")
            bench.now += 5.0
            look()
            assert (bench.late, bench.unanswered) == ({}, number)
        assert len(bench.failures) == 1
        assert "secret" not in bench.failures[0]


def test_a_lost_connection_is_opened_again(fresh_redis: RedisServer) -> None:
    bench = Bench(at(fresh_redis))
    with fresh_redis.client() as client, looking(bench) as look:
        client.hset("k:1", "f", "v")
        bench.hset("k:1")
        bench.now = 5.0
        look()
        assert bench.late == {"one ttl.required HSET late": 1}
        client.client_kill_filter(_type="normal", skipme=True)
        for _ in range(2):  # one that is asked before the loss is noticed stays unanswered
            bench.hset("k:1")
            bench.now += 5.0
            look()
        assert bench.late["one ttl.required HSET late"] + bench.unanswered == 3
        assert bench.late["one ttl.required HSET late"] >= 2


class _Babble(asyncio.Protocol):
    """Replies to everything with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, _data: bytes) -> None:
        self.transport.write(self.answer)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400\r\n",
        b"*1000000000\r\n",
        b":1x\r\n",
        b":" + b"1" * 100_000,
        b":" + b"1" * 9_000 + b"\r\n",
        b":1\r\n:2\r\n",
        b"-LOADING wait\r\n",
    ],
)
def test_an_invalid_answer_causes_no_violation(answer: bytes, tmp_path: object) -> None:
    async def asked() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: _Babble(answer), f"{tmp_path}/s")
        bench = Bench(UpstreamAddress("unix", path=f"{tmp_path}/s", shown="redis"))
        bench.hset("k:1")
        bench.now = 5.0
        await bench.watch.look()
        assert (bench.late, bench.unanswered, len(bench.failures)) == ({}, 1, 1)
        bench.watch.close()
        server.close()
        await server.wait_closed()

    asyncio.run(asked())


def test_a_silent_server_causes_no_violation(fresh_redis: RedisServer) -> None:
    bench = Bench(at(fresh_redis))
    bench.upstream.connect_timeout = 0.2
    with looking(bench) as look:
        fresh_redis.pause()
        try:
            bench.hset("k:1")
            bench.now = 5.0
            look()
        finally:
            fresh_redis.resume()
        assert (bench.late, bench.unanswered, bench.failures) == ({}, 1, ["timed out"])


def test_an_internal_fault_is_counted_and_checks_go_on(redis_server: RedisServer) -> None:
    bench = Bench(at(redis_server))

    async def watched() -> None:
        bench.hset("k:1")
        bench.now = "no time at all"  # type: ignore[assignment]
        task = asyncio.ensure_future(bench.watch.watch_forever())
        while not bench.errors:
            await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(watched())
    assert bench.telemetry.counters.internal_errors == {"late": 1}


def test_a_running_keyfence_reports_late_violations(
    fresh_redis: RedisServer, tmp_path: object, start_keyfence: Callable[..., Keyfence]
) -> None:
    policy = f"{tmp_path}/p.yaml"
    with open(policy, "w", encoding="utf-8") as file:
        file.write(
            "policy: p\nservices: [one]\nscopes: {all: {prefix: 'k:', writers: [one]}}\n"
            "keys: {a: {key: 'k:a', ttl: {max: 100s, grace: 100ms}}, b: {key: 'k:b', ttl: {max: 100s}}}\n"
        )
    log = f"{tmp_path}/decisions.log"
    keyfence = start_keyfence(
        "--policy", policy, "--upstream", fresh_redis.url, "--listen", "127.0.0.1:0", "--service", "one",
        "--mode", "enforce", "--decision-log", log, "--admin", "127.0.0.1:0",
    )  # fmt: skip
    with keyfence.client() as client:
        client.hset("k:a", "f", "v")
        with client.pipeline() as pipeline:
            pipeline.hset("k:b", "f", "v")
            pipeline.expire("k:b", 60)
            pipeline.execute()
    late: list[dict[str, object]] = []
    while not late:
        with open(log, encoding="utf-8") as file:
            told = [json.loads(line) for line in file.read().split("\n")[:-1]]
        late = [one for one in told if one["action"] == "late"]
    (one,) = late
    assert (one["rule"], one["command"], one["key"]) == ("ttl.required", "HSET", "k:a")
    assert not [one for one in told if one.get("key") == "k:b"]


def test_a_running_keyfence_reports_a_lock_without_a_time_to_live_but_not_its_unlock_script(
    fresh_redis: RedisServer, tmp_path: Path, start_keyfence: Callable[..., Keyfence]
) -> None:
    """On shared and dedicated connections, in pipelines and alone."""
    sha1 = hashlib.sha1(UNLOCK.encode()).hexdigest()
    policy = tmp_path / "p.yaml"
    keys = "".join(f"{name}: {{key: 'k:{name}', ttl: {{max: 100s, grace: 1s}}}}, " for name in "abcd")
    policy.write_text(
        f"policy: p\nservices: [one]\nscopes: {{all: {{prefix: 'k:', writers: [one]}}}}\nkeys: {{{keys}}}\n"
        f"scripts: {{unlock: {{sha1: {sha1}, keys: 1, declared: both, shared: yes}}}}\n"
    )
    log = tmp_path / "decisions.log"
    keyfence = start_keyfence(
        "--policy", policy, "--upstream", fresh_redis.url, "--listen", "127.0.0.1:0", "--service", "one",
        "--mode", "enforce", "--decision-log", log, "--admin", "127.0.0.1:0",
    )  # fmt: skip
    with keyfence.client() as client, keyfence.client() as own, keyfence.client() as other:
        client.script_load(UNLOCK)
        own.client_setname("own")
        for name in "abc":
            client.set(f"k:{name}", "token", nx=True, px=30_000)
        client.evalsha(sha1, 1, "k:a", "token")
        own.evalsha(sha1, 1, "k:b", "token")
        with client.pipeline(transaction=False) as pipeline:
            pipeline.evalsha(sha1, 1, "k:c", "token")
            pipeline.evalsha(sha1, 1, "k:c", "token")
            pipeline.execute()
        for name in "abc":
            assert other.setnx(f"k:{name}", "1") == 1
        other.setnx("k:d", "1")
        told: set[tuple[str, str]] = set()
        while len({key for key, _ in told}) < 4:
            time.sleep(0.05)
            lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []
            told = {(one["key"], f"{one['rule']} {one['command']} {one['action']}") for one in lines}
    assert told == {(f"k:{name}", "ttl.required SETNX late") for name in "abcd"}


def test_a_running_keyfence_refuses_large_writes_and_reports_keys_that_grew_too_large(
    fresh_redis: RedisServer, tmp_path: Path, start_keyfence: Callable[..., Keyfence]
) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text(
        "policy: p\nservices: [one]\n"
        "scopes: {all: {prefix: 'k:', writers: [one], max_value: 2mb, unregistered: allow}}\n"
        "keys: {h: {key: 'k:h', type: hash, max_fields: 2}}\n"
    )
    log = tmp_path / "decisions.log"
    keyfence = start_keyfence(
        "--policy", policy, "--upstream", fresh_redis.url, "--listen", "127.0.0.1:0", "--service", "one",
        "--mode", "enforce", "--decision-log", log, "--admin", "127.0.0.1:0",
    )  # fmt: skip
    with keyfence.client() as client, fresh_redis.client() as direct:
        client.set("k:s", "x" * 2_097_152)
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"value\.size"):
            client.set("k:s", "x" * 2_097_153)
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"value\.size"):
            client.hset("k:h", "f", "x" * 3_000_000)
        with pytest.raises(redis.exceptions.NoPermissionError, match=r"key\.members"):
            client.hset("k:h", mapping={"a": "1", "b": "1", "c": "1"})
        assert (direct.strlen("k:s"), direct.exists("k:h")) == (2_097_152, 0)
        for field in "abc":
            assert client.hset("k:h", field, "1") == 1
        late: list[dict[str, object]] = []
        while not late:
            time.sleep(0.05)
            lines = [json.loads(line) for line in log.read_text().split("\n")[:-1]]
            late = [one for one in lines if one["action"] == "late"]
    (one,) = late
    assert (one["rule"], one["command"], one["key"]) == ("key.members", "HSET", "k:h")
    assert str(one["message"]).startswith("k:h has 3 fields 5s after HSET")
