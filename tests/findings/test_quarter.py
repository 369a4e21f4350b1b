"""A simulated quarter: traffic of the five conventions with mistakes, a day's outage, a policy change, rules
that are enforced, and a relapse. The clock is the test's own."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keyfence.findings.database import Database
from keyfence.findings.finding import DAY, Finding, State
from keyfence.findings.queries import Reader
from keyfence.findings.readiness import Readiness, Standing, mode_lines, standings
from keyfence.findings.store import Store
from keyfence.findings.writer import Writer
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.command_evidence import evidence_of
from keyfence.policy.loading.load import load_policy
from keyfence.policy.verdict import Peer, entry_and_scope
from keyfence.policy.wording.command_log import as_line
from keyfence.session.conversation.observer import Sent
from keyfence.telemetry.counters import OTHER, Counters
from keyfence.telemetry.increments import Increments
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from tests.findings.rows import NOON
from tests.servers import PROJECT

STEP = DAY / 4  # between two hours with traffic
QUIET = 7 * DAY


@dataclasses.dataclass(frozen=True)
class Convention:
    """A convention, and three mistakes of one of its services: each a command that breaks a rule."""

    name: str
    service: str
    mended: str  # mended after some days; much later the service relapses
    allowed: str  # until a new policy allows it
    waived: str  # waived on day 10


CONVENTIONS = (
    Convention(
        "cubesandbox",
        "CubeProxy",
        "HSET cube:v1:shared:sandbox:proxy:s1 HostIP 10.0.0.7",
        "SET cube:v1:proxy:cache:x 1 EX 10",
        "HGETALL cube:v1:master:instance:info:i1",
    ),
    Convention(
        "card-relay",
        "nfc-server",
        "SET sts:client:c1:screen home",
        "GET sess:transaction:t1:log",
        "SET cfg:feature_flags: on",
    ),
    Convention(
        "container-registry",
        "registry-ratelimiter",
        "INCR registry:api:{repository:gitlab-org:" + "9f86d081" * 8 + "}:push",
        "GET registry:db:{repository:gitlab-org:9f86}",
        "SET registry:gc:{run}:x 1 EX 60",
    ),
    Convention(
        "cosky",
        "cosky-rest",
        "HGETALL cosky-{default}:cfg:database.yaml",
        "GET cosky-{system}:database.yaml",
        "HGETALL cosky-{other}:cfg:database.yaml",
    ),
    Convention(
        "general",
        "app",
        "GET user:profile:12345",
        "GET user_12345",
        "GET order:status:orderId:98765",
    ),
)


def admitted_commands(convention: Convention, policy: CompiledPolicy) -> list[tuple[str, list[bytes]]]:
    """(service, argv) of the commands that the convention's own tests allow."""
    cases = yaml.safe_load((PROJECT / "policies" / f"{convention.name}.test.yaml").read_text())["tests"]
    authorizer = Authorizer(policy, Modes((), policy.services), clock=lambda: NOON)
    found = []
    for case in cases:
        if case.get("verdict") != "allow" or {"user", "certificate", "steps"} & case.keys():
            continue
        words = case["command"] if isinstance(case["command"], list) else shlex.split(case["command"])
        argv = [str(word).encode("utf-8", "surrogateescape") for word in words]
        if not authorizer.rule(Asker(authorizer.number(case["service"])), argv).findings:
            found.append((case["service"], argv))
    assert len(found) > 5
    return found


