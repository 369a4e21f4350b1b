from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.model import Touches
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.remedies.remedies import remedies_in_steps
from keyfence.policy.remedies.remedy import Remedy
from keyfence.policy.verdict import Violation


def remedies(
    policy: CompiledPolicy,
    service: int,
    argv: Sequence[bytes],
    touches: Touches,
    found: Sequence[Violation],
    values: Values = (),
) -> list[Remedy]:
    """Returns the remedies of each violation at once."""
    steps = remedies_in_steps(Evaluator(policy), service, argv, touches, found, values)
    return [one for one in steps if one is not None]
