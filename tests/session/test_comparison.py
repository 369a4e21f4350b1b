"""A candidate policy beside the one in force: it changes nothing, and reports what it would change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.authoring.replay import Replay
from keyfence.commands.extract import extract
from keyfence.commands.model import MANY
from keyfence.identity.resolver import make_resolver
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.changes import changes
from keyfence.policy.enforcement.modes import BreakGlass, ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer, Candidate, InForce
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.wording.command_log import as_line
from keyfence.session.conversation.context import ClientOrigin, SessionContext
from keyfence.telemetry.candidate.changes import Changes
from keyfence.telemetry.candidate.rows import ChangedRow, rows_of
from keyfence.telemetry.telemetry import Telemetry
from tests.session.sessions import Session, cmd, passed, sent

OLD_TEXT = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z0-9]{1,9}"}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
keys:
  cart: {key: "a:cart:<id>", type: hash, fields: {size: integer}}
  lock: {key: "a:lock:<id>", type: string, ttl: {max: 1m, at: write}}
  note: {key: "a:note:<id>", type: string}
"""
OLD = parse_policy(OLD_TEXT)


def changed(*pairs: tuple[str, str]) -> CompiledPolicy:
    text = OLD_TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return parse_policy(text)


# Rights, entries, and requirements on values and times to live: some wider, some narrower.
NEW = changed(
    ("writers: [one], readers: [two]", "writers: [two], readers: [one]"),
    ("{size: integer}", "{size: any, color: any}"),
    ("max: 1m", "max: 2m"),
    ("  note:", '  page: {key: "a:page:<id>", type: string, writers: [one]}\n  note:'),
)
# Changes of rights and names only, which a log shows completely.
RIGHTS = changed(
    ("writers: [one], readers: [two]", "writers: [two]"),
    ("a:note:<id>", "a:memo:<id>"),
    ("type: hash, fields: {size: integer}", "type: hash, fields: {size: integer}, readers: [one, two]"),
)
MOVED = changed(("a:note:<id>", "a:memo:<id>"))
SAME = changed()


class Pair(NamedTuple):
    """A session of one client with a candidate, and what is known of both policies."""

    session: Session
    told: Telemetry
    observer: Changes
    in_force: Authorizer
    holder: InForce

    @property
    def rows(self) -> list[ChangedRow]:
        return rows_of(self.observer.tallies())

    def serve(self, *reads: bytes) -> None:
        for data in reads:
            self.session.from_client(data)
            answer(self.session)

    def found(self) -> Counter[tuple[str, str, str, str, str]]:
        """(change, rule, command, entry, action) of each finding."""
        found: Counter[tuple[str, str, str, str, str]] = Counter()
        for row in self.rows:
            for action, number in row["actions"].items():
                found[row["change"], row["rule"], row["command"], row["entry"], action] += number
        return found


def answer(one: Session) -> None:
    """Has Redis answer what the session awaits."""
    while one.wants_turn:
        one.take_turn()
    for count in one.counts:
        one.from_shared(b"+OK\r\n" * count, count, True)
    one.counts.clear()


def pair(
    candidate: CompiledPolicy = NEW,
    *rules: ModeRule,
    policy: CompiledPolicy = OLD,
    service: str = "one",
    waivers: Sequence[Waiver] = (),
    sharing: bool = True,
    names: Sequence[str] = (),
) -> Pair:
    telemetry, glass = Telemetry(), list[BreakGlass]()
    observer = Changes(1, telemetry.counters)
    observer.guard(policy.secrecy, candidate.secrecy)
    telemetry.beside = observer

    def modes(one: CompiledPolicy) -> Modes:
        return Modes(rules or (ModeRule("observe"),), one.services, waivers)

    other = Authorizer(candidate, modes(candidate), glass, lambda: 1e9)
    in_force = Authorizer(policy, modes(policy), glass, lambda: 1e9, candidate=Candidate(other, observer))
    identities = make_resolver(frozenset(policy.services))
    holder = InForce(in_force)
    context = SessionContext(holder, identities, telemetry, sharing=sharing)
    session = Session(context, ClientOrigin(service, "10.0.0.9:5", names=names))
    return Pair(session, telemetry, observer, in_force, holder)


def alone(modes: Sequence[ModeRule], service: str) -> Session:
    """A session without a candidate."""
    in_force = InForce(Authorizer(OLD, Modes(modes, OLD.services), clock=lambda: 1e9))
    identities = make_resolver(frozenset(OLD.services))
    context = SessionContext(in_force, identities, Telemetry(), sharing=True)
    return Session(context, ClientOrigin(service, "10.0.0.9:5"))


