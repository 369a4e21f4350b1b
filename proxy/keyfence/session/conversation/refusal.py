"""The text of a refusal.

Rule: one line. `NOPERM` comes first, because clients map that word; then rule, who, what, remedy, contact and
decision id. It shows no key and no value that the caller did not send.
"""

from __future__ import annotations

from keyfence.policy.verdict import Violation
from keyfence.resp.encode import error


def refusal(violation: Violation, contact: str, decision: str) -> bytes:
    """The error reply for a refused command, as RESP."""
    hint = f"; {violation.hint}" if violation.hint else ""
    whom = violation.contact or contact
    ask = f" Ask {whom}." if whom else ""
    return error(f"NOPERM [{violation.rule}] {violation.message}{hint}.{ask} ({decision})")


def around_key(violation: Violation, reply: bytes) -> tuple[bytes, ...] | None:
    """A refusal, split where it shows the key, so that joining the parts with another key refuses that key.
    One part if it shows no key; None if other text depends on the key too."""
    if violation.rule not in _SAME_BUT_FOR_KEY and (violation.rule not in _IN_SCOPES or not violation.entry):
        return None
    if violation.key is None:
        return (reply,)
    shown = violation.shown.encode("utf-8", "backslashreplace")
    return tuple(reply.split(shown)) if shown and reply.count(shown) == 1 else None


# Rules whose text depends on the key only by showing it.
_SAME_BUT_FOR_KEY = frozenset({"command.forbidden", "scope.read", "scope.write", "type.mismatch"})
_IN_SCOPES = frozenset({"key.unregistered"})  # the same, if the key lies in a scope
