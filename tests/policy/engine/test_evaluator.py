"""The evaluator: `admits`, the full evaluation, and errors in either.

Rule: `admits` never contradicts the full evaluation. An error in a decision is a violation.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyfence.commands.extract import extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.budget import driven
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Mode
from tests.policy.cases import POLICIES, steps_of
from tests.policy.engine.test_channels_and_scripts import POLICY as MESH
from tests.policy.evaluations import admits, begun

CUBE = Evaluator(load_policy(POLICIES / "cubesandbox.yaml"))
_, CASES = steps_of(POLICIES / "cubesandbox.test.yaml")
SHIPPED = {
    file.name: (Evaluator(load_policy(path)), steps)
    for file in sorted(POLICIES.glob("*.test.yaml"))
    for path, steps in [steps_of(file)]
}
TOGETHER = Evaluator(load_policy(POLICIES))
EVALUATORS = [*(evaluator for evaluator, _ in SHIPPED.values()), TOGETHER, Evaluator(parse_policy(MESH))]
STEPS = [step.argv for _, steps in SHIPPED.values() for step in steps]

NAMES = sorted(name for name in COMMANDS if b" " not in name)
KEYS = [
    *sorted({word for argv in STEPS for word in argv if b":" in word}),
    b"mesh-{default}:cfg:a",
    b"mesh-{system}:role_idx",
    b"x",
]
WORDS = [
    b"1",
    b"0",
    b"EX",
    b"60",
    b"GET",
    b"MATCH",
    b"*",
    b"HostIP",
    b"10.0.0.1",
    b"running",
    b"STREAMS",
    b"",
]
ARGV = st.builds(
    lambda name, arguments: [name, *arguments],
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(KEYS) | st.sampled_from(WORDS) | st.binary(max_size=6), max_size=6),
)


def changed(argv: list[bytes], data: st.DataObject) -> list[bytes]:
    """Returns the command with one argument replaced."""
    at = data.draw(st.integers(0, len(argv) - 1))
    word = data.draw(st.sampled_from(KEYS) | st.sampled_from(WORDS) | st.sampled_from(NAMES))
    return [*argv[:at], word, *argv[at + 1 :]]


@given(st.sampled_from(EVALUATORS), st.data(), ARGV | st.sampled_from(STEPS))
@settings(max_examples=300, deadline=None)
def test_a_command_that_admits_accepts_breaks_no_rule(
    evaluator: Evaluator, data: st.DataObject, argv: list[bytes]
) -> None:
    if argv and data.draw(st.booleans()):
        argv = changed(argv, data)
    service = data.draw(st.integers(0, len(evaluator.policy.services) - 1))
    touches = extract(argv)
    verdict = evaluator.evaluate(Asker(service), argv, touches)
    if admits(evaluator, service, argv, touches):
        assert verdict.allowed


def test_admits_agrees_with_the_full_evaluation_on_every_policy_test() -> None:
    for evaluator, steps in SHIPPED.values():
        for step in steps:
            service, touches = evaluator.policy.number(step.service), extract(step.argv)
            whole = begun(evaluator, service, step.argv, touches)
            verdict = driven(evaluator.verdict(whole))
            brief = begun(evaluator, service, step.argv, touches)
            if evaluator.checks.admits(brief):
                assert verdict.allowed, step
                assert brief.left_open == whole.left_open, step


def test_everyday_commands_are_admitted() -> None:
    """This holds once a command's permission is known; otherwise `admits` would save no work."""
    for case in CASES:
        if case.verdict == "allow" and case.argv[0] in (
            b"HGETALL",
            b"HGET",
            b"GET",
            b"DEL",
            b"RPUSH",
            b"PING",
        ):
            service = CUBE.policy.number(case.service)
            touches = extract(case.argv)
            CUBE.evaluate(Asker(service), case.argv, touches)
            legacy = any(CUBE.policy.target(access.key).kind == "legacy" for access in touches.accesses)
            assert admits(CUBE, service, case.argv, touches) != legacy or case.service == "ops", case


def test_the_hint_names_a_key_without_entry_in_a_scope_without_rights() -> None:
    policy = parse_policy(
        "policy: p\nservices: [a]\nscopes: {s: {prefix: 's:'}}\nkeys: {k: {key: 's:k', writers: a}}\n"
    )
    violation = Evaluator(policy).decide(0, [b"SET", b"s:other", b"1"]).violations[0]
    assert (violation.rule, violation.hint) == (
        "scope.write",
        "no entry of the policy covers it, and the scope s has no writers",
    )


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_an_error_in_a_decision_is_a_violation(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = []
    modes = Modes([ModeRule(mode)], CUBE.policy.services)
    authorizer = Authorizer(CUBE.policy, modes, on_error=errors.append)

    def fail(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(authorizer.evaluator.checks, "admits", fail)
    ruling = authorizer.rule(Asker(CUBE.policy.number("CubeMaster")), [b"GET", b"x"])
    assert [one.violation.rule for one in ruling.findings] == ["internal.error"]
    assert (ruling.refused_by is not None) == (mode == "enforce")
    assert [type(error) for error in errors] == [ZeroDivisionError]