KINDS = ("cart", "lock", "note", "page", "memo", "other")
KEYS = [f"a:{kind}:{number}" for kind in KINDS for number in range(3)] + ["b:1", "user:7:x"]
WAYS = (
    "GET {}",
    "SET {} v",
    "SET {} v EX 30",
    "SET {} v EX 90",
    "SET {} v PX 90000 NX",
    "HSET {} size 3",
    "HSET {} size big color red",
    "HGETALL {}",
    "DEL {}",
    "EXPIRE {} 100",
    "PING",
    "FLUSHALL",
)
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(WAYS), st.sampled_from(KEYS)).map(lambda drawn: drawn[0].format(drawn[1])),
        st.tuples(
            st.sampled_from(["MGET", "DEL", "EXISTS"]),
            st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        ).map(lambda drawn: " ".join([drawn[0], *drawn[1]])),
    ),
    max_size=40,
)
MODES = [
    (ModeRule("observe"),),
    (ModeRule("enforce"),),
    (ModeRule("enforce", "scope.write"), ModeRule("disabled", "field.unknown"), ModeRule("observe")),
]


def reads(commands: list[str], size: int, *, in_multi: bool) -> list[bytes]:
    """The requests in reads of `size` commands, each in a transaction if `in_multi`."""
    pieces = [b"".join(map(cmd, commands[at : at + size])) for at in range(0, len(commands), size)]
    return [cmd("MULTI") + piece + cmd("EXEC") if in_multi else piece for piece in pieces]


def expected(
    commands: list[str], modes: Sequence[ModeRule], service: str
) -> Counter[tuple[str, str, str, str, str]]:
    """What both policies say of each command, evaluated alone."""
    old = Authorizer(OLD, Modes(modes, OLD.services), clock=lambda: 1e9)
    new = Authorizer(NEW, Modes(modes, NEW.services), clock=lambda: 1e9)
    found: Counter[tuple[str, str, str, str, str]] = Counter()
    for command in commands:
        argv = command.encode().split()
        before, after = (one.rule(Asker(one.number(service)), argv) for one in (old, new))
        name = extract(argv).command
        assert name is not None
        for change, (violation, action) in changes(before, after):
            found[change, violation.rule, name.name, violation.entry, action] += 1 + violation.more
    return found


@settings(max_examples=200)
@given(
    COMMANDS,
    st.sampled_from(MODES),
    st.sampled_from(["one", "two", "unknown"]),
    st.integers(1, 12),
    st.booleans(),
)
def test_the_changes_are_those_of_evaluating_each_command_by_both(
    commands: list[str], modes: tuple[ModeRule, ...], service: str, size: int, in_multi: bool
) -> None:
    # Refusals inside MULTI take the client to a connection of its own: test_transactions below.
    one = pair(NEW, *modes, service=service)
    requests = reads(commands, size, in_multi=in_multi and modes[0].mode == "observe")
    for number, data in enumerate(requests):
        one.serve(data)
        if number % 3 == 2:
            one.told.flush()
    alone_in_transactions = 2 * len(requests) if requests and requests[0].startswith(cmd("MULTI")) else 0
    assert one.found() == expected(commands, modes, service)
    assert one.observer.commands.get(service, 0) == len(commands) + alone_in_transactions


@settings(max_examples=100)
@given(COMMANDS, st.sampled_from(MODES), st.sampled_from(["one", "two"]), st.integers(1, 12), st.booleans())
def test_a_candidate_changes_no_byte_and_no_count(
    commands: list[str], modes: tuple[ModeRule, ...], service: str, size: int, in_multi: bool
) -> None:
    one, other = pair(NEW, *modes, service=service), alone(modes, service)
    for data in reads(commands, size, in_multi=in_multi):
        for each in (one.session, other):
            each.from_client(data)
        assert one.session.counts == other.counts
        assert passed(one.session) == passed(other)
        answer(one.session)
        answer(other)
        assert without_ids(sent(one.session)) == without_ids(sent(other))
    told = other.executor.client.observer
    assert isinstance(told, Telemetry)
    assert one.told.counters.commands == told.counters.commands
    assert one.told.counters.violations == told.counters.violations


def without_ids(replies: bytes) -> list[bytes]:
    return [line.partition(b"(d-")[0] for line in replies.split(b"\r\n")]


