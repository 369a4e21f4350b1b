"""Commands with several keys, scripts, patterns and channels that the decision cache admits: each is sent,
answered and counted as if it were evaluated alone."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import Mode, ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.session.conversation.routing import BLOCKING, SCRIPTS, SHAREABLE
from keyfence.session.fastpath import KNOWN, PLAIN
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rows import rows_of
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage
from tests.policy.engine.test_calls import FORMS, SHA1S, SHOP, random_call
from tests.session.fake_redis import FakeRedis
from tests.session.sessions import RecordingObserver, Session, cmd, passed, sent, session

POLICY = parse_policy(SHOP)
RELOADED = parse_policy(
    SHOP.replace("writers: [app, runner]", "writers: [app]").replace("s:q:<id>", "s:y:<id>")
)
WORSE = [
    *(
        "MGET {t} x:1",
        "DEL {k}+",
        "MSET {vo}+=",
        "SUNION {st}+",
        "BLPOP {qt}+ 0",
        "XREADGROUP STREAMS {e} {t} >",
    ),
    *(
        "SCAN 0",
        "PUBLISH other x",
        "EVALSHA 0 0",
        "ZUNIONSTORE {z} 3 {z}",
        "COPY {t} {b} DB 1",
        "MGET old:a {t}",
    ),
    *(
        "SET {b} 1",
        "SET {t} 1",
        "EXPIRE {b} 60",
        "GET {t}",
        "SADD {m} 1",
        "EVALSHA 1 1 {t}",
        "FCALL bump 1 {t}",
    ),
]
PARTS = [*FORMS, *FORMS, *WORSE]


class Client:
    """A session with what stands around it: one Redis on a shared connection, and one on its own."""

    def __init__(self, mode: Mode, service: str, *, evaluates_all: bool, candidate: bool = False) -> None:
        self.usage = Usage()
        self.telemetry = Telemetry(sinks=(self.usage,), new_id=lambda: "d-0")
        if evaluates_all:
            self.telemetry.recorder = lambda *_: None
        self.pending = PendingTtls(clock=lambda: 0.0)
        self.mode: Mode = mode
        self.changes = Changes(1, self.telemetry.counters)
        self.has_candidate = candidate
        if candidate:
            self.telemetry.beside = self.changes
        self.holder = InForce(self.authorizer(POLICY))
        identities = make_resolver(frozenset(POLICY.services))
        context = SessionContext(self.holder, identities, self.telemetry, sharing=True)
        self.session = Session(context, ClientOrigin(service, "127.0.0.1:1"))
        self.shared, self.own = FakeRedis(), FakeRedis()
        self.answers = b""

    def authorizer(self, policy: CompiledPolicy) -> Authorizer:
        modes = Modes((ModeRule(self.mode),), policy.services)
        other = Candidate(Authorizer(RELOADED, modes, clock=lambda: 1e9), self.changes)
        beside = other if self.has_candidate else None
        return Authorizer(policy, modes, clock=lambda: 1e9, pending=self.pending, candidate=beside)

    def send(self, data: bytes) -> None:
        one = self.session
        one.from_client(data)
        while one.wants_turn or one.to_upstream:
            while one.wants_turn:
                one.take_turn()
            if one.counts:
                count = sum(one.counts)
                one.counts.clear()
                one.from_shared(b"".join(self.shared.feed(passed(one))), count, True)
            elif one.to_upstream:
                one.from_upstream(b"".join(self.own.feed(passed(one))))
        self.answers += sent(one)

    def evidence(self) -> Counter[tuple[str, str, str, str]]:
        """By service, kind, name and basis."""
        self.telemetry.gather()
        return Counter({(*row[:3], row[4]): row[3] for row in self.usage.take()})

    def changed(self) -> Counter[tuple[str, ...]]:
        self.telemetry.gather()
        found: Counter[tuple[str, ...]] = Counter()
        for row in rows_of(self.changes.tallies()):
            for action, times in row["actions"].items():
                found[row["change"], row["rule"], row["command"], row["entry"], action] += times
        return found

    def state(self) -> dict[str, object]:
        """All that a command may have changed."""
        one, counters = self.session, self.telemetry.counters
        rows = self.telemetry.tally.snapshot()
        return {
            "answers": re.sub(rb"\(d-[0-9a-f]+\)", b"", self.answers),
            "shared": self.shared.received,
            "own": self.own.received,
            "route": (one.route.is_shared, one.route.pinned, one.shapeable, one.talk.doubt),
            "commands": dict(counters.commands),
            "evidence": self.evidence(),
            "findings": Counter({(row["rule"], row["entry"], row["command"]): row["count"] for row in rows}),
            "ttls": {
                (one.database, one.key, one.write.command, one.write.position, one.everything, one.alone)
                for one in self.pending
            },
            "sizes": {
                (one.key, *(question.command for question in one.questions)) for one in self.pending.sizes
            },
            "dropped": (self.pending.dropped, self.pending.sizes.dropped),
            "changes": self.changed() if self.has_candidate else Counter(),
        }


def requests(choose: random.Random, count: int) -> list[list[list[bytes]]]:
    """Reads of some commands, or of a transaction."""
    reads = []
    while count > 0:
        size = choose.choice([1, 1, 3, 16])
        commands = [random_call(choose, choose.choice(PARTS)) for _ in range(size)]
        if choose.randrange(4) == 0:
            commands = [[b"MULTI"], *commands, [b"EXEC"]]
        reads.append(commands)
        count -= size
    return reads


@pytest.mark.parametrize("service", ["app", "other", "runner"])
@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("candidate", [False, True], ids=["alone", "with a candidate"])
def test_each_command_is_treated_as_if_it_were_evaluated_alone(
    mode: Mode, service: str, candidate: bool
) -> None:
    choose = random.Random(f"{mode} {service}")
    short, long = (Client(mode, service, evaluates_all=one, candidate=candidate) for one in (False, True))
    total = 0
    for number, commands in enumerate(requests(choose, 400)):
        data = b"".join(cmd(*argv) for argv in commands)
        cut = choose.randrange(len(data)) if choose.randrange(3) == 0 else 0
        for one in (short, long):
            for part in (data[:cut], data[cut:]):
                one.send(part)
        total += len(commands)
        if number in (30, 60):  # a reload in between
            for one in (short, long):
                one.holder.authorizer = one.authorizer(RELOADED if number == 30 else POLICY)
    mine, theirs = short.state(), long.state()
    for what, wanted in theirs.items():
        assert mine[what] == wanted, what
    evaluated = short.telemetry.counters.judged_at_length
    assert sum(long.telemetry.counters.judged_at_length.values()) > 0.9 * total
    assert service != "app" or sum(evaluated.values()) < 0.5 * total, evaluated


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_evaluated_once(form: str) -> None:
    choose = random.Random(1)
    one = Client("enforce", "app", evaluates_all=False)
    sure = re.sub(r"\{(\w)\w*\}", r"{\1}", form)  # keys of one kind
    for _ in range(2):
        one.send(cmd(*random_call(choose, sure)))
    before = sum(one.telemetry.counters.judged_at_length.values())
    for _ in range(20):
        one.send(cmd(*random_call(choose, sure)))
    assert sum(one.telemetry.counters.judged_at_length.values()) == before
    assert before == (1 if form.startswith("SCAN") else 0)  # a pattern is evaluated in its turn


@pytest.mark.parametrize(
    "text", ["BLPOP s:q:a 0", "XREAD BLOCK 0 STREAMS s:e:a >", "FCALL bump 2 s:t:a s:t:b"]
)
@pytest.mark.parametrize("repeats", [1, 16])
def test_a_command_that_may_block_never_takes_a_shared_connection(text: str, repeats: int) -> None:
    one = Client("enforce", "app", evaluates_all=False)
    for number in range(3):
        one.send((cmd("GET s:t:a") + cmd(text)) * repeats)
        assert one.session.route.is_shared is False
        assert [argv for argv in one.shared.received if argv[0] != b"GET"] == []
        assert len(one.own.received) == 2 * repeats * (number + 1) - 1
    assert one.telemetry.counters.judged_at_length == {}


def test_a_script_that_may_share_keeps_the_shared_connection_and_its_reply_is_proved() -> None:
    one = Client("enforce", "app", evaluates_all=False)
    for _ in range(3):
        one.send(cmd("EVALSHA_RO", SHA1S["reads"], "1", "s:t:a"))
    assert one.session.route.is_shared
    assert one.session.shapeable
    assert one.telemetry.counters.judged_at_length == {}


def test_the_commands_that_the_cache_knows_have_one_reply() -> None:
    assert PLAIN | {"BLPOP", "XREADGROUP", "EVALSHA", "FCALL"} <= KNOWN
    assert KNOWN - PLAIN == SCRIPTS | BLOCKING
    assert not (SCRIPTS | BLOCKING) & SHAREABLE


@pytest.mark.parametrize("cluster", ["", "cluster: true\n"])
@pytest.mark.parametrize("command", ["MSET k:{a} v", "MSET k:{a} v k:{a}b v", "INCR k:{a}"])
def test_a_grant_leaves_open_what_the_rights_leave_open(cluster: str, command: str) -> None:
    """A service that has both rights and a grant may set a time to live that only Redis knows."""
    policy = parse_policy(
        f"policy: p\n{cluster}services: [app]\n"
        'placeholders: {id: "[a-z{}]{1,9}"}\n'
        'keys: {lock: {key: "k:<id>", type: string, writers: [app], ttl: {max: 1h}}}\n'
        'grants: {app: {commands: "*", keys: ["k:*"]}}\n'
    )
    keys = sum(word.startswith("k:") for word in command.split())
    for recorded in (True, False):
        observer, pending = RecordingObserver(), PendingTtls()
        observer.recorder = (lambda *_: None) if recorded else None
        modes = Modes([ModeRule("enforce")], policy.services)
        held = InForce(Authorizer(policy, modes, clock=lambda: 1e9, pending=pending))
        one = session("app", in_force=held, observer=observer)
        for _ in range(3):
            one.from_client(cmd(command))
        assert len(pending) == keys