class Staging:
    """One keyfence over a quarter, with a clock that is moved by hand."""

    def __init__(self, url: str) -> None:
        self.now = NOON
        self.url = url
        self.refused = 0
        self.modes: list[ModeRule] = []
        self.waivers: list[Waiver] = []
        self._start()

    def _start(self) -> None:
        """Start keyfence, which knows nothing but what is in its store."""
        self.usage = Usage()
        self.telemetry = Telemetry(sinks=[self.usage], clock=lambda: self.now, wall=lambda: self.now)
        self.telemetry.describe = lambda policy, service, argv, touches: as_line(
            policy, service, argv, touches, 1
        )
        self.increments = Increments(self.telemetry)
        self.database = Database(self.url)
        store = Store(self.database, f"staging:{self.now}")
        self.writer = Writer(
            store, Counters(), keep=400 * DAY, clock=lambda: self.now, asleep_seconds=2 * STEP
        )
        self.reader = Reader(self.database)
        self.writer.look(is_open=True)

    async def outage(self, seconds: float) -> None:
        """keyfence is down, and is started again."""
        await self.writer.close()
        self.now += seconds
        self._start()
        self.take(self.policy)

    def take(self, policy: CompiledPolicy) -> None:
        """Put a policy in force, with the modes and waivers of now."""
        self.policy = policy
        modes = Modes(self.modes, policy.services, self.waivers)
        self.authorizer = Authorizer(policy, modes, clock=lambda: self.now)
        self.writer.policy_taken(policy)

    def send(self, service: str, argv: list[bytes]) -> None:
        """Have a service send a command, as a session evaluates and reports it."""
        number = self.authorizer.number(service)
        ruling, evaluation = self.authorizer.authorize(Asker(number, peer=Peer("10.0.0.7:1234")), argv)
        touches = evaluation.touches
        self.telemetry.asked(service, evidence_of(self.policy, number, touches))
        label = touches.command.name if touches.command is not None else OTHER
        if ruling.findings:
            sent = Sent(self.policy, argv, touches)
            self.telemetry.violations(
                service, "10.0.0.7", label, ruling.findings, self.policy.revision, sent=sent
            )
        self.refused += ruling.refused_by is not None

    async def pass_time(self, days: float, traffic: list[tuple[str, list[bytes]]]) -> None:
        """Let days pass in which services send these commands, four times a day."""
        for _ in range(int(days * DAY / STEP)):
            for service, argv in traffic:
                self.send(service, argv)
            self.writer.take(self.increments.take())
            self.now += STEP
            self.writer.look(is_open=True)
            await self.writer.tick()

    def finding(self, service: str, command: str) -> Finding:
        """The finding of a mistake: its first one, by rule."""
        words = command.split(" ")
        keyed = [one for one in self.reader.findings() if one.service == service and one.command == words[0]]
        of_key = [one for one in keyed if any(each["key"] == words[1] for each in one.examples)]
        return sorted(of_key, key=lambda one: one.rule)[0]

    def history(self, one: Finding) -> list[State]:
        return [event.state for event in self.reader.history(one.id)]

    def standing(self, rule: str, service: str) -> Standing:
        found = standings(self.reader, self.authorizer.modes.matrix(), QUIET, self.now)
        return next(one for one in found if (one.rule, one.service) == (rule, service))


def with_grant(convention: Convention, folder: Path) -> CompiledPolicy:
    """The convention's policy in a second edition, which grants one command."""
    data: dict[str, Any] = yaml.safe_load((PROJECT / "policies" / f"{convention.name}.yaml").read_text())
    command, key = convention.allowed.split(" ")[:2]
    granted = {"commands": [command], "keys": [key], "reason": "decided on day 40"}
    data.setdefault("grants", {})[convention.service] = granted
    path = folder / f"{convention.name}.yaml"
    path.write_text(yaml.safe_dump(data))
    return load_policy(path)


def words(command: str) -> list[bytes]:
    return [word.encode() for word in shlex.split(command)]


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    made = Staging(f"sqlite:///{tmp_path / 'findings.db'}")
    yield made
    made.database.close()


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda one: one.name)
def test_rules_go_from_observe_to_enforce_and_a_relapse_reopens_its_finding(
    convention: Convention, staging: Staging, tmp_path: Path
) -> None:
    asyncio.run(quarter(convention, staging, tmp_path))


