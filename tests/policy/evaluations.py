"""Evaluations of single commands, by the number of the service that sends them."""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.commands.extract import extract
from keyfence.commands.model import Touches
from keyfence.policy.compiled.tenants import Values
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluation import Evaluation, Known
from keyfence.policy.engine.evaluator import Evaluator


def begun(
    evaluator: Evaluator,
    service: int,
    argv: Sequence[bytes],
    touches: Touches | None = None,
    values: Values = (),
) -> Evaluation:
    """The evaluation of a command, before any check."""
    return evaluator.evaluation(Asker(service, values), argv, extract(argv) if touches is None else touches)


def assert_known(argv: Sequence[bytes], known: Known) -> None:
    """The cache has classified the keys that it hands on as the policy does."""
    if known.keys is not None:
        for access in extract(argv).accesses:
            assert known.keys.target(access.key) is known.keys.policy.target(access.key), argv


def admits(
    evaluator: Evaluator,
    service: int,
    argv: Sequence[bytes],
    touches: Touches | None = None,
    values: Values = (),
) -> bool:
    """Whether the short check admits the command."""
    return evaluator.checks.admits(begun(evaluator, service, argv, touches, values))
