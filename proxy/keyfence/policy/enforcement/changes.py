"""What a candidate policy would change: its ruling on a command, compared with the ruling in force.

Rule: comparing changes no ruling. Findings are compared by rule, as `keyfence diff --replay` does.
"""

from __future__ import annotations

from keyfence.policy.verdict import Change, Changed, Ruling


def changes(in_force: Ruling, candidate: Ruling) -> list[Changed]:
    """Returns what the candidate's ruling on a command changes, for each finding of the two."""
    had, has = _refused_by_rule(in_force), _refused_by_rule(candidate)
    found = [Changed(_change(had, has, one.violation.rule), one) for one in candidate.findings]
    gone = [Changed("gone", one) for one in in_force.findings if one.violation.rule not in has]
    return found + gone


def _refused_by_rule(ruling: Ruling) -> dict[str, bool]:
    """Returns the broken rules, and whether the command is refused for each."""
    broken: dict[str, bool] = {}
    for violation, action in ruling.findings:
        broken[violation.rule] = broken.get(violation.rule, False) or action == "refused"
    return broken


def _change(had: dict[str, bool], has: dict[str, bool], rule: str) -> Change:
    if rule not in had:
        return "new"
    if had[rule] == has[rule]:
        return "same"
    return "stricter" if has[rule] else "milder"
