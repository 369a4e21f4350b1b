"""Explaining in steps: each step does a bounded part of the work, for any command and policy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.keys import KeyChecks
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies import nearest
from keyfence.policy.remedies.explain import explain, explain_in_steps

ENTRIES = 500
WORDS = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}word" for number in range(26)]
POLICY = parse_policy(
    'policy: shop\nclaims: ["hb:"]\nservices: [shop]\nplaceholders: {id: "[a-z0-9]+"}\nkeys:\n'
    + "\n".join(
        f'  e{n}: {{key: "hb:{WORDS[n % 26]}:{WORDS[n // 26]}{n}:<id>", writers: [shop]}}'
        for n in range(ENTRIES)
    )
)


def steps_of(argv: list[bytes], done: Counter[str]) -> tuple[list[Counter[str]], dict[str, Any]]:
    """What each step has done, and the result."""
    steps, found = explain_in_steps(Evaluator(POLICY), "shop", argv), []
    while True:
        done.clear()
        try:
            next(steps)
        except StopIteration as end:
            return [*found, done.copy()], end.value
        found.append(done.copy())


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the comparisons of two segments, and the keys that are evaluated."""
    counted: Counter[str] = Counter()

    class Matcher(nearest.difflib.SequenceMatcher):  # type: ignore[name-defined, misc]
        def __init__(self, *arguments: Any) -> None:
            counted["compared"] += 1
            super().__init__(*arguments)

    monkeypatch.setattr(nearest.difflib, "SequenceMatcher", Matcher)
    original = KeyChecks.access

    def access(self: KeyChecks, use: Any) -> Any:
        counted["evaluated"] += 1
        return original(self, use)

    monkeypatch.setattr(KeyChecks, "access", access)
    return counted


def test_a_step_compares_a_key_with_a_few_entries(done: Counter[str]) -> None:
    argv = [b"MGET", *(b"hb:%s:%sx:7" % (WORDS[n].encode(), WORDS[-n].encode()) for n in range(5))]
    steps, found = steps_of(argv, done)
    assert sum(one["compared"] for one in steps) > 5 * len(WORDS)
    assert max(one["compared"] for one in steps) < 100
    assert found == explain(POLICY, "shop", argv)


def test_a_step_evaluates_a_few_keys(done: Counter[str]) -> None:
    argv = [b"MGET", *(b"hb:none:%d" % number for number in range(3_000))]
    steps, found = steps_of(argv, done)
    assert sum(one["evaluated"] for one in steps) >= 3_000
    assert max(one["evaluated"] for one in steps) <= 100
    assert found["violations"]
