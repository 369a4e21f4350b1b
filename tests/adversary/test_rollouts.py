"""Simulated rollouts: random policies, changes of them, traffic, restarts, and two workers whose counts come
late. What `ready` recommends refuses nothing that was seen in its window, and what `what-if`, the gate and a
candidate pass is not refused either.

The clock is the test's own. Every command is kept, so that the answers can be compared with what the policy
in force says of each.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, HOUR
from keyfence.findings.gate.evidence import of_store
from keyfence.findings.gate.judgement import Outcome, judge
from keyfence.findings.proof.basis import InForce
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, standings, window
from keyfence.findings.store import Store
from keyfence.findings.what_if import unjudged, what_if
from keyfence.findings.writer import Writer
from keyfence.policy.analysis.command_log import as_line
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.changes import changes
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.counts import ViolationCounter
from keyfence.policy.engine.evidence import evidence_of
from keyfence.policy.loading.load import FileError, parse_policy
from keyfence.policy.rules import RULES
from keyfence.session.conversation.observer import Sent
from keyfence.telemetry.counters import OTHER, Counters
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from tests.adversary.conftest import Search

NOON = 1_700_000_000.0 // DAY * DAY + DAY / 2
QUIET = DAY
STEPS = 12
SERVICES = ("shop", "bill")
CLASSES = ("[0-9]+", "[a-z0-9]+", "[0-9]{1,3}", "[a-z]+")
VALUES = ("number", "[a-z]+", None, None)
TTLS = ({"max": "2h"}, "none", {"required": False, "max": "1h"}, None, None)
KEYS = (
    "sh:{}",
    "sh:cart:{}",
    "sh:cart:{}:x",
    "sh:log:{}",
    "sh:{}:cart",
    "old:{}",
    "bl:{}",
    "bl:cart:{}",
    "zz:{}",
)
IDS = ("1", "42", "12345", "abc", "a1", "A", "-5", "x.y")


class Command(NamedTuple):
    at: float
    service: str
    argv: list[bytes]


# -- policies


def random_policy(rng: random.Random) -> dict[str, Any]:
    """A policy of two services, as plain values."""
    policy: dict[str, Any] = {
        "policy": "roll",
        "claims": ["sh:", "bl:"],
        "services": list(SERVICES),
        "placeholders": {"id": rng.choice(CLASSES), "no": "[0-9]+"},
        "scopes": {"sh": _scope(rng, "sh:", "shop"), "bl": _scope(rng, "bl:", "bill")},
        "keys": {},
    }
    for _ in range(rng.randrange(4)):
        change(rng, policy)
    return policy


def _scope(rng: random.Random, prefix: str, owner: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"prefix": prefix, "writers": [owner]}
    if rng.random() < 0.5:
        scope["unregistered"] = "allow"
    if rng.random() < 0.3:
        scope["readers"] = [one for one in SERVICES if one != owner]
    return scope


def change(rng: random.Random, policy: dict[str, Any]) -> None:
    """Change a policy in one place."""
    keys = policy["keys"]
    match rng.randrange(9):
        case 0 | 1:
            name = rng.choice(("cart", "log", "any", "mine", "other"))
            forms = ("sh:cart:<id>", "sh:log:<id>", "sh:<no>", "bl:cart:<no>", "bl:<id>", "sh:<id>:cart")
            keys[name] = _entry(rng, rng.choice(forms))
        case 2 if keys:
            del keys[rng.choice(sorted(keys))]
        case 3 if keys:
            one = rng.choice(sorted(keys))
            keys[one] = _entry(rng, keys[one]["key"])
        case 4:
            policy["placeholders"]["id"] = rng.choice(CLASSES)
        case 5:
            prefix, owner = rng.choice((("sh", "shop"), ("bl", "bill")))
            policy["scopes"][prefix] = _scope(rng, f"{prefix}:", owner)
        case 6:
            policy["commands"] = rng.choice(({}, {"forbid": ["INCR"]}, {"allow": ["KEYS", "FLUSHALL"]}))
        case 7:
            grant = {"commands": [rng.choice(("GET", "SET", "DEL"))], "keys": [rng.choice(("bl:*", "sh:c*"))]}
            policy["grants"] = rng.choice(({}, {rng.choice(SERVICES): grant | {"reason": "x"}}))
        case 8:
            policy["should"] = rng.sample(
                ("key.unregistered", "ttl.required", "type.mismatch"), rng.randrange(2)
            )


def _entry(rng: random.Random, key: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"key": key, "type": rng.choice(("string", "hash"))}
    values, ttl = rng.choice(VALUES), rng.choice(TTLS)
    if values is not None and entry["type"] == "string":
        entry["values"] = values
    if ttl is not None:
        entry["ttl"] = ttl
    if rng.random() < 0.5:
        entry["writers"] = rng.sample(SERVICES, rng.randrange(1, 3))
    if rng.random() < 0.3:
        entry["readers"] = rng.sample(SERVICES, rng.randrange(1, 3))
    if rng.random() < 0.2 and entry["type"] == "string":
        entry["max_value"] = rng.choice(("2b", "10b"))
    return entry


# -- traffic


def random_command(rng: random.Random) -> list[bytes]:
    key, other = (rng.choice(KEYS).format(rng.choice(IDS)) for _ in range(2))
    value = rng.choice(("7", "abc", "longer than ten bytes"))
    words = rng.choice(
        (
            ["GET", key],
            ["SET", key, value],
            ["SET", key, value, "EX", rng.choice(("60", "90000"))],
            ["SET", key, value, "EX", "60", "GET"],
            ["DEL", key],
            ["INCR", key],
            ["HSET", key, "f", value],
            ["HGETALL", key],
            ["EXPIRE", key, "60"],
            ["MGET", key, other],
            ["COPY", key, other],
            ["RENAME", key, other],
            ["SCAN", "0", "MATCH", f"{key[:3]}*"],
            ["KEYS", "sh:cart:*"],
            ["PUBLISH", key, "x"],
            ["EVAL", "return 1", "1", key],
            ["FLUSHALL"],
            ["NOSUCH", key],
        )
    )
    return [word.encode() for word in words]


class Worker:
    """A process that evaluates commands, and counts."""

    def __init__(self, world: Rollout) -> None:
        self.world = world
        self.authorizer = world.authorizer
        self.usage = Usage()
        clock = lambda: world.now  # noqa: E731
        self.telemetry = Telemetry(sinks=[self.usage], clock=clock, wall=clock)
        self.telemetry.describe = lambda policy, service, argv, touches: as_line(
            policy, service, argv, touches, 1
        )
        self.increments = Increments(self.telemetry)
        # As the decision cache: further commands with the same findings are counted only.
        self.counters: dict[Any, ViolationCounter] = {}

    def send(self, service: str, argv: list[bytes]) -> None:
        authorizer = self.authorizer
        policy, number = authorizer.policy, authorizer.number(service)
        ruling, touches = authorizer.authorize(number, argv, client="10.0.0.7:1234")
        self.world.seen.append(Command(self.world.now, service, argv))
        evidence = evidence_of(policy, number, touches, basis=authorizer.basis)
        self.telemetry.asked(service, evidence)
        if not ruling.findings:
            return
        label = touches.command.name if touches.command is not None else OTHER
        counted = self._counted(service, argv, label, ruling.findings)
        counter = self.counters.get(counted)
        if counter is not None and counter.live:
            counter.times += 1
            return
        sent = Sent(policy, argv, touches)
        self.telemetry.violations(service, "10.0.0.7", label, ruling.findings, policy.revision, sent=sent)
        counter = self.telemetry.repeats(service, label, ruling.findings)
        if counter is not None:
            self.counters[counted] = counter

    def _counted(self, service: str, argv: list[bytes], label: str, findings: Any) -> Any:
        policy = self.authorizer.policy
        target = policy.target(argv[1]) if len(argv) > 1 else None
        places = tuple((one.rule, action, one.entry, self._shape(one)) for one, action in findings)
        return self.authorizer.basis, service, label, len(argv), tuple(argv[3:]), id(target), places

    def _shape(self, violation: Any) -> str | None:
        if violation.shape or violation.key is None or violation.entry:
            return ""
        return self.telemetry.final_shape(violation.key) or violation.shown


class Rollout:
    """A keyfence over some days, with a clock that is moved by hand."""

    def __init__(self, rng: random.Random, url: str) -> None:
        self.rng = rng
        self.url = url
        self.now = NOON
        self.seen: list[Command] = []
        self.model = random_policy(rng)
        self.modes: list[ModeRule] = []
        self.waivers: list[Waiver] = []
        self.bases: set[str] = set()
        self.policy = self._compiled() or parse_policy(
            "policy: roll\nclaims: ['sh:']\nservices: [shop, bill]\n"
        )
        self.authorizer = self._authorizer()
        self._start()

    def _start(self) -> None:
        self.database = Database(self.url)
        self.reader = Reader(self.database)
        self.writer = Writer(
            Store(self.database, f"here:{self.now}"),
            Counters(),
            keep=90 * DAY,
            clock=lambda: self.now,
            asleep_seconds=DAY,
        )
        self.writer.look(is_open=True)
        self.workers = [Worker(self) for _ in range(2)]
        self.writer.policy_taken(self.policy, self.authorizer.modes)

    def _compiled(self) -> CompiledPolicy | None:
        try:
            return parse_policy(yaml.safe_dump(self.model))
        except FileError:
            return None

    def _authorizer(self, modes: list[ModeRule] | None = None) -> Authorizer:
        chosen = Modes(self.modes if modes is None else modes, self.policy.services, self.waivers)
        return Authorizer(self.policy, chosen, clock=lambda: self.now)

    # -- what happens

    async def step(self) -> None:
        rng = self.rng
        match rng.randrange(10):
            case 0 | 1:
                before = yaml.safe_dump(self.model)
                for _ in range(rng.randrange(1, 3)):
                    change(rng, self.model)
                policy = self._compiled()
                if policy is None:
                    self.model = yaml.safe_load(before)
                else:
                    self.policy = policy
                    self.reload()
            case 2:
                rule, service = rng.choice(sorted(RULES)), rng.choice(SERVICES)
                mode = rng.choice(("disabled", "observe", "enforce"))
                self.modes = [ModeRule(mode, rule, service)] if rng.random() < 0.7 else []
                self.reload()
            case 3:
                self.waivers = [self._waiver() for _ in range(rng.randrange(3))]
                self.reload()
            case 4:
                for worker in self.workers:
                    self.writer.take(worker.increments.take())
                await self.writer.close()
                self.now += rng.choice((1.0, HOUR))
                self._start()
            case _:
                pass
        self.traffic()
        await self.settle(rng.choice((10.0, 600.0, HOUR, 6 * HOUR)))

    def reload(self) -> None:
        """Put policy, modes and waivers in force; a worker may take them a moment later."""
        self.authorizer = self._authorizer()
        self.writer.policy_taken(self.policy, self.authorizer.modes)
        self.workers[0].authorizer = self.authorizer
        if self.rng.random() < 0.7:
            self.workers[1].authorizer = self.authorizer

    def traffic(self) -> None:
        rng = self.rng
        kinds = [(rng.choice(SERVICES), random_command(rng)) for _ in range(rng.randrange(1, 5))]
        for _ in range(rng.randrange(1, 12)):
            service, argv = (
                rng.choice(kinds) if rng.random() < 0.6 else (rng.choice(SERVICES), random_command(rng))
            )
            self.send(service, argv)
        if rng.random() < 0.3:  # one kind of command on many keys
            service, form = rng.choice(SERVICES), rng.choice(KEYS)
            words = rng.choice((["GET", ""], ["SET", "", "7"], ["SET", "", "7", "EX", "60"], ["DEL", ""]))
            for _ in range(rng.randrange(6, 10)):
                one = str(rng.randrange(20_000)) if rng.random() < 0.8 else rng.choice(IDS)
                words[1] = form.format(one)
                self.send(service, [word.encode() for word in words])

    def send(self, service: str, argv: list[bytes]) -> None:
        self.rng.choice(self.workers).send(service, argv)
        self.now += 0.01

    async def settle(self, seconds: float) -> None:
        """Gather what was counted, and let time pass."""
        for worker in self.workers:
            worker.authorizer = self.authorizer
            worker.telemetry.flush()
            self.writer.take(worker.increments.take())
        for passed in (1.0, 5.0, seconds):
            self.now += passed
            self.writer.look(is_open=True)
            await self.writer.tick()

    def _waiver(self) -> Waiver:
        rng = self.rng
        rule = rng.choice(("scope.write", "scope.read", "key.unregistered", "key.format"))
        keys = rng.choice(("", "sh:cart:<int>", "sh:*", "bl:1"))
        entry, scope = rng.choice((("", ""), ("cart", ""), ("", "sh")))
        return Waiver(rng.choice(SERVICES), rule, "" if keys else entry, "", keys, "", scope)

    # -- what must hold

    def refused(self) -> dict[tuple[str, str, str], float]:
        """Service, rule and command of everything that is refused if all rules are enforced, and when it was
        seen last."""
        authorizer = self._authorizer([ModeRule("enforce")])
        seen = {(one.service, *one.argv): one for one in self.seen}  # the last of each
        return {
            (one.service, violation.rule, repr(one.argv)): one.at
            for one in seen.values()
            for violation, action in authorizer.rule(authorizer.number(one.service), one.argv).findings
            if action == "refused"
        }

    def check(self) -> int:
        """Compare all answers with what was seen. Returns how many rules are ready."""
        in_force = InForce(self.policy, self.authorizer.modes)
        refused = self.refused()
        matrix = self.authorizer.modes.matrix()
        found = standings(self.reader, matrix, QUIET, self.now, in_force)
        begins = {service: window(self.reader.coverage(service), QUIET, self.now) for service in SERVICES}
        ready = {(one.service, one.rule) for one in found if one.readiness is Readiness.READY}
        wrong = sorted(
            one for one, at in refused.items() if one[:2] in ready and at > (begins[one[0]] or 0.0)
        )
        assert not wrong, f"ready, and refused: {wrong}"
        since = self.rng.choice((NOON, self.now - QUIET, self.now - HOUR))
        asked = (self.reader, [ModeRule("enforce")], "", since, in_force)
        told = {(one.finding.service, one.finding.rule) for one in what_if(*asked)}
        told |= {(one.service, one.rule) for one in unjudged(*asked)}
        missed = sorted(one for one, at in refused.items() if at > since and one[:2] not in told)
        assert not missed, f"what-if does not tell of {missed}"
        self.bases.add(in_force.basis)
        if len(self.bases) == 1 and judge(of_store(self.reader, 0.0)).outcome is Outcome.CLEAN:
            assert not refused, f"the gate lets {sorted(refused)} pass"
        return len(ready)

    def compare_candidate(self) -> None:
        """What a candidate does not change is refused afterwards only if it was before."""
        change(self.rng, self.model)
        policy = self._compiled()
        if policy is None:
            return
        candidate = Authorizer(policy, Modes([ModeRule("enforce")], policy.services), clock=lambda: self.now)
        before = self._authorizer([ModeRule("enforce")])
        for one in self.seen[-20:]:
            was, now = (each.rule(each.number(one.service), one.argv) for each in (before, candidate))
            if not changes(was, now) and not self.waivers:
                assert (was.refused_by is None) == (now.refused_by is None), one


def test_what_the_rollout_commands_advise_refuses_nothing_that_was_seen(
    search: Search, tmp_path: Path
) -> None:
    ready = 0
    for number, rng in enumerate(search.attempts_of_at_least(20)):
        url = f"sqlite:///{tmp_path}/{number}.db"

        async def main(rng: random.Random = rng, url: str = url) -> int:
            rollout = Rollout(rng, url)
            found = 0
            for _ in range(STEPS):
                await rollout.step()
                if rng.random() < 0.3:
                    found += rollout.check()
            rollout.bases.add("")
            for _ in range(5):  # time passes without a change
                rollout.traffic()
                await rollout.settle(6 * HOUR)
                found += rollout.check()
            rollout.compare_candidate()
            await rollout.writer.close()
            return found

        try:
            ready += asyncio.run(main())
        except AssertionError as exc:
            raise AssertionError(f"KEYFENCE_ADVERSARY_SEED={search.seed}: {exc}") from exc
        for path in tmp_path.glob(f"{number}.db*"):
            path.unlink()
    assert ready > search.attempts  # else the search proves nothing
