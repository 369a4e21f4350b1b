"""Simulated rollouts: random policies, changes of them, traffic, restarts, and two workers whose counts come
late. What `ready` recommends refuses nothing that was seen in its window, and was asked there since it has
changed. What `what-if`, the gate and a candidate pass is not refused either. For a service that may go past
keyfence, nothing is ready.

The clock is the test's own. Every command is kept, so that the answers can be compared with what the policy
in force says of each. No finding is resolved under a policy that still refuses a command of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.findings.database import Database
from keyfence.findings.filter import Filter
from keyfence.findings.finding import ACTIVE, DAY, HOUR, State, finding_id
from keyfence.findings.gate.judgement import judge
from keyfence.findings.gate.sources import of_answers, of_store
from keyfence.findings.proof.basis import Described, InForce, described
from keyfence.findings.proof.changes import Changes
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, standings, window
from keyfence.findings.store import Store
from keyfence.findings.views import Views
from keyfence.findings.what_if import unjudged, what_if
from keyfence.findings.writer import Writer
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.enforcement.changes import changes as changes_between
from keyfence.policy.enforcement.modes import BYPASS, ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.command_evidence import Evidence, evidence_of
from keyfence.policy.engine.counts import ViolationCounter
from keyfence.policy.loading.load import FileError, parse_policy
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import Peer, Ruling
from keyfence.policy.wording.command_log import as_line
from keyfence.session.conversation.observer import Sent
from keyfence.telemetry.counters import OTHER, Counters
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.sink import Group, Occurrence, Sink
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from tests.adversary.conftest import Search
from tests.adversary.rollouts import (
    SERVICES,
    USERS,
    Command,
    change,
    many_of_a_kind,
    mend,
    random_command,
    random_policy,
)

NOON = 1_700_000_000.0 // DAY * DAY + DAY / 2
QUIET = DAY
STEPS = 12
MENDED = ("channel.", "key.", "scope.", "script.")


class Groups(Sink):
    """Keeps the groups in which the findings of one command are counted."""

    def __init__(self) -> None:
        self.taken: list[Group] = []

    def record(self, group: Group, _found: Occurrence, /) -> str:
        self.taken.append(group)
        return ""

    def repeat(self, group: Group, times: int, now: float, at: float, /) -> None:
        pass


class Worker:
    """A process that evaluates commands, and counts."""

    def __init__(self, world: Rollout) -> None:
        self.world = world
        self.usage = Usage()
        clock = lambda: world.now  # noqa: E731
        self.groups = Groups()
        self.telemetry = Telemetry(sinks=[self.usage, self.groups], clock=clock, wall=clock)
        self.telemetry.describe = lambda policy, service, argv, touches: as_line(
            policy, service, argv, touches, 1
        )
        self.increments = Increments(self.telemetry)
        # As the decision cache: further commands with the same findings are counted only.
        self.counters: dict[Any, tuple[ViolationCounter, list[Group]]] = {}
        self.take(world.authorizer)

    def take(self, authorizer: Authorizer) -> None:
        """Evaluate by a policy from now on."""
        self.authorizer = authorizer
        self.telemetry.guard(authorizer.policy.secrecy)

    def send(self, service: str, argv: list[bytes], user: bytes | None) -> None:
        authorizer = self.authorizer
        policy, number = authorizer.policy, authorizer.number(service)
        values = policy.values(Caller(user))
        asker = Asker(number, values, peer=Peer("10.0.0.7:1234"))
        ruling, evaluation = authorizer.authorize(asker, argv)
        touches = evaluation.touches
        evidence = evidence_of(policy, number, touches, basis=authorizer.basis)
        command = Command(self.world.now, service, argv, user, evidence)
        self.world.seen.append(command)
        self.telemetry.asked(service, evidence)
        if not ruling.findings:
            return
        label = touches.command.name if touches.command is not None else OTHER
        counted = self._counted(service, argv, label, ruling.findings)
        counter, groups = self.counters.get(counted, (None, []))
        if counter is not None and counter.live:
            counter.times += 1
        else:
            sent = Sent(policy, argv, touches)
            self.groups.taken = groups = []
            self.telemetry.violations(service, "10.0.0.7", label, ruling.findings, policy.revision, sent=sent)
            counter = self.telemetry.repeats(service, label, ruling.findings)
            if counter is not None:
                self.counters[counted] = counter, groups
        for group, (violation, _) in zip(groups, ruling.findings, strict=True):
            self.world.belongs(command, group, violation.position)

    def tell(self, service: str) -> None:
        """Redis answers a command of a service with addresses."""
        authorizer, command = self.authorizer, "CLUSTER SLOTS"
        found = authorizer.address(authorizer.number(service), command).findings
        self.telemetry.violations(service, "10.0.0.7", command, found, authorizer.policy.revision)
        if any(action != "refused" for _, action in found):
            self.world.told[service] = self.world.now

    def _counted(self, service: str, argv: list[bytes], label: str, findings: Any) -> Any:
        policy = self.authorizer.policy
        target = policy.target(argv[1]) if len(argv) > 1 else None
        places = tuple(
            (one.rule, action, one.position, one.entry, self._shape(one)) for one, action in findings
        )
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
        # By finding: commands of it, each with the position of what broke the rule.
        self.held: dict[str, dict[tuple[Any, ...], tuple[Command, int]]] = {}
        self.is_cluster = rng.random() < 0.2
        self.told: dict[str, float] = {}  # by service: when Redis told it addresses last
        self.model = random_policy(rng)
        self.modes: list[ModeRule] = []
        self.waivers: list[Waiver] = []
        self.passed = 0  # services and rules about which the gate has said nothing
        self.described: dict[str, Described] = {}
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
        made = Authorizer(self.policy, chosen, clock=lambda: self.now)
        self.described.setdefault(made.basis, described(self.policy, chosen))
        return made

    # -- what happens

    async def step(self) -> None:
        rng = self.rng
        match rng.randrange(10):
            case 0 | 1:
                self._change(lambda: [change(rng, self.model) for _ in range(rng.randrange(1, 3))])
            case 5 | 6:
                self._change(self._mend)
            case 2:
                rule, service = rng.choice(sorted(RULES)), rng.choice(SERVICES)
                if self.is_cluster and rng.random() < 0.5:
                    rule = BYPASS
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

    def _change(self, make: Callable[[], object]) -> None:
        """Change the policy, if the changed one is valid."""
        before = yaml.safe_dump(self.model)
        make()
        policy = self._compiled()
        if policy is None:
            self.model = yaml.safe_load(before)
        else:
            self.policy = policy
            self.reload()

    def _mend(self) -> None:
        """Change the policy so that it allows examples of a finding."""
        active = self.reader.findings(Filter(state=tuple(ACTIVE)))
        found = [one for one in active if one.examples and one.rule.startswith(MENDED)]
        if found:
            # The most frequent ones have more violations than examples.
            one = self.rng.choice(found[:4])
            names = [example["key"] for example in one.examples]
            mend(self.rng, self.model, one.service, one.rule, names)

    def reload(self) -> None:
        """Put policy, modes and waivers in force; a worker may take them a moment later."""
        self.authorizer = self._authorizer()
        self.writer.policy_taken(self.policy, self.authorizer.modes)
        self.workers[0].take(self.authorizer)
        if self.rng.random() < 0.7:
            self.workers[1].take(self.authorizer)

    def traffic(self) -> None:
        rng = self.rng
        kinds = [(rng.choice(SERVICES), random_command(rng)) for _ in range(rng.randrange(1, 5))]
        for _ in range(rng.randrange(1, 12)):
            service, argv = (
                rng.choice(kinds) if rng.random() < 0.6 else (rng.choice(SERVICES), random_command(rng))
            )
            self.send(service, argv, rng.choice(USERS))
        if self.is_cluster and rng.random() < 0.2:
            rng.choice(self.workers).tell(rng.choice(SERVICES))
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            service, user = rng.choice(SERVICES), rng.choice(USERS)
            for argv in many_of_a_kind(rng):
                self.send(service, argv, user)

    def send(self, service: str, argv: list[bytes], user: bytes | None) -> None:
        self.rng.choice(self.workers).send(service, argv, user)
        self.now += 0.01

    def belongs(self, command: Command, group: Group, position: int) -> None:
        """Note that a command is counted in a finding."""
        held = self.held.setdefault(finding_id(group[:5]), {})
        held[(command.user, *command.argv, position)] = command, position

    async def settle(self, seconds: float) -> None:
        """Gather what was counted, and let time pass."""
        for worker in self.workers:
            worker.take(self.authorizer)
            worker.telemetry.flush()
            self.writer.take(worker.increments.take())
        for passed in (1.0, 5.0, seconds):
            self.now += passed
            self.writer.look(is_open=True)
            await self.writer.tick()

    def _waiver(self) -> Waiver:
        rng = self.rng
        rule = rng.choice(("scope.write", "scope.read", "key.unregistered", "key.format", BYPASS))
        keys = rng.choice(("", "sh:cart:<int>", "sh:*", "bl:1"))
        entry, scope = rng.choice((("", ""), ("cart", ""), ("", "sh")))
        return Waiver(rng.choice(SERVICES), rule, "" if keys else entry, "", keys, "", scope)

    # -- what must hold

    def refused(self) -> dict[tuple[str, str, str], float]:
        """Service, rule and command of everything that is refused if all rules are enforced, and when it was
        seen last."""
        authorizer = self._authorizer([ModeRule("enforce")])
        seen = {(one.service, one.user, *one.argv): one for one in self.seen}  # the last of each
        return {
            (one.service, violation.rule, repr(one.argv)): one.at
            for one in seen.values()
            for violation, action in ruled(authorizer, one).findings
            if action == "refused"
        }

    def check(self) -> int:
        """Compare all answers with what was seen. Returns how many rules are ready."""
        in_force = InForce(self.policy, self.authorizer.modes)
        refused = self.refused()
        matrix = self.authorizer.modes.matrix()
        quiet = self.rng.choice((QUIET, QUIET, HOUR / 6))
        found = standings(self.reader, matrix, quiet, self.now, in_force)
        begins = {service: window(self.reader.coverage(service), quiet, self.now) for service in SERVICES}
        asked = {service: self.asked(service, begins[service] or 0.0) for service in SERVICES}
        ready = {(one.service, one.rule) for one in found if one.readiness is Readiness.READY}
        wrong = sorted(
            one for one, at in refused.items() if one[:2] in ready and at > (begins[one[0]] or 0.0)
        )
        assert not wrong, f"ready, and refused: {wrong}"
        guessed = sorted(one for one in ready if one[1] not in asked[one[0]])
        assert not guessed, f"ready, and not asked since they changed: {guessed}"
        leaving = {one for one in self.told if not self.authorizer.modes.keeps_in(one)}
        unseen = sorted(one for one in ready if one[0] in leaving and one[1] != BYPASS)
        assert not unseen, f"ready, and the service goes past keyfence: {unseen}"
        since = self.rng.choice((NOON, self.now - QUIET, self.now - HOUR))
        question = (self.reader, [ModeRule("enforce")], "", since, in_force)
        told = {(one.finding.service, one.finding.rule) for one in what_if(*question)}
        told |= {(one.service, one.rule) for one in unjudged(*question[:-1], in_force.basis)}
        missed = sorted(one for one, at in refused.items() if at > since and one[:2] not in told)
        assert not missed, f"what-if does not tell of {missed}"
        self._check_gate({one: at for one, at in refused.items() if matrix[one[1]][one[0]] != "disabled"})
        return len(ready)

    def asked(self, service: str, since: float) -> set[str]:
        """The rules that a service's commands were checked against after the latest of three times: `since`,
        the rule's last change, and when the service last knew addresses of Redis."""
        changes = {
            name: Changes(old, self.described[self.authorizer.basis]) for name, old in self.described.items()
        }
        changed: dict[Evidence, set[str]] = {}
        asked: set[str] = set()
        for one in self.seen:
            drawn = one.evidence
            # Evidence is counted by hour, a moment later.
            if one.service != service or one.at < since // HOUR * HOUR - 60.0:
                continue
            if drawn not in changed:
                by = changes[drawn.basis]
                changed[drawn] = {rule for rule in drawn.rules if by.of_rule(service, rule)}
                for part in drawn.parts:
                    changed[drawn].update(*(each.rules for each in by.of_part(service, part)))
            asked = (asked | set(drawn.rules)) - changed[drawn]
            is_kept_in = self.described[drawn.basis]["of"][service]["kept_in"]
            if service in self.told and (one.at < self.told[service] - 60.0 or not is_kept_in):
                asked &= {BYPASS}
        return asked

    def _check_gate(self, refused: Mapping[tuple[str, str, str], float]) -> None:
        """The gate names every service and rule that is refused, whatever policies were in force before. It
        judges a store, and a running keyfence."""
        in_force = InForce(self.policy, self.authorizer.modes)
        since = self.rng.choice((0.0, self.now - QUIET, self.now - HOUR))
        views = Views(self.reader, in_force)
        findings = [one.as_object() for one in self.reader.findings()]
        for evidence in (of_store(self.reader, since), of_answers(findings, views.evidence(since), since)):
            told = {(one.service, one.rule) for one in judge(evidence).new}
            told |= {(one.service, one.rule) for one in evidence.unjudged}
            missed = sorted(one for one, at in refused.items() if at > since and one[:2] not in told)
            assert not missed, f"the gate lets {missed} pass"
            self.passed += len(set(evidence.asked) - told)

    def check_resolved(self) -> int:
        """No command of a resolved finding breaks its rule under the policy that resolved it. Returns the
        number of resolved findings."""
        authorizer = Authorizer(self.policy, Modes([ModeRule("enforce")], self.policy.services))
        resolved = 0
        for one in self.reader.findings(Filter(state=(State.RESOLVED,))):
            if one.resolved_by != self.policy.revision:
                continue
            resolved += 1
            for command, position in self.held.get(one.id, {}).values():
                broken = {
                    (found.rule, found.position)
                    for found, action in ruled(authorizer, command).findings
                    if action == "refused"
                }
                what = f"{one.id} ({' '.join(one.key)}) is resolved, and this refused: {command}"
                assert (one.rule, position) not in broken, what
        return resolved

    def compare_candidate(self) -> None:
        """What a candidate does not change is refused afterwards only if it was before."""
        change(self.rng, self.model)
        policy = self._compiled()
        if policy is None:
            return
        candidate = Authorizer(policy, Modes([ModeRule("enforce")], policy.services), clock=lambda: self.now)
        before = self._authorizer([ModeRule("enforce")])
        for one in self.seen[-20:]:
            was, now = (ruled(each, one) for each in (before, candidate))
            if not changes_between(was, now) and not self.waivers:
                assert (was.refused_by is None) == (now.refused_by is None), one


