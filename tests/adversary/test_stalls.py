"""A search for requests that stop the event loop.

The class: work for one client that no turn ends. Whatever a client sends, none of the loop's calls into its
session may take long. Nor may what the loop does with the counts: the flush of each second, the hand-over to
the findings store, answers to services and to the admin listener. And the process may not grow by much.

The time is the thread's own, so other processes do not count. A call counts as long only if it is long in
each of three runs.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import yaml

from benchmarks.large_policies import policy_text
from keyfence import _compiled
from keyfence.admin.bodies import parts as json_parts
from keyfence.findings.batch import Batch
from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.patterns.patterns import Hole, Literal
from keyfence.policy.rules import RULES
from keyfence.policy.wording.command_log import as_line
from keyfence.process.serving.answers import findings_of, stats_of
from keyfence.process.serving.command_recorder import Recorder
from keyfence.process.serving.explainer import Explainer
from keyfence.process.serving.garbage import without_collections
from keyfence.resp.encode import command
from keyfence.session.conversation import conversation
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.owner_questions import Question
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from tests.adversary.conftest import Search
from tests.adversary.rollouts import random_policy
from tests.session.sessions import Session

TURN = 0.002  # seconds, as outside of tests
# What CI's machine may be slower than the one that these limits are for. `make adversary` does without.
SLOWER = 1 if "KEYFENCE_ADVERSARY_SECONDS" in os.environ else 3
# Seconds that one call may take. Interpreted modules take several times as long.
LONGEST = SLOWER * (0.020 if all(_compiled.status().values()) else 0.1)
BESIDE = 5 * LONGEST  # for a step of what is done in a thread
# Seconds for a byte of requests. Turns that never end are no stall, but everyone's turns come later.
PER_BYTE = SLOWER * (20e-6 if all(_compiled.status().values()) else 60e-6)
MOST_GROWTH = 100_000_000  # bytes of memory in one run
READ = 256_000  # bytes, as the event loop reads
SIZE = 1_500_000  # bytes of one attempt
STEPS = 400  # calls of one run, after which the rest is left out
SECOND = 40  # calls, after which what was counted is handed over
EXPLAINED = 3  # commands of a run

HOSTILE = load_policy(Path(__file__).parents[2] / "benchmarks" / "hostile.yaml")
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
_T = TypeVar("_T")


class World(NamedTuple):
    """A policy, and keys that it knows or nearly knows. `{}` in a key is a number."""

    policy: CompiledPolicy
    keys: Sequence[str]


def random_world(rng: random.Random) -> World:
    kind = rng.choice(["hostile", "random", "random", "large"])
    if kind == "hostile":
        return World(HOSTILE, KEYS)
    policy = large() if kind == "large" else small(rng)
    targets = rng.sample(policy.targets, min(8, len(policy.targets)))
    forms = ["".join(map(_text_of, target.pattern.parts)) for target in targets]
    return World(policy, (*forms, *(f"{form}!" for form in forms), "other:{}", "{}:x:{}"))


def _text_of(part: Literal | Hole) -> str:
    return part.text.decode("latin-1") if isinstance(part, Literal) else "{}"


@cache
def large() -> CompiledPolicy:
    return parse_policy(policy_text(500)[0] + "commands: {allow: [KEYFENCE]}\n")


def small(rng: random.Random) -> CompiledPolicy:
    while True:
        model = random_policy(rng)
        model["commands"] = {"allow": ["KEYFENCE", *rng.sample(["KEYS", "SCAN", "FLUSHALL", "EVAL", "*"], 2)]}
        model["cluster"] = rng.random() < 0.2
        try:
            return parse_policy(yaml.safe_dump(model))
        except FileError:
            continue


def filled(form: str, number: int, at: int) -> str:
    return form.replace("{}", str(number + at), 1).replace("{}", str(at))


def requests(rng: random.Random, keys: Sequence[str]) -> bytes:
    """A stream of a few kinds of requests: many small ones, or a few large ones."""
    kinds = [one_request(rng, keys) for _ in range(rng.choice([1, 1, 2, 3, 6]))]
    pieces: list[bytes] = []
    size = 0
    while size < SIZE:
        piece = rng.choice(kinds)()
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)


def one_request(rng: random.Random, keys: Sequence[str]) -> Callable[[], bytes]:
    """Makes requests of one kind, which differ in a number."""
    form = rng.choice(["command"] * 6 + ["inline", "blank", *["transaction"] * 2, "own"])
    if form == "blank":
        return lambda: rng.choice([b"\r\n", b"*0\r\n", b"*-1\r\n"]) * 100
    if form == "inline":
        line = rng.choice(["PING", "frobnicate x", f'SET {filled(keys[0], 1, 2)} "a b"', "GET other:1", "'a"])
        return lambda: line.encode("latin-1") + b"\r\n"
    if form == "transaction":
        inner = command(rng.choice(NAMES), filled(rng.choice(keys), 1, 2)) * rng.choice([0, 1, 30])
        end = command(rng.choice(["EXEC", "DISCARD", "MULTI"]))
        return lambda: command("MULTI") + inner + end
    name, count = rng.choice(NAMES), rng.choice([0, 1, 2, 3, 5, 20, 250, 3_000, 100_000])
    given = [rng.choice([*keys, *keys, *WORDS]) for _ in range(rng.choice([1, 2, 3]))]
    head = [rng.choice([*WORDS, "2", "100000"]) for _ in range(rng.choice([0, 0, 1, 2]))]
    if form == "own":
        own = rng.choice(["EXPLAIN", "EXPLAIN", "FINDINGS", "STATS", "WHOAMI", "MODES", "SHOW"])
        name, head, count = "KEYFENCE", [own, name, *head], min(count, 97) if own == "EXPLAIN" else 0

    def made() -> bytes:
        number = rng.randrange(1_000_000)
        rest = [filled(given[at % len(given)], number, at) for at in range(count)]
        return command(name, *head, *(one.encode("latin-1") for one in rest))

    return made


class Run:
    """One stream through a session, with Redis' replies, and with what the process does each second."""

    def __init__(self, policy: CompiledPolicy, rng: random.Random, folder: Path) -> None:
        self.longest = 0.0
        self.at = ""
        self.grown = 0
        self.worked = 0.0  # seconds, on requests and the replies that let them go on
        self.taken = 0  # bytes of requests that were dealt with
        self._explained = 0
        self.service = rng.choice(policy.services[:-1]) if policy is not HOSTILE else "bad"
        masks = rng.random() < 0.1
        log = str(folder / "log") if rng.random() < 0.5 else None
        self.telemetry = telemetry = Telemetry.to(log, sinks=[Usage()], mask_keys=masks)
        telemetry.describe = lambda policy, service, argv, touches: as_line(policy, service, argv, touches, 1)
        telemetry.guard(policy.secrecy)
        if rng.random() < 0.3:
            telemetry.recorder = Recorder(str(folder / "recorded"))
        candidate = None
        if rng.random() < 0.3:
            changes = telemetry.beside = Changes(1, telemetry.counters)
            beside = Authorizer(policy, Modes((ModeRule("enforce"),), policy.services))
            candidate = Candidate(beside, changes)
            _make_tables(beside, self.service)
        rules = [ModeRule(rng.choice(["observe", "enforce"]))]
        rules += [ModeRule(rng.choice(["observe", "enforce", "disabled"]), rng.choice([*RULES]))]
        self.authorizer = Authorizer(
            policy, Modes(rules, policy.services), pending=PendingTtls(), candidate=candidate
        )
        _make_tables(self.authorizer, self.service)
        identities = make_resolver(frozenset(policy.services))
        context = SessionContext(InForce(self.authorizer), identities, telemetry)
        self.one = Session(context, ClientOrigin(self.service, "10.0.0.9:5"))
        self._explainer = Explainer()
        self._increments = Increments(telemetry)
        self._batch = Batch()
        self._began = memory()

    def go(self, stream: bytes) -> None:
        one, sent = self.one, 0
        for number in range(STEPS):
            if one.closing:
                break
            if one.wants_turn:
                self._timed("take_turn", one.take_turn)
            elif sent < len(stream) and one.wants_input():
                piece, sent = stream[sent : sent + READ], sent + READ
                one.turn_ends = 0.0
                self._timed("from_client", one.from_client, piece)
            elif one.question is not None:
                question, one.question = one.question, None
                answer = self._answer(question)
                one.turn_ends = 0.0
                self._timed("answered", one.take_answer, question, answer)
            elif one.outstanding:
                one.turn_ends = 0.0
                self._timed("from_upstream", one.from_upstream, b"+OK\r\n" * min(one.outstanding, 1_000))
            else:
                break
            for chunks in (one.to_client, one.to_upstream, one.counts):
                chunks.clear()
            one.reopen = False
            if number % SECOND == SECOND - 1:
                self._second()
        self.taken = min(sent, len(stream)) - one.backlog()
        self._second()
        self._ask()
        self.telemetry.close()

    def _second(self) -> None:
        """What the process does each second."""
        self._timed("flush", self.telemetry.flush)
        parts = self._increments.parts()
        while part := self._timed("take", next, parts, None):
            self._timed("add_rows", self._batch.add_rows, part.get("tally", ()), 1e9)
            self._timed("add_uses", self._batch.add_uses, part.get("asked", ()), 1e9)

    def _ask(self) -> None:
        """What the admin listener answers, as far as it keeps the loop or the interpreter's lock."""
        self._timed("copy", self.telemetry.counters.copy)
        parts = json_parts(self.telemetry.tally.snapshot(), 3)
        while self._timed("a part of an answer", next, parts, None):
            pass

    def _answer(self, question: Question) -> Any:
        """The answer to a question of the session, as `process.serving.answers` makes it."""
        if question.kind == "findings":
            rows = [row for _, row in self.telemetry.tally.rows()]
            return self._timed("findings_of", findings_of, rows, self.service)
        if question.kind == "stats":
            return self._timed("stats_of", stats_of, [self.telemetry.counters], self.service)
        if question.kind != "explain" or self._explained >= EXPLAINED:
            return None
        self._explained += 1
        return self._driven(self._explainer._command(self.authorizer, *question.content))

    def _driven(self, steps: Generator[None, None, _T]) -> _T:
        """Work in a thread: a step may be longer, but not by much."""
        while True:
            start = time.thread_time()
            try:
                next(steps)
            except StopIteration as end:
                result: _T = end.value
                return result
            finally:
                self._took("a step of explaining", (time.thread_time() - start) * LONGEST / BESIDE)

    def _timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time()
        result = call(*arguments)
        self._took(name, time.thread_time() - start)
        self.grown = max(self.grown, memory() - self._began)
        return result

    @property
    def per_byte(self) -> float:
        """The seconds for a byte of requests. A request that is under way is not counted as bytes."""
        return self.worked / max(self.taken, 65_536)

    def _took(self, name: str, seconds: float) -> None:
        if name in ("from_client", "take_turn", "from_upstream"):
            self.worked += seconds
        if seconds > self.longest:
            self.longest, self.at = seconds, name