async def quarter(convention: Convention, staging: Staging, folder: Path) -> None:
    policy = load_policy(PROJECT / "policies" / f"{convention.name}.yaml")
    good = admitted_commands(convention, policy)
    service = convention.service
    mistakes = {name: (service, words(getattr(convention, name))) for name in ("mended", "allowed", "waived")}
    staging.take(policy)

    # Days 0 to 10: everything is observed. The mistakes are new, then open.
    await staging.pass_time(10, [*good, *mistakes.values()])
    mended = staging.finding(service, convention.mended)
    allowed = staging.finding(service, convention.allowed)
    waived = staging.finding(service, convention.waived)
    assert len({mended.id, allowed.id, waived.id}) == 3
    assert [staging.history(one) for one in (mended, allowed, waived)] == [[State.NEW, State.OPEN]] * 3
    assert staging.standing(mended.rule, service).readiness is Readiness.NOT_READY
    assert staging.refused == 0

    # Days 10 to 20: the first mistake is mended, another one is waived.
    command, key = convention.waived.split(" ")[:2]
    entry, scope = entry_and_scope(waived.entry, is_covered=not waived.shape)
    staging.waivers = [Waiver(service, waived.rule, entry, command, key, scope=scope)]
    staging.take(policy)
    await staging.pass_time(10, [*good, mistakes["allowed"], mistakes["waived"]])
    assert staging.history(mended) == [State.NEW, State.OPEN, State.QUIET]
    assert staging.history(waived) == [State.NEW, State.OPEN, State.WAIVED]

    # Day 20 to 21: keyfence is down. It knows everything afterwards, and the day counts as a gap.
    before = {one.id: one.total for one in staging.reader.findings()}
    await staging.outage(DAY)
    assert {one.id: one.total for one in staging.reader.findings()} == before
    await staging.pass_time(2, [*good, mistakes["allowed"], mistakes["waived"]])
    assert sum(span.seconds for span in staging.reader.coverage(service)) == pytest.approx(22 * DAY, rel=0.01)
    assert staging.history(mended) == [State.NEW, State.OPEN, State.QUIET]

    # Day 23: a new policy allows the second mistake. Its finding is resolved, and stays so.
    changed = with_grant(convention, folder)
    staging.take(changed)
    await staging.pass_time(9, [*good, mistakes["allowed"], mistakes["waived"]])
    assert staging.history(allowed) == [State.NEW, State.OPEN, State.RESOLVED]
    found = staging.reader.finding(allowed.id)
    assert found is not None
    assert found.resolved_by == changed.revision

    # Day 32: what is ready is enforced, and nothing is refused.
    assert staging.standing(mended.rule, service).readiness is Readiness.READY
    lines = mode_lines(standings(staging.reader, staging.authorizer.modes.matrix(), QUIET, staging.now))
    staging.modes = [ModeRule("enforce", one["rule"], one.get("service", "")) for one in lines]
    staging.take(changed)
    assert staging.standing(mended.rule, service).readiness is Readiness.ENFORCED
    await staging.pass_time(40, [*good, mistakes["allowed"], mistakes["waived"]])
    assert staging.refused == 0

    # Day 72: the service relapses. It is refused, and its finding is reopened.
    await staging.pass_time(0.75, [*good, mistakes["mended"]])
    assert staging.refused == 3
    assert staging.history(mended) == [State.NEW, State.OPEN, State.QUIET, State.REOPENED]
    relapsed = staging.reader.finding(mended.id)
    assert relapsed is not None
    assert relapsed.counts["refused"] == 3

    # Days 73 to 92: it is mended again.
    await staging.pass_time(19.25, good)
    assert staging.history(mended)[-3:] == [State.REOPENED, State.OPEN, State.QUIET]
    assert staging.history(waived)[-1] is State.QUIET
    assert not [one for one in staging.reader.findings() if one.blocks]
    await staging.writer.close()
