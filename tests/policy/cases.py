"""The shipped policies, and the commands of their tests."""

from __future__ import annotations

from pathlib import Path

from keyfence.authoring.testing import Step, read_cases

POLICIES = Path(__file__).parents[2] / "policies"


def steps_of(path: Path) -> tuple[Path, list[Step]]:
    """Returns the policy that a test file tests, and every command in it."""
    file = read_cases(path)
    return file.policy, [step for case in file.cases for step in case.steps if step.argv]
