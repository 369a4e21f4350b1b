"""Verdicts in full detail, for `keyfence explain` and the admin route /explain.

Rule: this module evaluates nothing itself. It shows the answer of the evaluator that the session uses.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from keyfence.commands.extract import extract
from keyfence.commands.model import READ, WRITE, Access, Touches
from keyfence.commands.own import own_name
from keyfence.policy.budget import driven
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.tenants import NOBODY, Caller, Values
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.remedies.remedies import remedies_in_steps
from keyfence.policy.show import printable
from keyfence.policy.verdict import Verdict, Violation
from keyfence.policy.wording.command_log import from_line
from keyfence.policy.wording.masking import shown_in

# What is said of one command, in steps: it yields nothing, and returns plain values.
Explaining = Generator[None, None, dict[str, Any]]

_ACCESS_NAMES = {0: "none", READ: "read", WRITE: "write", READ | WRITE: "both"}


def explain(
    policy: CompiledPolicy, service: str, argv: Sequence[bytes], caller: Caller = NOBODY
) -> dict[str, Any]:
    """Returns the verdict on one command as plain values; docs/policy.md describes the fields.

    Raises ValueError if the policy lacks the service.
    """
    return driven(explain_in_steps(Evaluator(policy), service, argv, caller))


def explain_in_steps(
    evaluator: Evaluator, service: str, argv: Sequence[bytes], caller: Caller = NOBODY
) -> Explaining:
    """The same, and yields where other work may be done meanwhile."""
    policy = evaluator.policy
    check_service(policy, service)
    touches, values = extract(argv), policy.values(caller)
    return (yield from _explained(evaluator, service, argv, touches, values))


def explain_line(policy: CompiledPolicy, line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the verdict on a line of the command log, in the form of `explain`, and with its arguments.

    The line lacks values and the caller, so rules on these are not checked. Raises ValueError if the line is
    not one of the command log or has only a part of the command, or if the policy lacks its service.
    """
    return driven(explain_line_in_steps(Evaluator(policy), line))


def explain_line_in_steps(evaluator: Evaluator, line: Mapping[str, Any]) -> Explaining:
    """The same, and yields where other work may be done meanwhile."""
    policy = evaluator.policy
    one = from_line(line)
    if one.is_cut:
        raise ValueError("only a part of the command is kept, which does not show what the policy says of it")
    check_service(policy, one.service)
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    values = policy.owners_values(access.key for access in one.touches.accesses)
    explained = yield from _explained(evaluator, one.service, argv, one.touches, values)
    return {"argv": one.argv, **explained}


def _explained(
    evaluator: Evaluator, service: str, argv: Sequence[bytes], touches: Touches, values: Values
) -> Explaining:
    number = evaluator.policy.number(service)
    verdict = yield from evaluator.verdict(evaluator.evaluation(Asker(number, values), argv, touches))
    yield
    return (yield from explanation(evaluator, service, argv, touches, verdict, values))


def explanation(
    evaluator: Evaluator,
    service: str,
    argv: Sequence[bytes],
    touches: Touches,
    verdict: Verdict,
    values: Values,
) -> Explaining:
    proposed, policy = [], evaluator.policy
    number = policy.number(service)
    for one in remedies_in_steps(evaluator, number, argv, touches, verdict.violations, values):
        if one is None:
            yield
            continue
        command = _offered(policy, one.command)
        proposed.append({"rule": one.rule, "text": one.text, "command": command, "add": dict(one.add)})
    first = verdict.violations[0] if verdict.violations else None
    name = touches.command.name if touches.command else None
    if first is None and name is None:
        name = own_name(argv) or None
    return {
        "verdict": "violation" if first else "allow",
        "rule": first.rule if first else None,
        "entry": (first.entry or None) if first else _only_entry(policy, touches),
        "position": first.position if first else None,
        "hint": (first.hint or None) if first else None,
        "message": first.message if first else None,
        "severity": first.severity if first else None,
        "command": name,
        "service": service,
        "accesses": [_access(policy, access) for access in touches.accesses],
        "violations": [shown_violation(violation) for violation in verdict.violations],
        "remedies": proposed,
    }


def check_service(policy: CompiledPolicy, service: str) -> None:
    if service not in policy.services:
        raise ValueError(
            f"{service!r} is not a service of the policy{did_you_mean(service, policy.services)}"
        )


def _offered(policy: CompiledPolicy, command: Sequence[bytes]) -> str | None:
    """Returns a command quoted for a shell, with secrets in its keys masked.

    Returns None if there is no command, or if an argument that is not a key may hold a secret.
    """
    words = [word.decode("utf-8", "surrogateescape") for word in command]
    touches = extract(command) if command else Touches(None)
    if touches.script is not None and policy.secrecy is not None:
        return None  # the script may build keys from its arguments
    for access in touches.accesses:
        target = policy.target(access.key)
        fields = target.entry.fields if target is not None and target.entry is not None else None
        if fields is not None and fields.hides_names:
            return None
        shown = shown_in(policy, access.key, target)
        if shown != printable(access.key):
            words[access.position] = shown
    return shlex.join(words) or None


def access_name(access: Access) -> str:
    """Returns `read`, `write`, `both`, or `none` for a check of existence."""
    return _ACCESS_NAMES[access.needs & (READ | WRITE)]


def _access(policy: CompiledPolicy, access: Access) -> dict[str, Any]:
    target = policy.target(access.key)
    return {
        "position": access.position,
        "key": _shown(policy, access.key, target),
        "access": access_name(access),
        "entry": target.name if target and target.kind in ("entry", "malformed", "legacy") else None,
        "kind": target.kind if target else None,
    }


def _shown(policy: CompiledPolicy, key: bytes, target: Target | None) -> str:
    """Returns a key as `shown_in` does, but uncut if it matches no pattern and the policy has no secrets."""
    if target is None and policy.secrecy is None:
        return key.decode("utf-8", "surrogateescape")
    return shown_in(policy, key, target)


def shown_violation(violation: Violation) -> dict[str, Any]:
    return {
        "rule": violation.rule,
        "severity": violation.severity,
        "position": violation.position,
        "key": violation.shown or None,
        "entry": violation.entry or None,
        "message": violation.message,
        "hint": violation.hint or None,
        "more": violation.more,
    }


def _only_entry(policy: CompiledPolicy, touches: Touches) -> str | None:
    """Returns the entry of an admitted command if it touches exactly one."""
    names = {target.name for access in touches.accesses if (target := policy.target(access.key))}
    return names.pop() if len(names) == 1 else None
