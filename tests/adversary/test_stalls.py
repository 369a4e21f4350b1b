"""A search for requests that stop the event loop.

The class: work for one client that no turn ends. Whatever a client sends, none of the loop's calls into its
session may take long. The time is the thread's own, so other processes do not count. A call counts as long
only if it is long in each of three runs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from keyfence import _compiled
from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import load_policy
from keyfence.process.serving.command_recorder import Recorder
from keyfence.process.serving.garbage import without_collections
from keyfence.resp.encode import command
from keyfence.session.conversation import base
from keyfence.session.session import Session
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.telemetry import Telemetry
from tests.adversary.conftest import Search

TURN = 0.002  # seconds, as outside of tests
# Seconds that one call may take. Interpreted modules take several times as long.
LONGEST = 0.020 if all(_compiled.status().values()) else 0.1
READ = 256_000  # bytes, as the event loop reads
SIZE = 1_500_000  # bytes of one attempt
STEPS = 400  # calls of one run, after which the rest is left out

POLICY = load_policy(Path(__file__).parents[2] / "benchmarks" / "hostile.yaml")
KEYS = (
    *("bench:bad:item:{}", "bench:bad:route:{}", "bench:bad:session:{}", "bench:good:{}"),
    *("other:{}", "old:{}", "{}:x:{}"),
)
WORDS = (
    *("x", "1", "no:{}", "HostIP", "EX", "*", "$", "MATCH", "STORE", "BY"),
    *("a*b*[^c]?d*", "bench:bad:*", "", "v" * 300),
    *("NX", "FNX", "COUNT", "COPY", "NOMKSTREAM", "GET", "KEEPTTL", "1-1"),
)
NAMES = (
    *("GET", "SET", "SETEX", "MGET", "MSET", "DEL", "HSET", "HDEL", "EXPIRE", "SADD", "ZADD", "XADD"),
    *("EVAL", "EVALSHA", "FCALL", "KEYS", "SCAN", "SORT", "PUBLISH", "SUBSCRIBE", "PSUBSCRIBE", "LPUSH"),
    *("MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH", "AUTH", "HELLO", "SELECT", "CLIENT", "CONFIG"),
    *("PING", "ECHO", "OBJECT", "BLPOP", "ZUNIONSTORE", "GEORADIUS", "FROBNICATE", "COMMAND"),
    *("GEOADD", "XREAD", "XREADGROUP", "XCLAIM", "HSETEX", "MSETEX", "MIGRATE", "BITFIELD", "RESTORE"),
    *("COPY", "RENAME", "PFCOUNT", "LMPOP", "SINTERCARD", "MEMORY", "DEBUG", "ACL", "FLUSHALL"),
)


def requests(rng: random.Random) -> bytes:
    """A stream of a few kinds of requests: many small ones, or a few large ones."""
    kinds = [one_request(rng) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
    pieces: list[bytes] = []
    size = 0
    while size < SIZE:
        piece = rng.choice(kinds)()
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def one_request(rng: random.Random) -> Callable[[], bytes]:
    """Makes requests of one kind, which differ in a number."""
    form = rng.choice(["command"] * 6 + ["inline", "blank", "transaction"])
    if form == "blank":
        return lambda: rng.choice([b"\r\n", b"*0\r\n", b"*-1\r\n"]) * 100
    if form == "inline":
        line = rng.choice(["PING", "frobnicate x", 'SET bench:bad:item:1 "a b"', "GET other:1", "'a"])
        return lambda: line.encode() + b"\r\n"
    if form == "transaction":
        inner = command(rng.choice(NAMES), rng.choice(KEYS).format(1, 2)) * rng.choice([0, 1, 30])
        end = command(rng.choice(["EXEC", "DISCARD", "MULTI"]))
        return lambda: command("MULTI") + inner + end
    name, count = rng.choice(NAMES), rng.choice([0, 1, 2, 3, 5, 20, 250, 3_000, 100_000])
    given = [rng.choice([*KEYS, *KEYS, *WORDS]) for _ in range(rng.choice([1, 2, 3]))]
    head = [rng.choice([*WORDS, "2", "100000"]) for _ in range(rng.choice([0, 0, 1, 2]))]

    def made() -> bytes:
        number = rng.randrange(1_000_000)
        rest = [given[at % len(given)].format(number + at, at) for at in range(count)]
        return command(name, *head, *rest)

    return made


class Run:
    """One stream through a session, with Redis' replies."""

    def __init__(self, policy: CompiledPolicy, rng: random.Random, folder: Path) -> None:
        self.longest = 0.0
        self.at = ""
        modes = Modes((ModeRule(rng.choice(["observe", "enforce"])),), policy.services)
        candidate = None
        telemetry = Telemetry.to(str(folder / "log") if rng.random() < 0.5 else None)
        if rng.random() < 0.3:
            beside = Authorizer(policy, Modes((ModeRule("enforce"),), policy.services))
            candidate = Candidate(beside, Changes(1, telemetry.counters))
        if rng.random() < 0.3:
            telemetry.recorder = Recorder(str(folder / "recorded"))
        self.telemetry = telemetry
        authorizer = Authorizer(policy, modes, pending=PendingTtls(), candidate=candidate)
        self.one = Session(
            InForce(authorizer),
            make_resolver(frozenset(policy.services)),
            "bad",
            "10.0.0.9:5",
            telemetry,
        )

    def go(self, stream: bytes) -> None:
        one, sent = self.one, 0
        for _ in range(STEPS):
            if one.outlet.closing:
                break
            if one.wants_turn:
                self._timed("take_turn", one.take_turn)
            elif sent < len(stream) and one.wants_input():
                piece, sent = stream[sent : sent + READ], sent + READ
                one.turn_ends = 0.0
                self._timed("from_client", one.from_client, piece)
            elif one.question is not None:
                question, one.question = one.question, None
                one.turn_ends = 0.0
                self._timed("answered", question.answered, None)
            elif one.outstanding:
                one.turn_ends = 0.0
                self._timed("from_upstream", one.from_upstream, b"+OK\r\n" * min(one.outstanding, 1_000))
            else:
                break
            for chunks in (one.to_client, one.to_upstream, one.counts):
                chunks.clear()
            one.reopen = False
        self._timed("flush", self.telemetry.flush)
        self.telemetry.close()

    def _timed(self, name: str, call: Callable[..., object], *arguments: Any) -> None:
        start = time.thread_time()
        call(*arguments)
        took = time.thread_time() - start
        if took > self.longest:
            self.longest, self.at = took, name


def runs(policy: CompiledPolicy, seed: int, folder: Path) -> Iterator[Run]:
    """Runs of the same stream and settings."""
    while True:
        rng = random.Random(seed)
        stream = requests(rng)
        with tempfile.TemporaryDirectory(dir=folder) as own:
            run = Run(policy, rng, Path(own))
            with without_collections():
                run.go(stream)
        yield run


def shortest(found: Iterator[Run], most: int) -> Run:
    """The best of a few runs; no more than one if that is fast."""
    best = next(found)
    for _ in range(most - 1):
        if best.longest < LONGEST:
            break
        best = min(best, next(found), key=lambda one: one.longest)
    return best


@pytest.mark.search_seconds(20)
def test_no_request_stops_the_loop(search: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "TURN_SECONDS", TURN)
    for rng in search.attempts_of_at_least(5):
        best = shortest(runs(POLICY, rng.getrandbits(48), tmp_path), 3)
        assert best.longest < LONGEST, f"{best.at} took {1000 * best.longest:.0f} ms"