def _make_tables(authorizer: Authorizer, service: str) -> None:
    """The first pattern after a load makes tables for all later ones, which takes longer than a call may."""
    for argv in ([b"KEYS", b"x*y"], [b"PSUBSCRIBE", b"x*y"], [b"SUBSCRIBE", b"__keyevent@0__:set"]):
        authorizer.rule(Asker(authorizer.number(service)), argv)


def memory() -> int:
    """The memory that this process uses, in bytes; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def runs(seed: int, folder: Path) -> Iterator[Run]:
    """Runs of the same stream and settings."""
    while True:
        rng = random.Random(seed)
        world = random_world(rng)
        stream = requests(rng, world.keys)
        gc.collect()
        with tempfile.TemporaryDirectory(dir=folder) as own:
            run = Run(world.policy, rng, Path(own))
            with without_collections():
                run.go(stream)
        yield run


def shortest(found: Iterator[Run], most: int) -> Run:
    """The best of a few runs; no more than one if that is fast."""
    best = next(found)
    for _ in range(most - 1):
        if best.longest < LONGEST and best.per_byte < PER_BYTE:
            break
        grown = best.grown  # memory that one run has given back, the next one takes without growing
        best = min(best, next(found), key=lambda one: (one.per_byte >= PER_BYTE, one.longest))
        best.grown = max(best.grown, grown)
    return best


@pytest.mark.search_seconds(20)
def test_no_request_stops_the_loop(search: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(conversation, "TURN_SECONDS", TURN)
    for rng in search.attempts_of_at_least(5):
        best = shortest(runs(rng.getrandbits(48), tmp_path), 3)
        assert best.longest < LONGEST, f"{best.at} took {1000 * best.longest:.0f} ms"
        assert best.per_byte < PER_BYTE, f"a byte of requests took {1e6 * best.per_byte:.0f} µs"
        assert best.grown < MOST_GROWTH, f"the process grew by {best.grown / 1e6:.0f} MB"
