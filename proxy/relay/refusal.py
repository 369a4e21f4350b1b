"""How a refusal reads.

Rule: one line, `NOPERM` first because clients map that word; then rule, who, what, remedy, contact and
decision id. It names no key or value that the caller didn't send.
"""

from __future__ import annotations

from proxy.policy.verdict import Violation
from proxy.wire.encode import error


def refusal(violation: Violation, contact: str, decision: str) -> bytes:
    """The error reply for a refused command, as RESP."""
    hint = f"; {violation.hint}" if violation.hint else ""
    whom = violation.contact or contact
    ask = f" Ask {whom}." if whom else ""
    return error(f"NOPERM [{violation.rule}] {violation.message}{hint}.{ask} ({decision})")
