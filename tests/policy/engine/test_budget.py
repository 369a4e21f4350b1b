"""The cost of a request, and the number of findings that it records.

Rule: the cost is linear in the request's bytes and bounded for its patterns. Similar violations are listed
up to a limit and counted beyond it. `tests/adversary/test_budget.py` searches for requests that cost more;
those that it found are repeated here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.large_policies import policy_text
from keyfence.commands.extract import extract
from keyfence.policy.budget import COMMAND_STEPS, PATTERN_STEPS, PAUSE_STEPS, Budget, driven
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.reach.reach import Nearest, Remembered
from keyfence.policy.verdict import LISTED
from keyfence.session.conversation import conversation
from keyfence.session.long_evaluation import LongEvaluation, Request
from keyfence.telemetry.telemetry import Telemetry
from tests.policy.evaluations import begun
from tests.session.sessions import session
from tests.steps import steps_of

# The bounds that docs/operations.md promises, in the steps that `tests.steps` counts.
PER_ARGUMENT_FOUND = 30
PER_ARGUMENT = 200
PER_BYTE = 60  # interpreted automata of the policy, and counted lengths
AT_MOST_ONCE = 400_000  # patterns, and the wording of violations

POLICY = Path(__file__).parents[3] / "policies" / "cubesandbox.yaml"
ROUTE = b"cube:v1:shared:sandbox:proxy:%d"


@cache
def policy() -> CompiledPolicy:
    return load_policy(POLICY)


@cache
def large() -> CompiledPolicy:
    return parse_policy(policy_text(2000)[0])


def words(text: str) -> list[bytes]:
    return [word.encode() for word in text.split()]


QUADRATIC = {
    "MIGRATE": words("MIGRATE h 1 k 0 1") + [b"x"] * 4000,
    "MIGRATE with KEYS": [*words("MIGRATE h 1 k 0 1"), *[b"x"] * 4000, b"KEYS"],
    "XREAD": [b"XREAD", b"x", *[b"STREAMS"] * 8000],
    "XREADGROUP": [b"XREADGROUP", b"x", *[b"STREAMS"] * 8000],
    "MSETEX": [b"MSETEX", b"2000", *[b"k", b"v"] * 2000, *[b"KEEPTTL"] * 4000],
    "SORT": [b"SORT", b"k", b"x", *[b"STORE"] * 8000],
    "GEORADIUS": [*words("GEORADIUS k 1 1 1 m x"), *[b"STORE"] * 8000],
    "EXISTS": [b"EXISTS", *[b"k"] * 8000],
    "LMPOP": [b"LMPOP", b"x", *[b"LEFT"] * 8000],
    "EVAL": [b"EVAL", b"x", b"8001", *[b"8000"] * 8000],
    "HSET": [b"HSET", ROUTE % 1, *[b"x"] * 8000],
    "XADD": [b"XADD", b"k", *[b"MAXLEN"] * 8000],
}


@pytest.mark.parametrize("name", QUADRATIC)
def test_the_steps_to_find_keys_are_linear_in_the_arguments(name: str) -> None:
    argv = QUADRATIC[name]
    most = 1000 + PER_ARGUMENT_FOUND * len(argv)
    steps_of(lambda: sum(1 for _ in extract(argv).accesses), most)


@pytest.mark.parametrize("name", QUADRATIC)
def test_the_steps_of_an_evaluation_are_linear_in_the_arguments(name: str) -> None:
    argv = QUADRATIC[name]
    evaluator = Evaluator(policy())
    steps_of(lambda: evaluator.decide(1, argv), AT_MOST_ONCE + PER_ARGUMENT * len(argv))


HOSTILE = {
    "stars": [b"PSUBSCRIBE", *[b"*"] * 500],
    "question marks": [b"PSUBSCRIBE", *[b"*%c" % letter + b"?" * 24 for letter in b"abcdefghijkl"]],
    "notifications": [b"PSUBSCRIBE", *[b"__keyspace@*%d" % n + b"?" * 24 for n in range(500)]],
    "KEYS": [b"KEYS", b"*1?" * 24],
    "classes": [b"KEYS", b"*" + b"[a-z]" * 200],
    "below a scope": [b"SCAN", b"0", b"MATCH", b"cube:v1:shared:*" + b"?a" * 500],
    "stars and signs": [b"SCAN", b"0", b"MATCH", b"cube:v1:" + b"*?[^a]" * 160],
    "many long ones": [b"PSUBSCRIBE", *[b"*%d" % n + b"?" * 900 for n in range(2000)]],
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("of", [policy, large])
def test_patterns_stay_within_their_budget(name: str, of: object) -> None:
    loaded = policy() if of is policy else large()
    evaluator = Evaluator(loaded)
    argv = HOSTILE[name]
    for warm in (b"KEYS", b"SCAN", b"PSUBSCRIBE"):
        evaluator.decide(1, [warm, *argv[1:-1], b"a*"] if warm == argv[0] else [warm, b"a*"])
    one = begun(evaluator, 1, argv)
    steps_of(lambda: driven(evaluator.verdict(one)), AT_MOST_ONCE + PER_ARGUMENT * len(argv))
    assert one.budget.spent <= COMMAND_STEPS


@pytest.mark.parametrize(
    "glob", [b"cube:v1:shared:*", b"*", b"cube:*:proxy:?*", b"team1:v1:*", b"team1:*:x?*", b"*[0-9]*:meta"]
)
def test_ordinary_patterns_stay_within_budget_in_a_policy_of_2000_entries(glob: bytes) -> None:
    evaluator = Evaluator(large())
    argv = [b"SCAN", b"0", b"MATCH", glob]
    one = begun(evaluator, 1, argv)
    verdict = driven(evaluator.verdict(one))
    assert all("takes too long" not in violation.message for violation in verdict.violations)
    assert one.budget.spent <= 500


def test_a_pattern_beyond_the_budget_is_refused_with_that_reason() -> None:
    evaluator = Evaluator(policy())
    long = b"a*" * 513  # longer than keyfence examines
    (found,) = evaluator.decide(1, [b"SCAN", b"0", b"MATCH", long]).violations
    assert found.rule == "scan.scope"
    assert found.message.endswith("finding out what it reaches takes too long")
    assert found.hint == "use fewer wildcards, or fewer patterns at a time"
    found = evaluator.decide(1, [b"PSUBSCRIBE", long]).violations[-1]
    assert (found.rule, found.hint) == ("channel.read", "use fewer wildcards, or fewer patterns at a time")


def test_a_pattern_that_exceeds_one_commands_budget_is_tried_again_for_others() -> None:
    known: Remembered[tuple[str, bytes], bool] = Remembered()
    spent = Budget()
    spent.take(COMMAND_STEPS)
    assert known.get(("", b"a*"), spent, lambda budget: budget.take(10) or None) is None
    assert known.get(("", b"a*"), Budget(), lambda budget: budget.take(10) or None) is True


def test_a_pattern_that_takes_too_long_is_computed_once() -> None:
    asked = []

    def find(budget: Budget) -> bool | None:
        asked.append(budget.limit)
        return budget.take(PATTERN_STEPS) or None

    known: Remembered[tuple[str, bytes], bool] = Remembered()
    assert [known.get(("", b"a*"), Budget(), find) for _ in range(3)] == [None, None, None]
    assert asked == [PATTERN_STEPS]


def test_patterns_in_repeated_use_stay_remembered() -> None:
    known: Remembered[tuple[str, bytes], bool] = Remembered(100)
    asked = []
    for number in range(10_000):
        known.get(("", b"hostile %d" % number), Budget(), lambda _: True)
        if not number % 40:
            known.get(("", b"ordinary"), Budget(), lambda _: bool(asked.append(1)) or True)
    assert len(asked) == 1
    assert len(known._young) + len(known._old) <= 100


def test_the_nearest_patterns_share_the_longest_prefix_with_the_glob() -> None:
    texts = [b"a:b:c*", b"a:b:*", b"a:*", b"b*", b"a:b:cc*", b"", b"a:b:d*"]
    for glob in (b"a:b:c", b"a:x", b"zzz", b"", b"a:b:cc*x"):

        def shared(text: bytes, glob: bytes = glob) -> int:
            return next((at for at in range(len(glob), -1, -1) if text.startswith(glob[:at])), 0)

        expected = sorted(texts, key=lambda text: (-shared(text), len(text)))
        found = Nearest(texts).to(glob, len(texts))
        ranks = [(-shared(text), len(text)) for text in found]
        assert sorted(found) == sorted(texts)
        assert ranks == [(-shared(text), len(text)) for text in expected]
        assert Nearest(texts).to(glob, 2) == found[:2]


# -- many violations


def test_the_first_similar_violations_are_listed_and_the_others_counted() -> None:
    evaluator = Evaluator(policy())
    found = evaluator.decide(1, [b"EXISTS", *[b"stray:%d" % n for n in range(5000)]]).violations
    assert [one.position for one in found] == list(range(1, LISTED + 1))
    assert {one.rule for one in found} == {"key.unregistered"}
    assert [one.more for one in found] == [0] * (LISTED - 1) + [5000 - LISTED]


def test_the_first_violation_of_each_entry_is_always_listed() -> None:
    evaluator = Evaluator(policy())
    keys = [ROUTE % n for n in range(100)] + [b"cube:v1:shared:other"] + [ROUTE % n for n in range(9)]
    found = evaluator.decide(1, [b"DEL", *keys]).violations
    writes = [one for one in found if one.rule == "scope.write"]
    assert [one.position for one in writes] == [*range(1, LISTED + 1), 101]
    assert writes[LISTED - 1].more == 100 - LISTED + 9
    assert sum(1 + one.more for one in writes) == 110


def test_a_violation_beyond_the_listed_ones_can_refuse_the_command() -> None:
    """A waiver on keys covers the first violations; a later one still refuses the command."""
    waiver = Waiver("CubeProxy", "key.unregistered", keys="stray:*")
    loaded = policy()
    authorizer = Authorizer(
        loaded, Modes([ModeRule("enforce")], loaded.services, [waiver]), clock=lambda: 1e9
    )
    keys = [b"stray:%d" % n for n in range(5000)]
    service = loaded.number("CubeProxy")
    assert authorizer.rule(Asker(service), [b"EXISTS", *keys]).refused_by is None
    ruling = authorizer.rule(Asker(service), [b"EXISTS", *keys, b"other"])
    assert ruling.refused_by is not None
    assert ruling.refused_by.key == b"other"
    assert sum(1 + one.more for one, action in ruling.findings if action == "waived") == 5000


def test_metrics_and_log_have_the_counts(tmp_path: Path) -> None:
    loaded = policy()
    authorizer = Authorizer(loaded, Modes([ModeRule("observe")], loaded.services))
    ruling = authorizer.rule(Asker(loaded.number("CubeProxy")), [b"DEL", *[ROUTE % n for n in range(5000)]])
    log = tmp_path / "log"
    telemetry = Telemetry()
    telemetry.log_to(str(log))
    telemetry.violations("CubeProxy", "c", "DEL", ruling.findings, "r")
    series = ("CubeProxy", "scope.write", "DEL", "sandbox-route", "observed")
    assert telemetry.counters.violations[series] == 5000
    telemetry.close()
    lines = log.read_text().splitlines()
    assert len(lines) <= LISTED
    assert sum(1 + int(line.partition('"merged":')[2].partition(",")[0]) for line in lines) == 5000


# -- evaluation in steps


def test_an_evaluation_in_steps_has_the_result_of_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = policy()
    authorizer = Authorizer(loaded, Modes([ModeRule("enforce")], loaded.services), clock=lambda: 1e9)
    service = loaded.number("CubeProxy")
    argv = [b"DEL", *[ROUTE % n for n in range(3000)], *[b"stray:%d" % n for n in range(3000)]]
    turns = 0
    monkeypatch.setattr(conversation, "TURN_SECONDS", 0.0)
    case = LongEvaluation(Request(authorizer, Asker(service), argv, None, 0, None), b"")
    while not case.advance(session().conversation):
        turns += 1
        authorizer.authorize(Asker(service), [b"GET", b"stray:1"])  # another client's command
    assert case.answer[0] == authorizer.authorize(Asker(service), argv)[0]
    assert turns >= 2 * 6000 // PAUSE_STEPS


def test_what_a_long_command_leaves_open_is_recorded_in_steps() -> None:
    loaded = parse_policy(
        "policy: p\nservices: [a]\nwriters: [a]\nplaceholders: {id: '[0-9]+'}\n"
        "keys: {k: {key: 'k:<id>', ttl: {max: 1h}}}\n"
    )
    pending = PendingTtls()
    authorizer = Authorizer(loaded, Modes((), loaded.services), clock=lambda: 1e9, pending=pending)
    keys = [b"k:%d" % number for number in range(2000)]
    steps = authorizer.authorize_in_steps(
        Asker(0), [b"MSET", *(part for key in keys for part in (key, b"v"))]
    )
    recorded = 0
    for _ in steps:
        assert len(pending) - recorded <= PAUSE_STEPS
        recorded = len(pending)
        authorizer.authorize(Asker(0), [b"GET", b"k:1"])  # another client's command
    assert len(pending) - recorded <= PAUSE_STEPS
    assert len(pending) == len(keys)