@settings(max_examples=100)
@given(COMMANDS, st.sampled_from(["one", "two"]), st.integers(1, 12))
def test_the_changes_are_those_of_a_replay_of_the_same_commands(
    commands: list[str], service: str, size: int
) -> None:
    # A log has no values. Only the first of several keys is in a row of the replay.
    commands = [one for one in commands if len(one.split()) == 2]
    one = pair(RIGHTS, service=service)
    one.serve(*reads(commands, size, in_multi=False))
    replay = Replay(OLD, RIGHTS)
    lines = []
    for command in commands:
        argv = command.encode().split()
        lines.append(json.dumps(as_line(OLD, service, argv, extract(argv), 1)).encode())
    replay.feed(lines, pytest.fail)
    replayed = Counter[tuple[str, str, str, str]]()
    for row in replay.rows():
        replayed[row.what, row.command, row.rule, row.entry] += row.count
    reported = Counter[tuple[str, str, str, str]]()
    for found in one.rows:
        what = {"new": "breaks", "gone": "mends"}.get(found["change"])
        if what is not None:
            reported[what, found["command"], found["rule"], found["entry"]] += found["count"]
    assert reported == replayed


# -- what is counted, and when


def test_only_what_the_two_policies_say_differently_is_a_change() -> None:
    one = pair(SAME)
    one.serve(cmd("GET a:note:1") * 3, cmd("GET a:page:1") * 3, cmd("GET b:1"))
    assert {row["change"] for row in one.rows} == {"same"}
    assert one.observer.commands == {"one": 7}


def test_commands_that_both_policies_admit_are_counted_without_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = pair(SAME)
    one.serve(cmd("GET a:note:1"), cmd("GET a:note:1"))
    monkeypatch.setattr(Authorizer, "rule_in_steps", None)
    one.serve(cmd("GET a:note:2") * 100, cmd("GET a:note:2"))
    assert one.observer.commands == {}  # not gathered yet
    assert one.rows == []
    assert one.observer.commands == {"one": 103}


def test_changes_that_recur_are_counted_without_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pair(NEW)
    set_ = cmd("SET a:note:1 v")
    one.serve(*[set_] * 5)
    monkeypatch.setattr(Authorizer, "rule_in_steps", None)
    one.serve(*[set_] * 100, set_ * 50)
    assert one.found() == {("new", "scope.write", "SET", "note", "observed"): 155}
    assert one.observer.commands == {"one": 155}


def test_what_only_the_candidate_cannot_count_is_evaluated_by_the_candidate_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = changed(("services: [one, two]", "services: [one, two]\ncluster: true"))
    one = pair(cluster, service="two")
    one.serve(*[cmd("SET a:note:1 v")] * 5)
    monkeypatch.setattr(one.in_force, "rule_in_steps", None)  # the policy in force counts
    one.serve(*[cmd(f"SET a:note:{number} v") for number in range(10)])
    assert one.found() == {("same", "scope.write", "SET", "note", "observed"): 15}


def test_each_second_some_of_the_recurring_changes_are_recorded_in_full() -> None:
    one = pair(NEW)
    set_ = cmd("SET a:note:1 v")
    one.serve(*[set_] * 5)
    one.told.flush()
    one.session.executor.client.set_library(name=b"redis-py")
    one.serve(*[set_] * 5)
    (row,) = one.rows
    assert row["count"] == 10
    assert [client.get("library") for client in row["clients"]] == [None, "redis-py"]


def test_the_metrics_outlast_the_comparison_and_name_no_command() -> None:
    one = pair(NEW)
    one.serve(cmd("SET a:note:1 v") * 3, cmd("SET b:1 v"))
    counters = one.told.counters
    assert counters.candidate_commands == {"one": 4}
    assert counters.candidate_violations == {
        ("one", "scope.write", "new"): 3,
        ("one", "key.unregistered", "same"): 1,
    }
    one.told.beside = None
    assert one.told.counters.candidate_violations[("one", "scope.write", "new")] == 3


def test_a_violation_that_only_one_policy_refuses_is_stricter_or_milder() -> None:
    should = changed(("services: [one, two]", "services: [one, two]\nshould: [key.unregistered]"))
    strict, mild = pair(OLD, ModeRule("enforce"), policy=should), pair(should, ModeRule("enforce"))
    for one in (strict, mild):
        one.serve(cmd("SET b:1 v"), cmd("SET b:1 v"), cmd("SET b:1 v"))
    assert strict.found() == {("stricter", "key.unregistered", "SET", "", "refused"): 3}
    assert mild.found() == {("milder", "key.unregistered", "SET", "", "observed"): 3}


