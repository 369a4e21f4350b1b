"""Violations to record."""

from __future__ import annotations

from keyfence.policy.verdict import Violation


def violation(
    key: bytes | None = b"cube:v1:shared:sandbox:proxy:7c8f",
    *,
    rule: str = "scope.write",
    entry: str = "sandbox-route",
    shape: str | None = None,
    hint: str = "its writers: CubeMaster",
    message: str = "CubeProxy may not HSET that",
) -> Violation:
    """A violation as the policy makes it; `shape=""`: no entry covers its key."""
    shown = "" if key is None else key.decode("utf-8", "backslashreplace")[:128]
    return Violation(
        rule=rule,
        severity="must",
        position=0 if key is None else 1,
        key=key,
        shown=shown,
        entry=entry,
        shape=entry if shape is None else shape,
        message=message,
        hint=hint,
    )
