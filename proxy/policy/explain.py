"""A decision told in full, for `keyfence explain` and the admin's /explain.

Rule: it shows what the relay would decide, by asking the same decider; it decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..commands.extract import extract
from ..commands.model import READ, WRITE, Access, Touches
from .compiled import CompiledPolicy, Target
from .decide import Decider
from .masking import shown_in
from .verdict import Violation

_ACCESS_NAMES = {0: "none", READ: "read", WRITE: "write", READ | WRITE: "both"}


def explain(policy: CompiledPolicy, service: str, argv: Sequence[bytes]) -> dict[str, Any]:
    """The verdict on one command as plain values; see docs/policy.md for the fields.

    Raises ValueError for a service that the policy doesn't have.
    """
    if service not in policy.services:
        from .diagnostics import did_you_mean

        raise ValueError(f"{service!r} is no service of the policy{did_you_mean(service, policy.services)}")
    touches = extract(argv)
    verdict = Decider(policy).judge(policy.number(service), argv, touches)
    first = verdict.violations[0] if verdict.violations else None
    return {
        "verdict": "violation" if first else "allow",
        "rule": first.rule if first else None,
        "entry": (first.entry or None) if first else _only_entry(policy, touches),
        "position": first.position if first else None,
        "hint": (first.hint or None) if first else None,
        "message": first.message if first else None,
        "severity": first.severity if first else None,
        "command": touches.command.name if touches.command else None,
        "service": service,
        "accesses": [_access(policy, access) for access in touches.accesses],
        "violations": [_violation(violation) for violation in verdict.violations],
    }


def access_name(access: Access) -> str:
    """`read`, `write`, `both`, or `none` for existence only."""
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
    """A key as `shown_in`, but whole where it is of no form and can't hold a secret."""
    if target is None and not any(map(key.startswith, policy.secret_beginnings)):
        return key.decode("utf-8", "surrogateescape")
    return shown_in(policy, key, target)


def _violation(violation: Violation) -> dict[str, Any]:
    return {
        "rule": violation.rule,
        "severity": violation.severity,
        "position": violation.position,
        "key": violation.shown or None,
        "entry": violation.entry or None,
        "message": violation.message,
        "hint": violation.hint or None,
    }


def _only_entry(policy: CompiledPolicy, touches: Touches) -> str | None:
    """The entry of an admitted command, where it touches just one."""
    names = {target.name for access in touches.accesses if (target := policy.target(access.key))}
    return names.pop() if len(names) == 1 else None