def test_the_candidate_is_ruled_with_the_waivers_in_force() -> None:
    one = pair(NEW, ModeRule("enforce"), waivers=[Waiver("one", "scope.write", entry="note")])
    one.serve(cmd("SET a:note:1 v"), cmd("SET a:lock:1 v EX 9"))
    assert one.found() == {
        ("new", "scope.write", "SET", "note", "waived"): 1,
        ("new", "scope.write", "SET", "lock", "refused"): 1,
    }


def test_break_glass_holds_for_both_policies() -> None:
    one = pair(NEW, ModeRule("enforce"))
    write = cmd("SET a:note:1 v")
    one.serve(*[write] * 4)
    one.in_force.glass.append(BreakGlass(2e9))
    candidate = one.in_force.candidate
    assert candidate is not None
    assert candidate.authorizer.glass is one.in_force.glass
    one.serve(*[write] * 4)
    one.in_force.glass.clear()
    one.serve(*[write] * 4)
    assert one.found() == {
        ("new", "scope.write", "SET", "note", "refused"): 8,
        ("new", "scope.write", "SET", "note", "observed"): 4,
    }


def test_a_client_that_the_policy_in_force_does_not_know_is_compared_too() -> None:
    more = changed(
        ("services: [one, two]", "services: [one, two, three]"), ("readers: [two]", "readers: [two, three]")
    )
    one = pair(more, service="three")
    one.serve(cmd("GET a:note:1"), cmd("GET a:note:1"), cmd("SET a:note:1 v"))
    assert one.found() == {
        ("gone", "scope.read", "GET", "note", "observed"): 2,
        ("same", "scope.write", "SET", "note", "observed"): 1,
    }


def test_services_that_the_candidate_does_not_know_are_counted_apart() -> None:
    fewer = changed(("services: [one, two]", "services: [other]"), ("[one], readers: [two]", "[other]"))
    one = pair(fewer, service="one")
    two = Session(one.session.context, ClientOrigin("two", "10.0.0.9:6"))
    for _ in range(3):
        for each in (one.session, two):
            each.from_client(cmd("PING") * 5 + cmd("GET a:note:1"))
            answer(each)
    assert one.rows
    assert one.observer.commands == {"one": 18, "two": 18}


# -- long evaluations, transactions, sessions


@pytest.mark.usefixtures("shortest_turns")
def test_the_candidate_has_its_own_turns_for_a_long_command() -> None:
    names = [f"a:memo:{number % 1000}" for number in range(3 * MANY)]
    one, other = pair(MOVED), pair(SAME)
    turns = []
    for each in (one, other):
        each.session.from_client(cmd("EXISTS", *names) + cmd("GET a:note:1"))
        count = 0
        while each.session.wants_turn:
            each.session.take_turn()
            count += 1
        turns.append(count)
    assert min(turns) > 2 * 2  # both policies have theirs
    assert one.found() == {
        ("gone", "key.unregistered", "EXISTS", "s", "observed"): 3 * MANY,
        ("new", "key.unregistered", "GET", "s", "observed"): 1,
    }
    assert one.observer.commands == {"one": 2}


def test_a_command_of_many_admitted_keys_is_left_to_turns() -> None:
    names = [f"a:note:{number % 1000}" for number in range(2 * MANY)]
    one = pair(MOVED)
    one.serve(cmd("DEL a:note:1"), cmd("DEL", *names))
    assert one.found() == {("new", "key.unregistered", "DEL", "s", "observed"): 2 * MANY + 1}


def test_a_transaction_keeps_the_pair_that_it_began_with() -> None:
    one = pair(NEW, sharing=False)
    one.session.from_client(cmd("MULTI"))
    one.session.from_upstream(b"+OK\r\n")
    dropped = Authorizer(OLD, Modes((ModeRule("observe"),), OLD.services), clock=lambda: 1e9)
    one.holder.authorizer = dropped  # as a reload does, or the end of a comparison
    one.session.from_client(cmd("SET a:note:1 v"))
    one.session.from_upstream(b"+QUEUED\r\n")
    one.session.from_client(cmd("EXEC"))
    one.session.from_upstream(b"*1\r\n+OK\r\n")
    one.session.from_client(cmd("SET a:note:1 v"))
    assert one.found() == {("new", "scope.write", "SET", "note", "observed"): 1}
    assert one.observer.commands == {"one": 3}


