"""The text of a refusal.

Rule: one line. `NOPERM` comes first, because clients map that word; then rule, who, what, remedy, contact and
decision id. It shows no key and no value that the caller did not send.
"""

from __future__ import annotations

from keyfence.policy.verdict import Violation
from keyfence.policy.wording.prepared import Draft, Prepared
from keyfence.resp.encode import error


def refusal(violation: Violation, contact: str, decision: str) -> bytes:
    """The error reply for a refused command, as RESP."""
    hint = f"; {violation.hint}" if violation.hint else ""
    whom = violation.contact or contact
    ask = f" Ask {whom}." if whom else ""
    return error(f"NOPERM [{violation.rule}] {violation.message}{hint}.{ask} ({decision})")


def prepared_refusal(
    violation: Violation, worded: Violation, draft: Draft, contact: str, decision: str
) -> Prepared | None:
    """The refusal for this violation, ready for every other key. `worded` is the violation with the marks of
    `draft`. None if it cannot be prepared."""
    prepared = draft.prepared(refusal(worded, contact, decision))
    try:
        same = prepared is not None and prepared.reply(violation.key or b"")
    except ValueError:
        return None
    return prepared if same == refusal(violation, contact, decision) else None
