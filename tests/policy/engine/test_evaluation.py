"""An evaluation stands for itself: others of the same evaluator run in its pauses and change nothing."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import NamedTuple

import pytest

from keyfence.policy.budget import driven
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine import evaluation
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer, Steps
from keyfence.policy.engine.evaluation import Evaluation
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Ruling

POLICY = """
policy: p
services: [app, ops, guest]
bind: {tenant: {from: user}}
placeholders: {id: "[0-9]+"}
keys:
  own: {key: "own:<tenant>:<id>", writers: app, readers: [app, ops], ttl: {max: 1h}, values: integer}
  open: {key: "open:<id>", writers: [app, ops], ttl: {max: 1h}, max_members: 100}
  told: {key: "told:<id>", readers: guest, writers: ops}
grants: {ops: {commands: [KEYS], keys: ["own:*"]}}
"""
OTHER = POLICY.replace("writers: [app, ops]", "writers: [app]").replace("max: 1h", "max: 2h")
ACME, GLOBEX = Caller(b"acme"), Caller(b"globex")


class Asked(NamedTuple):
    """A command, who sends it, and the policy that evaluates it."""

    service: str
    caller: Caller
    argv: list[bytes]
    by: int = 0  # in force; 1: the candidate


def _pairs(form: bytes, count: int) -> list[bytes]:
    return [part for number in range(count) for part in (form % number, b"%d" % number)]


COMMANDS = [
    Asked("app", ACME, [b"MSET", *_pairs(b"own:acme:%d", 300)]),
    Asked("app", GLOBEX, [b"MSET", *_pairs(b"own:acme:%d", 300)]),
    Asked("app", GLOBEX, [b"MSET", *_pairs(b"own:globex:%d", 200), *_pairs(b"stray:%d", 20)], 1),
    Asked("ops", NOBODY, [b"MSET", *_pairs(b"open:%d", 250), *_pairs(b"told:%d", 50)]),
    Asked("ops", NOBODY, [b"MSET", *_pairs(b"open:%d", 250)], 1),
    Asked("guest", NOBODY, [b"MGET", *(b"told:%d" % number for number in range(400)), b"open:1"]),
    Asked("app", ACME, [b"SUNIONSTORE", b"open:1", *(b"own:acme:%d" % number for number in range(300))]),
    Asked("ops", ACME, [b"PSUBSCRIBE", *(b"open:%d?*" % number for number in range(150))]),
    Asked("app", ACME, [b"KEYS", b"own:acme:*"]),
    Asked("app", GLOBEX, [b"KEYS", b"own:acme:*"]),
    Asked("guest", NOBODY, [b"SET", b"open:1", b"v"]),
    Asked("app", ACME, [b"SET", b"own:acme:1", b"text"]),
    Asked("app", ACME, [b"LPUSH", b"open:1", b"v"]),
    Asked("app", GLOBEX, [b"NOSUCH", b"x"]),
]


class Found(NamedTuple):
    """All that an evaluation finds."""

    ruling: Ruling
    left_open: list[tuple[int, bytes]]
    not_kept: int


def _authorizers() -> list[Authorizer]:
    policies = [parse_policy(POLICY), parse_policy(OTHER)]
    return [
        Authorizer(one, Modes([ModeRule("enforce")], one.services), clock=lambda: 1e9) for one in policies
    ]


def _steps(authorizers: list[Authorizer], asked: Asked) -> Steps:
    one = authorizers[asked.by]
    values = one.policy.values(asked.caller)
    return one.rule_in_steps(Asker(one.number(asked.service), values), asked.argv)


def _found(answer: tuple[Ruling, Evaluation]) -> Found:
    ruling, done = answer
    left = [(one.outcome, one.access.key) for one in done.left_open]
    return Found(ruling, left, done.not_kept)


def _interleaved(steps: list[Steps], choose: random.Random) -> list[Found]:
    """Gives each a turn, in any order, until all have ended."""
    found: dict[int, Found] = {}
    running = dict(enumerate(steps))
    while running:
        number = choose.choice(list(running))
        try:
            next(running[number])
        except StopIteration as end:
            found[number] = _found(end.value)
            del running[number]
    return [found[number] for number in range(len(steps))]


@pytest.fixture
def few_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a command with many keys, some are not followed."""
    monkeypatch.setattr(evaluation, "MAX_KEYS", 100)


@pytest.mark.usefixtures("few_followed")
@pytest.mark.parametrize("seed", range(20))
def test_evaluations_in_turns_find_what_they_find_one_after_the_other(seed: int) -> None:
    choose, authorizers = random.Random(seed), _authorizers()
    chosen = choose.choices(COMMANDS, k=12)
    alone = [_found(driven(_steps(_authorizers(), one))) for one in chosen]
    together = _interleaved([_steps(authorizers, one) for one in chosen], choose)
    assert together == alone


@pytest.mark.usefixtures("few_followed")
def test_the_commands_pause_and_leave_questions_open() -> None:
    """Otherwise the test above would show nothing."""
    pauses = [sum(1 for _ in _steps(_authorizers(), one)) for one in COMMANDS]
    assert sum(pauses) > 30
    found = [_found(driven(_steps(_authorizers(), one))) for one in COMMANDS]
    assert sum(bool(one.left_open) for one in found) >= 5
    assert any(one.not_kept for one in found)
    assert len({one.ruling.refused_by for one in found}) > 6


def test_a_reply_is_prepared_while_an_evaluation_pauses() -> None:
    authorizers = _authorizers()
    long, short = COMMANDS[1], COMMANDS[10]
    paused: Generator[None, None, tuple[Ruling, Evaluation]] = _steps(authorizers, long)
    next(paused)
    ruling, done = driven(_steps(authorizers, short))
    assert ruling.refused_by is not None
    drafted = authorizers[0].drafted(done, ruling.refused_by)
    assert drafted is not None
    worded, draft = drafted
    assert draft.prepared(worded.message.encode()) is not None
    assert worded.message != ruling.refused_by.message
    assert _found(driven(paused)) == _found(driven(_steps(_authorizers(), long)))


def test_an_evaluation_ends_under_the_rights_with_which_it_began() -> None:
    """A right on a deprecated form ends in the pause of a command that uses it."""
    now = [0.0]
    policy = parse_policy(
        "policy: p\nservices: [a]\nwriters: [a]\nplaceholders: {id: '[0-9]+'}\n"
        "keys: {k: {key: 'k:<id>'}}\nlegacy: {keys: {'o:<id>': k}, allow: [read], until: 2026-06-20, "
        "on_expiry: refuse}\n"
    )
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services), clock=lambda: now[0])
    argv = [b"MGET", *(b"o:%d" % number for number in range(500))]
    steps = authorizer.rule_in_steps(Asker(0), argv)
    next(steps)
    now[0] = 2e9
    assert authorizer.rule(Asker(0), argv).refused_by is not None
    assert driven(steps)[0].refused_by is None
