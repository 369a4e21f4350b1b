"""Late findings for random sequences of commands.

Rule: a key is reported exactly if Redis says that it breaks its rule. Each sequence is authorized in observe
mode, so that every command runs: on a model with its own clock, in which times to live run out, and on real
servers.
"""

from __future__ import annotations

import shlex
from typing import Any, Protocol

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.authoring.keyspace_model import Keyspace
from keyfence.commands.extract import extract
from keyfence.policy.enforcement.modes import Modes
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Finding, Peer
from tests.commands.conftest import Live
from tests.servers import RedisServer

POLICY = parse_policy(
    """
policy: late
services: [one]
placeholders: {id: "[0-9]"}
scopes: {all: {prefix: "k:", writers: [one]}}
keys:
  must: {key: "k:must:<id>", ttl: {max: 100s}}
  none: {key: "k:none:<id>", ttl: none}
  may: {key: "k:may:<id>", ttl: {or_none: true, max: 100s}}
  write: {key: "k:write:<id>", ttl: {max: 100s, at: write}}
unregistered_scripts: declared
"""
)
GRACE = 5.0
KEYS = [f"k:{kind}:{number}" for kind in ("must", "none", "may", "write") for number in "12"]
START = 2_000_000_000  # Unix seconds at which the model's clock begins

# k and j stand for keys; long exceeds the policy's max, short does not.
COMMANDS = """
SET k v; SET k v EX short; SET k v EX long; SET k v KEEPTTL; SET k v NX; SET k v XX; SET k v NX EX short
SET k v XX PX long000; SETNX k v; SETEX k short v; GETSET k v; MSET k v j v; GETEX k EX short
GETEX k PERSIST; PERSIST k; EXPIRE k short; EXPIRE k long; EXPIRE k -1; EXPIREAT k 1
EXPIREAT k 1000000000; SET k v EXAT 1000000000; DEL k; UNLINK k j; GETDEL k; RENAME k j; RENAMENX k j
COPY k j; COPY k j REPLACE; INCR k; APPEND k 1; SETRANGE k 0 1; HSET k f v; HSET k f v g w; SADD k m
SADD j m; SUNIONSTORE k j; SINTERSTORE k j; SORT j STORE k; LPUSH k 1; ZADD k 1 m; ZUNIONSTORE k 1 j
BITOP NOT k j; GET k; TTL k; TYPE k
"""
OF_REDIS_7 = """
EXPIRE k short NX; EXPIRE k short XX; EXPIRE k short GT; EXPIRE k short LT; EXPIRE k long NX; EXPIRE k long XX
EXPIRE k long GT; EXPIRE k long LT; PEXPIRE k short000 NX
"""
SCRIPTS = """
EVAL "return redis.call('SET', KEYS[1], '1')" 1 k; EVAL "return redis.call('EXPIRE', KEYS[1], 300)" 1 k
EVAL "return redis.call('GET', KEYS[1])" 1 k; COPY k j DB 1; MOVE k 1; HDEL k f; LPOP k; SREM k m; SPOP k
"""


class World(Protocol):
    """A place where commands run and PTTL is asked. The selected database is 0."""

    def run(self, client: str, argv: list[bytes]) -> None: ...
    def left(self, database: int, key: bytes) -> int: ...
    def pass_time(self, seconds: float) -> None: ...
    def now(self) -> float: ...


class Model:
    """A dict of keys with their expiry times. Commands in a transaction run at its EXEC."""

    def __init__(self) -> None:
        self.clock = float(START)
        self.keys = Keyspace()
        self.queued: dict[str, list[list[bytes]]] = {}

    def run(self, client: str, argv: list[bytes]) -> None:
        if argv == [b"MULTI"]:
            self.queued[client] = []
        elif argv in ([b"EXEC"], [b"DISCARD"]):
            for one in self.queued.pop(client):
                if argv == [b"EXEC"]:
                    self.keys.run(extract(one), int(self.clock * 1000))
        elif client in self.queued:
            self.queued[client].append(argv)
        else:
            self.keys.run(extract(argv), int(self.clock * 1000))

    def left(self, database: int, key: bytes) -> int:
        return -2 if database else self.keys.pttl(key, int(self.clock * 1000))

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        return self.clock


class Real:
    """A real server. Its clock does not follow the table's, so no time to live runs out in it."""

    def __init__(self, server: RedisServer) -> None:
        self.clock = float(START)
        self.server = server
        self.links = {
            name: Live(str(server.socket_path), server.version) for name in ("here", "there", "watch")
        }
        self.links["watch"]("FLUSHALL")

    def run(self, client: str, argv: list[bytes]) -> None:
        self.links[client](*argv)

    def left(self, database: int, key: bytes) -> int:
        self.links["watch"]("SELECT", database)
        return int(self.links["watch"]("PTTL", key))

    def pass_time(self, seconds: float) -> None:
        self.clock += seconds

    def now(self) -> float:
        return self.clock

    def close(self) -> None:
        for link in self.links.values():
            link.connection.disconnect()


