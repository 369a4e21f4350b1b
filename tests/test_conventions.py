"""docs/conventions.md says which line of a shipped policy holds which sentence of its convention.

Each line exists, and the sentence's tests depend on it. They show a command that the policy admits and one
that it does not, at the level that the page gives.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from keyfence.authoring.simulator import Simulator
from keyfence.authoring.testing import Case, read_cases
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Severity
from tests.policy.cases import POLICIES
from tests.servers import PROJECT

PAGE = PROJECT / "docs" / "conventions.md"
LEVELS = ("must", "should", "may", "–")
REASONS = ("Not by a proxy", "Not by the language", "Not by the policy", "Nothing to hold")
_POLICY = re.compile(r"\[policies/[\w-]+\.yaml\]\(\.\./policies/([\w-]+)\.yaml\)")
_ROW = re.compile(r"^\| (\d+) \| (.+) \| (\S+) \| (.+) \| (.+) \|$")
_PLACES = re.compile(r"`[^`]+`(?:, `[^`]+`)*")


class Sentence(NamedTuple):
    """A row of the page."""

    policy: str
    number: str
    level: str
    held_by: str

    @property
    def places(self) -> list[str]:
        """The places in the policy that hold the sentence."""
        return [] if self.level == "–" else re.findall(r"`([^`]+)`", self.held_by.replace("\\|", "|"))


def _sentences() -> Iterator[Sentence]:
    for section in PAGE.read_text().split("\n## ")[1:]:
        policy = _POLICY.search(section)
        assert policy, f"this section links no policy: {section[:60]!r}"
        for line in section.splitlines():
            if row := _ROW.match(line):
                yield Sentence(policy[1], row[1], row[3], row[5])


SENTENCES = list(_sentences())
HELD = [one for one in SENTENCES if one.level != "–"]
POLICY_NAMES = sorted({one.policy for one in SENTENCES})
PLACES = sorted({(one.policy, place) for one in HELD for place in one.places})


def name_of(sentence: Sentence) -> str:
    return f"{sentence.policy}-{sentence.number}"


@functools.cache
def cases(policy: str) -> dict[str, list[Case]]:
    """The policy's tests, by the numbers of the sentences that they show."""
    found: dict[str, list[Case]] = {}
    for case in read_cases(POLICIES / f"{policy}.test.yaml").cases:
        for number in case.sentences:
            found.setdefault(number, []).append(case)
    return found


@functools.cache
def shipped(policy: str) -> CompiledPolicy:
    return load_policy(POLICIES / f"{policy}.yaml")


def outcomes(policy: CompiledPolicy, case: Case) -> list[list[tuple[str, Severity]]]:
    """The rules that each command of a test breaks, each with its level."""
    connection = Simulator(policy, 0, enforces=case.enforces)
    found = []
    for step in case.steps:
        if step.argv:
            service = step.service if step.service in policy.services else "unknown"
            answer = connection.send(service, step.argv, step.caller)
            found.append([(one.rule, one.severity) for one in answer.verdict.violations])
    return found


def at(tree: Any, place: str) -> tuple[Any, str]:
    """Returns the mapping in which a place of the policy is, and its name there. A name may have dots."""
    while place not in tree:
        name = max((one for one in tree if place.startswith(f"{one}.")), key=len)
        tree, place = tree[name], place.removeprefix(f"{name}.")
    return tree, place


def test_the_page_has_every_shipped_convention() -> None:
    assert [f"{name}.test.yaml" for name in POLICY_NAMES] == sorted(
        path.name for path in POLICIES.glob("*.test.yaml")
    )


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_sentences_are_numbered_in_their_order(policy: str) -> None:
    numbers = [one.number for one in SENTENCES if one.policy == policy]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


def test_each_line_of_the_tables_is_a_sentence_with_a_known_level() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(lines) == len(SENTENCES) > 150
    assert {one.level for one in SENTENCES} == set(LEVELS)


@pytest.mark.parametrize("sentence", SENTENCES, ids=name_of)
def test_a_sentence_names_its_places_or_says_why_it_is_not_held(sentence: Sentence) -> None:
    if sentence.level == "–":
        assert sentence.held_by.startswith(REASONS)
        assert sentence.number not in cases(sentence.policy), "a test shows it after all"
    else:
        assert _PLACES.fullmatch(sentence.held_by)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_tests_name_no_other_sentences(policy: str) -> None:
    known = {one.number for one in SENTENCES if one.policy == policy}
    assert cases(policy).keys() - known == set()


@pytest.mark.parametrize("sentence", HELD, ids=name_of)
def test_the_tests_of_a_sentence_show_both_sides_at_its_level(sentence: Sentence) -> None:
    found = [
        one
        for case in cases(sentence.policy)[sentence.number]
        for one in outcomes(shipped(sentence.policy), case)
    ]
    assert [] in found, "no test is admitted"
    refused = [{level for _, level in one} for one in found if one]
    if sentence.level == "must":
        assert any("must" in levels for levels in refused)
    elif sentence.level == "should":
        assert refused
        assert all(levels == {"should"} for levels in refused)
    else:
        assert not refused


@pytest.mark.parametrize(("policy", "place"), PLACES)
def test_without_a_place_the_tests_of_its_sentences_fail(policy: str, place: str) -> None:
    tree = yaml.load((POLICIES / f"{policy}.yaml").read_text(), yaml.BaseLoader)
    holder, name = at(tree, place)
    if place.startswith("placeholders."):
        holder[name] = ".+"  # anything
    else:
        del holder[name]
    try:
        without = parse_policy(yaml.safe_dump(tree, sort_keys=False))
    except FileError:
        return  # the policy cannot do without it
    for sentence in HELD:
        if sentence.policy == policy and place in sentence.places:
            shown = cases(policy)[sentence.number]
            assert any(outcomes(without, case) != outcomes(shipped(policy), case) for case in shown)