@pytest.mark.parametrize("sharing", [True, False])
def test_slots_of_a_transaction_are_compared_where_only_the_candidate_is_for_a_cluster(sharing: bool) -> None:
    cluster = changed(("services: [one, two]", "services: [one, two]\ncluster: true"))
    one = pair(cluster, sharing=sharing)
    for _ in range(2):
        requests = [cmd("MULTI"), cmd("SET a:note:1 v"), cmd("SET a:note:2 v"), cmd("EXEC")]
        if sharing:
            one.serve(b"".join(requests))
        else:
            for request, reply in zip(
                requests, [b"+OK", b"+QUEUED", b"+QUEUED", b"*2\r\n+OK\r\n+OK"], strict=True
            ):
                one.session.from_client(request)
                one.session.from_upstream(reply + b"\r\n")
    assert one.found() == {("new", "slot.cross", "SET", "note", "observed"): 2}
    assert one.observer.commands == {"one": 8}


def test_a_transaction_in_one_piece_stays_one_with_a_candidate() -> None:
    one = pair(NEW)
    piece = cmd("MULTI") + cmd("GET a:note:1") + cmd("EXEC")
    one.session.from_client(piece)
    assert passed(one.session) == piece
    assert one.session.route.is_shared


def test_a_recorder_sees_each_command_and_the_candidate_too() -> None:
    one = pair(NEW)
    seen: list[str] = []
    one.told.recorder = lambda _policy, service, _argv, _touches: seen.append(service)
    one.serve(cmd("SET a:note:1 v") * 4)
    one.told.recorder = None
    one.serve(cmd("SET a:note:1 v") * 4)
    assert seen == ["one"] * 4
    assert one.found() == {("new", "scope.write", "SET", "note", "observed"): 8}


# -- tenants and secrets

TENANTS_TEXT = """policy: t
claims: ["t:"]
services: [app]
placeholders: {id: "[a-z0-9]+", tenant: "[a-z]+"}
bind: {tenant: {from: certificate, pattern: "node-(.*)"}}
keys: {own: {key: "t:<tenant>:<id>", type: string, writers: [app]}}
"""
TENANTS = parse_policy(TENANTS_TEXT)
ANYBODY = parse_policy(TENANTS_TEXT.replace("bind:", "# bind:"))


def test_a_candidate_with_tenants_knows_the_caller() -> None:
    one = pair(TENANTS, service="app", policy=ANYBODY, names=["node-acme"])
    for _ in range(4):
        one.serve(cmd("SET t:acme:1 v") + cmd("SET t:globex:1 v"), cmd("GET t:acme:2"))
    assert one.found() == {("new", "scope.write", "SET", "own", "observed"): 4}


def test_a_candidate_without_tenants_lets_callers_reach_the_keys_of_others() -> None:
    one = pair(ANYBODY, service="app", policy=TENANTS, names=["node-acme"])
    for _ in range(4):
        one.serve(cmd("SET t:acme:1 v") + cmd("SET t:globex:1 v"), cmd("GET t:acme:2"))
    assert one.found() == {("gone", "scope.write", "SET", "own", "observed"): 4}


SECRET = changed(
    ("placeholders: {", 'placeholders: {token: {is: "[a-z0-9]+", secret: true}, '),
    ("  note:", '  login: {key: "a:login:<token>", type: string, writers: [two]}\n  note:'),
)


@pytest.mark.parametrize("knows", ["in_force", "candidate"])
def test_what_one_of_the_two_policies_masks_is_shown_nowhere(knows: str) -> None:
    old, new = (SECRET, OLD) if knows == "in_force" else (OLD, SECRET)
    one = pair(new, policy=old)
    for number in range(20):
        one.serve(cmd(f"SET a:login:topsecret{number} v"), cmd(f"SET b:login:topsecret{number} v"))
    one.serve(cmd("EVAL", "return redis.call('get', 'topsecret1')", 0))
    assert sum(row["count"] for row in one.rows) > 40
    assert "topsecret" not in json.dumps(one.rows)


def test_with_masked_keys_the_changes_show_no_key() -> None:
    one = pair(NEW)
    one.observer.mask(True)
    one.serve(cmd("SET a:note:one v") * 3)
    (row,) = one.rows
    assert row["example"].startswith("sha256:")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_fault_in_the_comparison_stops_no_command(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    one = pair(NEW)
    faults: list[Exception] = []
    candidate = one.in_force.candidate
    assert candidate is not None
    monkeypatch.setattr(candidate.authorizer, "_on_error", faults.append)
    monkeypatch.setattr(one.observer, "changes", None)
    if recorded:
        one.told.recorder = lambda *_: None
    one.session.from_client(cmd("SET a:note:1 v"))
    one.session.from_client(cmd("SET a:note:1 v"))
    assert passed(one.session) == cmd("SET a:note:1 v") * 2
    assert [type(fault) for fault in faults] == [TypeError, TypeError]
