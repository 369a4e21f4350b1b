"""A draft from a convention's traffic passes `check`, admits the traffic, and judges the convention's tests
nearly as the policy does that people wrote."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from keyfence.authoring.learn.draft import Draft, draft
from keyfence.authoring.learn.seen import Evidence
from keyfence.authoring.lint import check_policy
from keyfence.authoring.replay import Replay
from keyfence.authoring.simulator import Simulator
from keyfence.authoring.testing import Case, read_cases
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import parse_policy
from tests.authoring.learn.traffic import BLANK, CONVENTIONS, lines_of
from tests.policy.cases import POLICIES
from tests.servers import PROJECT

LEAST = 0.95  # of a convention's tests
# The tests whose verdict the draft does not share, and why.
VALUES = "the log holds no values, so the draft cannot list the words that are allowed"
FORM = "the values that were seen have no common form"
SCRIPT = "only the script's text shows which keys it makes of its arguments"
UNSEEN = "a draft forbids no commands that are allowed by default"
COMMANDS = "a draft restricts no commands on a key that its service may write"
LATER = "only a script sets this time to live, and no log shows it"
KNOWN = {
    "cubesandbox": {
        "a word that is not a state": VALUES,
        "a state of the code": VALUES,
        "and the other one": VALUES,
        "a number that is not a port": "a draft knows numbers, and not how large they may be",
        "no field of a route or of instance info lapses either": COMMANDS,
        "only HDEL removes": COMMANDS,
        "an event leaves by the trimming of XADD only": COMMANDS,
        "writes nothing else": "a service that may COPY to a key may write it; only a grant is narrower",
    },
    "card-relay": {},
    "container-registry": {
        "repository-size is MessagePack": "one byte of ASCII is MessagePack by chance only",
        "repository-size-timeout is one word": VALUES,
        "repository-lsn is a position in the log": FORM,
        "project-lease holds a path": FORM,
        "rate-limit lapses": LATER,
    },
    "cosky": {
        "an instance for a day": SCRIPT,
        "a renewal for a week": SCRIPT,
        "too few arguments": SCRIPT,
        "text that is not an id": SCRIPT,
        "a transaction takes the place of no script": UNSEEN,
        "user-index stays": "the key was only read, so nothing shows whether it may expire",
        "user-roles stays": "the key was only read, so nothing shows whether it may expire",
    },
    "general": {"129": "the longest key that was seen says little about the longest that is allowed"},
}


@functools.cache
def drafted(convention: str) -> Draft:
    evidence = Evidence()
    for line in lines_of(convention):
        evidence.add_command(line)
    return draft(evidence, convention)


def agrees(policy: CompiledPolicy, case: Case, now: int) -> bool:
    connection = Simulator(policy, now, enforces=case.enforces)
    for step in case.steps:
        if step.argv:
            service = step.service if step.service in policy.services else "unknown"
            broken = bool(connection.send(service, step.argv, step.caller).verdict.violations)
            if broken != (step.verdict == "violation"):
                return False
    return True


def disagreements(convention: str) -> tuple[set[str], int]:
    """The tests whose verdict the draft does not share, and how many there are."""
    policy = parse_policy(drafted(convention).text)
    file = read_cases(POLICIES / f"{convention}.test.yaml")
    return {case.about for case in file.cases if not agrees(policy, case, file.now)}, len(file.cases)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_draft_passes_check_without_warnings(convention: str, tmp_path: Path) -> None:
    file = tmp_path / "draft.yaml"
    file.write_text(drafted(convention).text)
    errors, warnings, _ = check_policy(file)
    assert [str(one) for one in (*errors, *warnings)] == []


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_replay_of_the_traffic_breaks_no_rule_of_the_draft(convention: str) -> None:
    found = drafted(convention)
    replay = Replay(BLANK, parse_policy(found.text))
    replay.feed((json.dumps(line).encode() for line in lines_of(convention)), pytest.fail)
    assert replay.commands == len(lines_of(convention))
    assert [row for row in replay.rows() if row.what == "breaks"] == []
    assert found.refused == []


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_draft_agrees_with_the_policy_that_people_wrote(convention: str) -> None:
    found, cases = disagreements(convention)
    assert found == KNOWN[convention].keys()
    assert 1 - len(found) / cases >= LEAST


def test_another_week_of_the_same_services_breaks_almost_nothing() -> None:
    """What a draft admits is what its services do, and not only the commands that it was made from."""
    for convention in CONVENTIONS:
        policy = parse_policy(drafted(convention).text)
        replay = Replay(BLANK, policy)
        lines = lines_of(convention, seed=2)
        replay.feed((json.dumps(line).encode() for line in lines), pytest.fail)
        assert sum(row.count for row in replay.rows() if row.what == "breaks") <= len(lines) / 100


def test_the_documentation_lists_the_differences() -> None:
    text = " ".join((PROJECT / "docs" / "draft.md").read_text().split())
    for convention, known in KNOWN.items():
        cases = len(read_cases(POLICIES / f"{convention}.test.yaml").cases)
        share = 100 * (cases - len(known)) / cases
        assert f"| {convention} | {cases} | {cases - len(known)} | {share:.1f} % |" in text
        assert all(f"| {convention} | {about} | {reason} |" in text for about, reason in known.items())
