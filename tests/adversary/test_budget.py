"""Searches for requests that cost too much, and for violations that get lost among many.

The class: a request whose cost grows faster than its bytes. The searches make requests from the words of
options, repeated and grown, and count the lines that the interpreter runs for them.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from pathlib import Path

from benchmarks.large_policies import policy_text
from keyfence.commands.extract import extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import COMMAND_STEPS, driven
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import LISTED
from tests.adversary.conftest import Search
from tests.commands.calls import NUMBERS, TRICKY, WORDS
from tests.policy.engine.test_budget import AT_MOST_ONCE, PER_ARGUMENT, PER_ARGUMENT_FOUND, PER_BYTE
from tests.policy.evaluations import begun
from tests.steps import steps_of

POLICIES = sorted(
    path
    for path in (Path(__file__).parents[2] / "policies").glob("*.yaml")
    if not path.name.endswith(".test.yaml")
)
NAMES = sorted(name for name in COMMANDS if not COMMANDS[name].subcommands)
# They name patterns, channels or scripts.
WIDE = (b"KEYS", b"SCAN", b"PSUBSCRIBE", b"PUBSUB CHANNELS", b"SUBSCRIBE", b"CLIENT TRACKING", b"EVAL")
# A request of this size takes a second under tracing. Quadratic cost already shows with fewer arguments.
MOST_ARGUMENTS = 1_500
PIECES = [
    b"*",
    b"?",
    b"[a-z]",
    b"[^x]",
    b"[0-9]",
    b"\\*",
    b"a",
    b"1",
    b":",
    b"n",
    b"v1",
    b"__keyspace@",
    b"__:",
]


@cache
def evaluators() -> list[tuple[Evaluator, list[bytes]]]:
    """Returns evaluators of the shipped policies and of a large one, each with keys of all kinds."""
    policies = [*map(load_policy, POLICIES), parse_policy(policy_text(500)[0])]
    return [(Evaluator(policy), _keys_of(policy)) for policy in policies]


def _keys_of(policy: CompiledPolicy) -> list[bytes]:
    keys = [target.pattern.example() for target in policy.targets]
    return [*keys, *(key + b"\0!" for key in keys[:50]), b"nobody:1", b"", b"a" * 300]


def words(rng: random.Random, keys: list[bytes], count: int) -> list[bytes]:
    """Returns options, numbers and keys, with short runs repeated."""
    unit = [
        rng.choice(rng.choice((WORDS, NUMBERS, keys, [b"x", b"a", b"*"]))) for _ in range(rng.randint(1, 4))
    ]
    return [unit[at % len(unit)] for at in range(count)]


def glob(rng: random.Random, keys: list[bytes]) -> bytes:
    """Returns a pattern of a few pieces, often repeated, after the beginning of a key."""
    key = rng.choice(keys)
    beginning = key[: rng.randint(0, len(key))] if rng.random() < 0.5 else b""
    unit = b"".join(rng.choices(PIECES, k=rng.randint(1, 3)))
    start = rng.choice([b"", b"*", b"*1", b"?"])
    return (beginning + start + unit * rng.choice((1, 3, 24, 100, 400)))[: rng.choice((30, 200, 1024, 2000))]


def request(rng: random.Random, keys: list[bytes]) -> list[bytes]:
    """Returns a long request: as many arguments as its arity needs, and repeated words."""
    name = rng.choice(rng.choice((NAMES, TRICKY, WIDE)))
    parts = name.split()
    count = rng.randint(10, MOST_ARGUMENTS)
    least = words(rng, keys, abs(COMMANDS[name].command.arity))
    if name in WIDE and rng.random() < 0.7:
        several = glob(rng, keys)
        globs = [several + b"%d" % number for number in range(rng.choice((1, 1, 12, 500)))]
        match = [b"0", b"MATCH"] if name == b"SCAN" else []
        return [*parts, *match, *(globs if rng.random() < 0.5 else [several] * len(globs))]
    if rng.random() < 0.3:
        counted = [b"%d" % rng.choice((0, 1, count // 2, count, count + 1))]
        return [*parts, *least[:1], *counted, *words(rng, keys, count)]
    return [*parts, *least, *words(rng, keys, count // 2), *words(rng, keys, count // 2)]


def test_search_for_requests_whose_keys_are_slow_to_find(search: Search) -> None:
    _, keys = evaluators()[0]
    for rng in search.attempts_of_at_least(100):
        argv = request(rng, keys)
        most = 1_000 + PER_ARGUMENT_FOUND * len(argv)
        steps_of(lambda argv=argv: sum(1 for _ in extract(argv).accesses), most)  # type: ignore[misc]


def test_search_for_requests_that_are_slow_to_evaluate(search: Search) -> None:
    for rng in search.attempts_of_at_least(20):
        evaluator, keys = rng.choice(evaluators())
        service = rng.randrange(len(evaluator.policy.services))
        argv = request(rng, keys)
        touches = extract(argv)
        # The tables for patterns are built once per policy and service.
        for warm in ([b"KEYS", b"a*"], [b"PSUBSCRIBE", b"a*"], [*argv[:3], b"a*"]):
            evaluator.decide(service, warm)
        most = AT_MOST_ONCE + PER_ARGUMENT * len(argv) + PER_BYTE * sum(map(len, argv))
        one = begun(evaluator, service, argv, touches)
        steps_of(lambda: driven(evaluator.verdict(one)), most)  # noqa: B023
        assert one.budget.spent <= COMMAND_STEPS


def test_search_for_violations_that_get_lost_among_many(search: Search) -> None:
    """Violations counted together have the same kind and the same action, and all are counted."""
    for rng in search.attempts_of_at_least(20):
        evaluator, keys = rng.choice(evaluators())
        policy = evaluator.policy
        service = rng.randrange(len(policy.services))
        name = policy.services[service]
        few = rng.choices(keys, k=3)
        argv = [rng.choice((b"DEL", b"EXISTS", b"MGET", b"MSET", b"SUNION"))]
        argv += [rng.choice(few) + rng.choice((b"", b"1")) for _ in range(rng.randint(1, 400))]
        argv += rng.choices(keys, k=rng.randint(0, 5))
        waivers = [
            Waiver(
                name, rng.choice(list(RULES)), keys=rng.choice(("*", "n*", "*1", few[0].decode("latin-1")))
            )
            for _ in range(6)
        ]
        modes = Modes(
            [ModeRule(rng.choice(("observe", "enforce")), rng.choice(list(RULES))), ModeRule("enforce")],
            policy.services,
            waivers,
        )
        authorizer = Authorizer(policy, modes, clock=lambda: 0.0)
        answer: Counter[tuple[str, str, str, str]] = Counter()
        one = begun(authorizer.evaluator, service, argv)
        for found in authorizer.evaluator.checks.violations(one):
            action = modes.action(found, service, one.name) if found is not None else None
            if found is not None and action is not None:
                answer[found.rule, found.entry, found.severity, action] += 1
        ruling = authorizer.rule(Asker(service), argv)
        counted: Counter[tuple[str, str, str, str]] = Counter()
        for violation, action in ruling.findings:
            counted[violation.rule, violation.entry, violation.severity, action] += 1 + violation.more
        assert counted == answer
        assert (ruling.refused_by is not None) == any(key[3] == "refused" for key in answer)
        assert len(ruling.findings) <= len(answer) + LISTED * len({(key[0], key[3]) for key in answer})
