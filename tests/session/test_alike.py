"""Commands that are alike are evaluated once; each is answered and counted as if it were evaluated alone."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.policy.enforcement.modes import BreakGlass, ModeRule, Modes
from keyfence.policy.engine.authorizer import Authorizer, InForce
from keyfence.session.conversation.conversation import ABORT_MARKER
from keyfence.telemetry.telemetry import Telemetry
from keyfence.telemetry.usage import Usage, Use
from tests.session.sessions import (
    RecordingObserver,
    Session,
    authorizer_with,
    cmd,
    passed,
    policy,
    replies,
    sent,
    session,
)

FOREIGN = "cube:v1:proxy:x:{}"  # CubeMaster may not write it, and no entry covers it
KEYS = [
    FOREIGN,
    "cube:v1:api:session:topsecret{}",  # the token is a secret
    "cube:v1:api:session:{}:x",
    "cube:v1:shared:sandbox:lifecycle:state:{}",
    "cube:v1:shared:sandbox:proxy:{}",
    "cube:v1:master:instance:meta:{}",
    "cube:v1:{}",
    "cube_instance_info:{}",
    "user:{}",
    "{}",
    "café:\r\n{}",
]
WAYS = [
    "SET {} v",
    "GET {}",
    "SET {} v EX 60",
    "HSET {} HostIP 10.0.0.1",
    "HSET {} Other x",
    "LPUSH {} a",
    "DEL {}",
]
MODES = [
    [ModeRule("enforce")],
    [ModeRule("observe")],
    [ModeRule("enforce", "scope.write"), ModeRule("observe")],
    [ModeRule("observe", "scope.write"), ModeRule("disabled", "key.unregistered"), ModeRule("enforce")],
]


def outcome_of(
    one: Session, observer: RecordingObserver, requests: list[bytes]
) -> tuple[list[bytes], Counter[object], Counter[object]]:
    """The replies without decision ids, the findings, and what became of the commands."""
    answers = []
    for request in requests:
        one.from_client(request)
        if passed(one):
            one.from_upstream(b"+OK\r\n")
        answers.append(re.sub(rb"\(d-\d+\)", b"", sent(one)))
    return answers, Counter(observer.found), Counter(observer.commands)


COMMANDS = st.lists(st.tuples(st.sampled_from(WAYS), st.sampled_from(KEYS), st.integers(0, 50)), max_size=30)


@settings(max_examples=300)
@given(
    st.sampled_from(["CubeMaster", "CubeProxy", "cube-proxy-sidecar", "unknown"]),
    st.sampled_from(MODES),
    COMMANDS,
)
def test_each_command_is_answered_and_counted_as_if_it_were_evaluated_alone(
    service: str, modes: list[ModeRule], drawn: list[tuple[str, str, int]]
) -> None:
    requests = []
    for way, key, number in drawn:
        requests.append(cmd(*(word.replace("{}", key.format(number)) for word in way.split())))
    short, long = RecordingObserver(), RecordingObserver()
    long.recorder = lambda *_: None  # who wants to see each command keeps it from the short way
    assert outcome_of(session(service, rules=modes, observer=short), short, requests) == outcome_of(
        session(service, rules=modes, observer=long), long, requests
    )


def uses(service: str, modes: list[ModeRule], requests: list[bytes], *, each_evaluated: bool) -> list[Use]:
    """The evidence that the requests give."""
    usage = Usage()
    telemetry = Telemetry(sinks=[usage])
    if each_evaluated:
        telemetry.recorder = lambda *_: None  # type: ignore[assignment]
    in_force = InForce(authorizer_with(*modes))
    one = session(service, in_force=in_force, observer=telemetry)
    for request in requests:
        one.from_client(request)
        if passed(one):
            one.from_upstream(b"+OK\r\n")
    telemetry.flush()
    return sorted(usage.take())


@settings(max_examples=200)
@given(
    st.sampled_from(["CubeMaster", "CubeProxy", "cube-proxy-sidecar", "unknown"]),
    st.sampled_from(MODES),
    COMMANDS,
)
def test_each_command_is_the_evidence_that_it_is_if_evaluated_alone(
    service: str, modes: list[ModeRule], drawn: list[tuple[str, str, int]]
) -> None:
    requests = [
        cmd(*(word.replace("{}", key.format(number)) for word in way.split()))
        for way, key, number in drawn * 2
    ]
    known = uses(service, modes, requests, each_evaluated=False)
    assert known == uses(service, modes, requests, each_evaluated=True)


def test_the_refusal_of_commands_that_are_alike_is_worded_once() -> None:
    observer = RecordingObserver()
    one = session("CubeMaster", observer=observer)
    one.from_client(b"".join(cmd("SET", FOREIGN.format(number), "v") for number in range(5)))
    answers = replies(sent(one))
    assert [FOREIGN.format(number).encode() in answer for number, answer in enumerate(answers)] == [True] * 5
    assert observer.decisions == 1
    assert observer.commands == [("CubeMaster", "SET", "refused")] * 5
    assert Counter(observer.found) == {
        ("CubeMaster", "SET", "scope.write", "refused"): 5,
        ("CubeMaster", "SET", "key.unregistered", "refused"): 5,
    }


def test_a_secret_is_masked_in_each_repeated_refusal() -> None:
    one = session("CubeMaster")
    one.from_client(b"".join(cmd("GET", f"cube:v1:api:session:topsecret{number}") for number in range(4)))
    answers = replies(sent(one))
    assert len(answers) == 4
    assert not any(b"topsecret" in answer for answer in answers)


def test_each_repeated_refusal_aborts_its_transaction() -> None:
    one = session("CubeMaster")
    one.from_client(cmd("SET", FOREIGN.format(1), "v") + cmd("SET", FOREIGN.format(2), "v"))
    assert passed(one) == b""
    sent(one)
    one.from_client(cmd("MULTI") + cmd("SET", FOREIGN.format(3), "v") + cmd("EXEC"))
    assert passed(one) == cmd("MULTI") + ABORT_MARKER + cmd("EXEC")
    one.from_upstream(b"+OK\r\n-ERR wrong number of arguments\r\n-EXECABORT no\r\n")
    ok, refused, aborted = replies(sent(one))
    assert (ok, aborted) == (b"+OK\r\n", b"-EXECABORT no\r\n")
    assert FOREIGN.format(3).encode() in refused


def test_break_glass_suspends_repeated_refusals_until_it_ends() -> None:
    loaded = policy()
    glass: list[BreakGlass] = []
    fixed = Authorizer(loaded, Modes([ModeRule("enforce")], loaded.services), glass, clock=lambda: 100.0)
    one = session("CubeMaster", in_force=InForce(fixed))
    request = cmd("SET", FOREIGN.format(1), "v")
    one.from_client(request * 3)
    assert passed(one) == b""
    glass.append(BreakGlass(until=200.0))
    one.from_client(request * 3)
    assert passed(one) == request * 3
    glass.clear()
    one.from_client(request * 3)
    assert passed(one) == b""


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_the_report_counts_each_repeated_refusal(mode: str) -> None:
    fixed = authorizer_with(ModeRule(mode))  # type: ignore[arg-type]
    usage = Usage()
    telemetry = Telemetry(sinks=[usage])
    one = session("CubeMaster", in_force=InForce(fixed), observer=telemetry, sharing=True)
    for number in range(200):
        one.from_client(cmd("SET", f"bench:user:{number}", "v") + cmd("SET", FOREIGN.format(number), "v"))
        if one.counts:
            one.from_shared(b"+OK\r\n" * sum(one.counts), sum(one.counts), True)
            one.counts.clear()
    rows = {(row["rule"], row["shape"]): row["count"] for row in telemetry.tally.snapshot()}
    assert rows["key.unregistered", "bench:user:<int>"] >= 190  # but for those by which the words were learnt
    assert sum(count for (rule, _), count in rows.items() if rule == "key.unregistered") == 400
    assert sum(count for (rule, _), count in rows.items() if rule == "scope.write") == 200
    outcome = "refused" if mode == "enforce" else "forwarded"
    assert telemetry.counters.commands == {("CubeMaster", "SET", outcome): 400}
    asked = {name: times for _, kind, name, times, _ in usage.take() if kind == "rule"}
    assert (asked["key.unregistered"], asked["scope.write"]) == (400, 200)  # whether they are refused or not
    evaluated = sum(telemetry.counters.judged_at_length.values())
    assert evaluated < 100  # the first ones of each shape, while its words are learnt


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("GET cube:v1:master:instance:meta:a", []),
        ("PING", []),
        ("MGET cube:v1:master:instance:meta:a cube:v1:master:instance:meta:b", []),
        ("SET cube:v1:master:instance:meta:a v", []),
        ("HSET cube:v1:shared:sandbox:proxy:7c8f Other 1", ["violation"]),  # the next one is known
        ("SET user:1 v", ["violation"]),
        ("OBJECT ENCODING cube:v1:master:instance:meta:a", ["command"] * 3),
        ("CLIENT ID", ["session"] * 3),
        ("SET cube:v1:master:instance:meta:a " + 70_000 * "x", ["large"]),  # then it has its own connection
    ],
)
def test_evaluated_commands_are_counted_by_reason(text: str, reasons: list[str]) -> None:
    observer = RecordingObserver()
    one = session("CubeMaster", rules=[ModeRule("observe")], observer=observer, sharing=True)
    for _ in range(3):
        one.from_client(cmd(text))
        if not one.route.is_shared:
            one.from_upstream(b"+OK\r\n")
        elif one.counts:
            one.from_shared(b"+OK\r\n", 1, True)
            one.counts.clear()
    assert observer.at_length == reasons


def test_a_recorder_sees_every_command_and_the_reason_says_so() -> None:
    observer = RecordingObserver()
    observer.recorder = lambda *_: None
    session("CubeMaster", observer=observer).from_client(cmd("GET cube:v1:master:instance:meta:a"))
    assert observer.at_length == ["recorded"]


# Commands with a violation that refuses each of them, by the rule; "{}" differs from call to call.
REFUSED_ALIKE = {
    "scope.write": ("CubeMaster", "SET cube:v1:proxy:x:{} v"),
    "scope.read": ("CubeProxy", "GET cube:v1:api:setting:{}"),
    "scope.read of a secret": ("CubeMaster", "GET cube:v1:api:session:topsecret{}"),
    "key.unregistered": ("CubeMaster", "SET bench:user:{} v"),
    "key.unregistered, may be a secret": ("CubeMaster", "SET bench:user:123456789{} v"),
    "key.unregistered, a prefix is missing": ("CubeMaster", "GET node:metric:n{}"),
    "key.unregistered, a prefix may be missing": ("CubeProxy", "GET node:metric:n{}"),
    "key.unregistered in a scope": ("CubeMaster", "GET cube:v1:master:other:{}"),
    "key.unregistered, too long to be shown": ("CubeMaster", f"GET bench:{'x' * 130}:{{}}"),
    "key.unregistered, with an escape": ("CubeMaster", "GET bench:{}:'x'"),
    "key.format": ("CubeMaster", "GET cube:v1:master:node:metric:{}:more"),
    "key.format of a secret": ("CubeAPI", "GET cube:v1:api:session:topsecret{}:x"),
    "key.format, in no scope": ("CubeMaster", "GET cube:v9:{}"),
    "key.legacy": ("CubeProxy", "SET bypass_host_proxy:{} v"),
    "key.legacy, a key that is only an id": ("CubeMaster", "SET n{} v"),
    "type.mismatch": ("CubeMaster", "LPUSH cube:v1:shared:sandbox:proxy:{} v"),
    "ttl.required": ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running"),
    "ttl.range": ("cube-proxy-sidecar", "SET cube:v1:shared:sandbox:lifecycle:state:{} running EX 7200"),
    "ttl.forbidden": ("CubeMaster", "EXPIRE cube:v1:shared:sandbox:proxy:{} 60"),
}


@pytest.mark.parametrize("rule", REFUSED_ALIKE)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one read"])
def test_each_repeated_refusal_is_worded_as_if_it_were_the_first(rule: str, together: bool) -> None:
    service, text = REFUSED_ALIKE[rule]
    numbers = [*range(3), 10, 1234, 0, 7]
    requests = [cmd(*(word.replace("{}", str(number)) for word in text.split())) for number in numbers]
    short, long = RecordingObserver(), RecordingObserver()
    long.recorder = lambda *_: None
    expected = outcome_of(session(service, observer=long), long, requests)
    name = rule.replace(",", " ").split(maxsplit=1)[0]
    assert all(answer.startswith(f"-NOPERM [{name}] ".encode()) for answer in expected[0])
    if together:
        one = session(service, observer=short)
        one.from_client(b"".join(requests))
        answers = [re.sub(rb"\(d-\d+\)", b"", answer) for answer in replies(sent(one))]
        assert (answers, Counter(short.found), Counter(short.commands)) == expected
    else:
        assert outcome_of(session(service, observer=short), short, requests) == expected
    assert short.decisions == 1  # all others were refused by the cache


def test_the_words_of_a_refusal_are_not_kept_if_they_depend_on_the_value() -> None:
    observer = RecordingObserver()
    one = session("CubeMaster", observer=observer)
    route = "cube:v1:shared:sandbox:proxy:7c8f"
    for field in ("HostIP", "SandboxIP", "HostIP"):
        one.from_client(cmd("HSET", route, field, "nowhere"))
        assert f"the field {field} of {route}".encode() in sent(one)
    assert observer.decisions == 3


@pytest.mark.parametrize("mode", ["observe", "enforce"])
@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("bench:user:{}@x.de", "bench:user:<email>"),  # no skeleton
        ("job:{}:été", "job:<int>:été"),  # no skeleton
        ("bench:{}:cart", "bench:<*>:cart"),  # each name has a skeleton of its own
    ],
)
def test_keys_without_a_known_skeleton_are_counted_by_their_shape(mode: str, key: str, shape: str) -> None:
    fixed, telemetry, long = authorizer_with(ModeRule(mode)), Telemetry(), RecordingObserver()  # type: ignore[arg-type]
    one = session("CubeMaster", in_force=InForce(fixed), observer=telemetry, sharing=True)
    long.recorder = lambda *_: None
    other = session("CubeMaster", in_force=InForce(fixed), observer=long, sharing=True)
    letters = "bcdf"
    names = [f"{a}a{b}e{c}o{d}" for a in letters for b in letters for c in letters for d in letters]
    for number, name in enumerate(names):
        request = cmd("SET", key.format(number if "<int>" in shape else name), "v")
        answers = []
        for each in (one, other):
            each.from_client(request)
            passed(each)
            if each.counts:
                each.from_shared(b"+OK\r\n", 1, True)
                each.counts.clear()
            answers.append(re.sub(rb"\(d-[0-9a-f]+\)", b"", sent(each)))
        assert answers[0] == answers[1]
    counts = {row["shape"]: row["count"] for row in telemetry.tally.snapshot()}
    assert sum(counts.values()) == len(names)
    assert counts[shape] > 100
    assert telemetry.counters.judged_at_length["violation"] < 0.7 * len(names)
