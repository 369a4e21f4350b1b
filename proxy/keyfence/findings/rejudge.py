"""Judges the examples of findings again, under a policy that was put in force.

Rule: a finding is resolved only if every one of its examples is known to keep the rule now. What an example
leaves out (values, the caller) is never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable

from keyfence.policy.analysis.command_log import Recorded, from_line
from keyfence.policy.analysis.replay import depends_on_the_caller, makes_keys_of_arguments
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.rules import RULES

from .finding import Finding, State

# Rules on values, which examples do not hold.
ON_VALUES = frozenset({"value.invalid", "value.size", "key.members"})
# Rules on the session or on faults of keyfence: no example can decide.
NEVER = frozenset({"internal.error", "session.opaque"})


def resolved(policy: CompiledPolicy, findings: Iterable[Finding], since: float) -> list[str]:
    """The ids of the findings whose examples the policy allows, and that were not seen since a time."""
    evaluator = Evaluator(policy)
    return [
        one.id
        for one in findings
        if one.state is not State.RESOLVED
        and one.revision != policy.revision
        and one.last < since + 1.0
        and keeps_its_rule(evaluator, one)
    ]


def keeps_its_rule(evaluator: Evaluator, finding: Finding) -> bool:
    """Whether every example of a finding keeps its rule under the evaluator's policy."""
    if finding.rule in NEVER | ON_VALUES or not finding.examples or finding.counts.get("late"):
        return False
    if finding.rule not in RULES or finding.service not in evaluator.policy.services:
        return False
    return all(_allows(evaluator, finding, example["command"]) for example in finding.examples)


def _allows(evaluator: Evaluator, finding: Finding, line: dict[str, object]) -> bool:
    """Whether a command of the finding keeps its rule. False: it does not, or nobody can tell."""
    try:
        one = from_line(line)
    except ValueError:
        return False
    policy = evaluator.policy
    if one.is_cut:
        return False
    if makes_keys_of_arguments(policy, one.touches.script) or depends_on_the_caller(policy, one.touches):
        return False
    return finding.rule not in _broken(evaluator, one)


def _broken(evaluator: Evaluator, one: Recorded) -> set[str]:
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    values = evaluator.policy.owners_values(access.key for access in one.touches.accesses)
    verdict = evaluator.evaluate(evaluator.policy.number(one.service), argv, one.touches, values=values)
    return {violation.rule for violation in verdict.violations}
