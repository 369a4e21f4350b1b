"""Sequences of commands on one connection, with time that passes, for `keyfence explain --file`.

Rule: `policy.remedies.explain` explains each command. The simulator keeps what lies between commands.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from keyfence.policy.budget import driven
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.compiled.tenants import NOBODY, Caller
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.remedies.explain import check_service, explanation, shown_violation
from keyfence.policy.units import milliseconds
from keyfence.policy.wording.masking import shown_in

from .simulator import Late, Simulator, caller_after


class Step(NamedTuple):
    """A line of a sequence: a command of a service, or time that passes."""

    line: int
    service: str
    argv: list[bytes]  # empty: nothing is sent
    after: int  # milliseconds that pass before the command
    caller: Caller = NOBODY


def read_sequence(text: str, service: str, caller: Caller = NOBODY) -> list[Step]:
    """Returns the steps of a sequence. Raises ValueError with the line number.

    Each line holds a command, quoted as in a shell. `@NAME` continues as another service, `@NAME user=USER`
    as a client that has logged in as USER. `+6s` lets time pass. A line that begins with # is a comment.
    """
    steps = []
    for number, line in enumerate(text.split("\n"), 1):  # values may hold other separators, as U+2028
        line = line.strip()
        try:
            if not line or line.startswith("#"):
                continue
            if line.startswith("@"):
                service, _, user = (part.strip() for part in line[1:].partition(" user="))
                if user:
                    caller = caller._replace(user=user.encode("utf-8", "surrogateescape"))
            elif line.startswith("+"):
                steps.append(Step(number, service, [], milliseconds(line[1:].strip())))
            else:
                words = [word.encode("utf-8", "surrogateescape") for word in shlex.split(line)]
                steps.append(Step(number, service, words, 0, caller))
                caller = caller_after(words, caller)
        except ValueError as exc:
            raise ValueError(f"line {number}: {str(exc).lower()}") from None
    return steps


def explain_sequence(policy: CompiledPolicy, steps: Sequence[Step], *, now: int) -> list[dict[str, Any]]:
    """Returns the verdicts on the commands of one connection, in the form of `explain`.

    Each has its line, and whether it is an EXEC that aborts. Violations that come to light as time passes, or
    at the end, are under `late`. A command that breaks a rule is not run, as if every rule were enforced.
    `now` is in milliseconds since the epoch. Raises ValueError if the policy lacks a service.
    """
    for step in steps:
        try:
            check_service(policy, step.service)
        except ValueError as exc:
            raise ValueError(f"line {step.line}: {exc}") from None
    connection, evaluator = Simulator(policy, now, enforces=True), Evaluator(policy)
    explained: list[dict[str, Any]] = []
    for step in steps:
        if step.after:
            explained.append({"line": step.line, "late": _late(policy, connection.wait(step.after))})
            continue
        answer = connection.send(step.service, step.argv, step.caller)
        values = policy.values(step.caller)
        about = (step.service, step.argv, answer.touches, answer.verdict, values)
        one = driven(explanation(evaluator, *about))
        keys = {access.key for access in answer.touches.accesses if access.ttl is not None}
        lives = {shown_in(policy, key, policy.target(key)): connection.lives(key) for key in sorted(keys)}
        explained.append(one | {"line": step.line, "aborted": answer.aborts, "ttl": lives})
    late = _late(policy, connection.wait_for_all())
    return [*explained, *([{"line": None, "late": late}] if late else [])]


def _late(policy: CompiledPolicy, found: Sequence[Late]) -> list[dict[str, Any]]:
    return [{"service": policy.services[one.service]} | shown_violation(one.violation) for one in found]