def breaks(key: bytes, left: int) -> bool:
    """Whether a key with this PTTL breaks its rule, by a naive reading of the policy."""
    kind = key.split(b":")[1]
    if left == -2:
        return False
    if kind == b"none":
        return left != -1
    return left > 100_000 or (left == -1 and kind != b"may")


class Watched:
    """A world behind an authorizer, with the questions that follow later."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table = PendingTtls(clock=world.now)
        self.authorizer = Authorizer(
            POLICY, Modes((), POLICY.services), clock=lambda: START, pending=self.table
        )
        self.transactions: dict[str, tuple[Transaction, set[tuple[int, bytes]]]] = {}
        # Keys reported since they were last correct.
        self.reported: set[tuple[int, bytes]] = set()

    def do(self, client: str, argv: list[bytes]) -> None:
        transaction, reported = self.transactions.get(client, (None, self.reported))
        asker = Asker(0, peer=Peer(client), transaction=transaction)
        ruling, evaluation = self.authorizer.authorize(asker, argv)
        touches = evaluation.touches
        database = touches.databases[0][1] if touches.databases else 0
        for violation, action in ruling.findings:
            assert action == "observed"
            assert violation.key is not None, violation
            assert violation.rule.startswith("ttl.")
            reported |= {(0, violation.key), (database, violation.key)}
        if argv == [b"MULTI"]:
            self.transactions[client] = (Transaction(), set())
        elif argv in ([b"EXEC"], [b"DISCARD"]):
            _, queued = self.transactions.pop(client)
            self.reported |= queued if argv == [b"EXEC"] else set()
        self.world.run(client, argv)
        self.forgive()

    def forgive(self) -> None:
        self.reported = {
            (number, key) for number, key in self.reported if breaks(key, self.world.left(number, key))
        }

    def ask(self) -> list[Finding]:
        """Asks about all keys that are due."""
        late: list[Finding] = []
        for pending in self.table.due():
            left = self.world.left(pending.database, pending.key)
            if self.table.answer(pending, left):
                (finding,) = pending.findings(left)
                assert finding.action == "late"
                assert breaks(pending.key, left), (finding, left)
                self.reported.add((pending.database, pending.key))
                late.append(finding)
        return late

    def settle(self) -> None:
        """Lets every grace time pass, including the second one after a later write."""
        for _ in range(3):
            self.world.pass_time(GRACE)
            self.ask()
        assert len(self.table) == 0
        self.forgive()
        silent = {
            (number, key)
            for number in (0, 1)
            for key in map(str.encode, KEYS)
            if breaks(key, self.world.left(number, key)) and (number, key) not in self.reported
        }
        assert silent == set()


def parsed(text: str) -> list[str]:
    return [command.strip() for command in text.replace("\n", ";").split(";") if command.strip()]


def words(command: str, key: str, other: str) -> list[bytes]:
    found = []
    for word in shlex.split(command):
        word = {"k": key, "j": other}.get(word, word)
        found.append(word.replace("short", "60").replace("long", "300").encode())
    return found


@st.composite
def sequences(draw: st.DrawFn, commands: list[str]) -> list[Any]:
    """Steps: (client, argv) or seconds that pass. Few commands and keys are used, so that they interact."""
    some = draw(st.lists(st.sampled_from(commands), min_size=2, max_size=5, unique=True))
    keys = st.sampled_from(draw(st.lists(st.sampled_from(KEYS), min_size=2, max_size=2, unique=True)))
    argv = st.builds(words, st.sampled_from(some), keys, keys)
    ends = st.sampled_from([[b"MULTI"], [b"EXEC"], [b"DISCARD"]])
    client = st.sampled_from(["here", "there"])
    command = st.tuples(client, argv)
    passing = st.sampled_from([0.1, 4.0, 5.0, 8.0])
    odd = st.tuples(client, ends) if draw(st.booleans()) else passing
    return draw(st.lists(command | command | command | odd | passing, min_size=1, max_size=12))


def play(world: World, sequence: list[Any]) -> None:
    watched = Watched(world)
    for step in sequence:
        if isinstance(step, float):
            if not watched.transactions:  # the clock of a command starts when it is queued
                world.pass_time(step)
                watched.ask()
            continue
        client, argv = step
        within = client in watched.transactions
        if (argv == [b"MULTI"] and within) or (argv in ([b"EXEC"], [b"DISCARD"]) and not within):
            continue
        watched.do(client, argv)
    for client in list(watched.transactions):
        watched.do(client, [b"EXEC"])
    watched.settle()


@given(sequences(parsed(COMMANDS + OF_REDIS_7)))
@settings(max_examples=500)
def test_a_key_in_the_model_is_reported_exactly_if_it_breaks_its_rule(sequence: list[Any]) -> None:
    play(Model(), sequence)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_key_on_a_server_is_reported_exactly_if_it_breaks_its_rule(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    newer = OF_REDIS_7 if redis_server.version_info >= (7,) else ""
    sequence = data.draw(sequences(parsed(COMMANDS + SCRIPTS + newer)))
    world = Real(redis_server)
    try:
        play(world, sequence)
    finally:
        world.close()
