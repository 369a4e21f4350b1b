"""What of a key may be shown, and what key to use instead of a deprecated one.

Rule: whatever a secret placeholder holds leaves this module only as `<name>`; a key that breaks the form of
an entry with secrets is shown no further than the entry's literal prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .compiled import CompiledPolicy, Target
from .keyspace import KEYSPACE_NAME
from .patterns import KeyPattern, Literal
from .show import printable


def shown(key: bytes, target: Target | None) -> str:
    """A key as logs, reports and replies show it: printable, cut, what is secret masked."""
    if target is None or not target.secrets:
        return printable(key)
    captured = target.pattern.capture(key) if target.kind in ("entry", "legacy", "stray") else None
    if captured is None:
        return printable(key[: len(target.pattern.literal_prefix)]) + "<masked>"
    return printable(fill(target.pattern, captured | {name: f"<{name}>".encode() for name in target.secrets}))


def shown_in(policy: CompiledPolicy, key: bytes, target: Target | None) -> str:
    """A key, channel or pattern of what `target` is in this policy, as `shown`."""
    if target is not None and target.kind not in _OF_NO_FORM:
        return shown(key, target)
    return shown_stray(key, secret_beginnings(policy, target))


def secret_beginnings(policy: CompiledPolicy, target: Target | None) -> Sequence[bytes]:
    """What the forms with a secret begin with that a key of no form may be meant as."""
    if target is None:
        return policy.secret_beginnings
    # A legacy form may begin with its secret; what is in the claims isn't meant as that.
    return [one for one in policy.secret_beginnings if one]


_OF_NO_FORM = frozenset({"scope", "claim", "keyspace", "keyevent"})


def shown_stray(name: bytes, beginnings: Sequence[bytes]) -> str:
    """A key that is of no form, a pattern, or a channel: what begins as a form with a secret may hold one.

    A channel of keyspace notifications is shown as the key in it.
    """
    before = KEYSPACE_NAME.match(name)
    at = before.end() if before is not None else 0
    beginning = max((one for one in beginnings if name.startswith(one, at)), key=len, default=None)
    if beginning is None or not name[at + len(beginning) :].strip(b"*"):
        return printable(name)
    return printable(name[: at + len(beginning)]) + "<masked>"


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
