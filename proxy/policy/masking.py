"""What of a key may be shown, and what key to use instead of a deprecated one.

Rule: whatever a secret placeholder holds leaves this module only as `<name>`; a key that breaks the form of
an entry with secrets is shown no further than the entry's literal prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .compiled import Target
from .patterns import KeyPattern, Literal
from .show import printable


def shown(key: bytes, target: Target | None) -> str:
    """A key as logs, reports and replies show it: printable, cut, what is secret masked."""
    if target is None or not target.secrets:
        return printable(key)
    captured = target.pattern.capture(key) if target.kind in ("entry", "legacy") else None
    if captured is None:
        return printable(key[: len(target.pattern.literal_prefix)]) + "<masked>"
    return printable(fill(target.pattern, captured | {name: f"<{name}>".encode() for name in target.secrets}))


def shown_stray(key: bytes, beginnings: Sequence[bytes]) -> str:
    """A key that no target covers. What begins as a legacy form with a secret may hold one."""
    beginning = max((one for one in beginnings if key.startswith(one)), key=len, default=None)
    return printable(key) if beginning is None else printable(beginning) + "<masked>"


def standard_key(key: bytes, target: Target) -> str:
    """The standard key that stands for a legacy key, filled in where that shows no secret."""
    standard = target.standard
    if standard is None:
        return target.text
    captured = None if target.secrets else target.pattern.capture(key)
    if captured is not None and {hole.name for hole in standard.holes} <= captured.keys():
        return printable(fill(standard, captured))
    return standard.text


def fill(pattern: KeyPattern, values: Mapping[str, bytes]) -> bytes:
    """The pattern with its placeholders filled in."""
    return b"".join(part.text if isinstance(part, Literal) else values[part.name] for part in pattern.parts)