def ruled(authorizer: Authorizer, one: Command) -> Ruling:
    """The ruling on a command, by its caller."""
    return authorizer.rule(
        Asker(authorizer.number(one.service), authorizer.policy.values(Caller(one.user))), one.argv
    )


@pytest.mark.search_seconds(20)
def test_what_the_rollout_commands_advise_refuses_nothing_that_was_seen(
    search: Search, tmp_path: Path
) -> None:
    ready = resolved = passed = 0
    for number, rng in enumerate(search.attempts_of_at_least(8)):
        url = f"sqlite:///{tmp_path}/{number}.db"

        async def main(rng: random.Random = rng, url: str = url) -> tuple[int, int, int]:
            rollout = Rollout(rng, url)
            found = closed = 0
            for _ in range(STEPS):
                await rollout.step()
                closed += rollout.check_resolved()
                if rng.random() < 0.3:
                    found += rollout.check()
            for _ in range(5):  # time passes without a change
                rollout.traffic()
                await rollout.settle(6 * HOUR)
                found += rollout.check()
            closed += rollout.check_resolved()
            rollout.compare_candidate()
            await rollout.writer.close()
            return found, closed, rollout.passed

        try:
            found, closed, clean = asyncio.run(main())
        except AssertionError as exc:
            raise AssertionError(f"KEYFENCE_ADVERSARY_SEED={search.seed}: {exc}") from exc
        ready, resolved, passed = ready + found, resolved + closed, passed + clean
        for path in tmp_path.glob(f"{number}.db*"):
            path.unlink()
    # Otherwise the search proves nothing.
    assert ready > search.attempts
    assert resolved > search.attempts
    assert passed > search.attempts
