"""What a candidate policy would change: its ruling on a command, compared with the ruling in force.

Rule: comparing changes no ruling. Findings are compared by rule, as `keyfence diff --replay` compares
verdicts, and a finding shows no text of a key that one of the two policies masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.show import printable
from keyfence.policy.verdict import Finding, Peer, Ruling, Violation
from keyfence.policy.wording.masking import shown_code, shown_in
from keyfence.shapes.secrecy import MASKED

from .counts import Admitted, ViolationCounter

# new: only the candidate finds it; gone: only the policy in force does. Both find the others: stricter: only
# the candidate refuses for it; milder: only the policy in force does; same: neither or both.
Change = Literal["new", "stricter", "same", "milder", "gone"]
CHANGES: tuple[Change, ...] = ("new", "stricter", "same", "milder", "gone")


class Changed(NamedTuple):
    """A finding of one command, and what it means that the candidate finds it or does not."""

    change: Change
    finding: Finding  # the candidate's; if it is gone, that of the policy in force


class ChangeObserver(Protocol):
    """Takes what a candidate would change. No method may raise."""

    def command(self, service: str) -> None:
        """Both policies have evaluated a command."""

    def gather_from(self, service: str, admitted: Admitted) -> None:
        """`admitted.times` counts commands of this service that both policies admit. The observer collects it
        from time to time, and sets `is_gathered` while it does."""

    def changes(self, service: str, client: Peer, command: str, found: Sequence[Changed]) -> None:
        """Report the changes of one command, which is not empty."""

    def counters(
        self, in_force: ViolationCounter | None, candidate: ViolationCounter | None
    ) -> tuple[ViolationCounter, ...] | None:
        """The live counters of commands that break the rules of `in_force` under the policy in force, and
        those of `candidate` under the candidate; None: report each command."""

    def count_alike(
        self,
        in_force: ViolationCounter | None,
        candidate: ViolationCounter | None,
        service: str,
        command: str,
        found: Sequence[Changed],
    ) -> None:
        """Further commands of this kind have the same changes, which were just reported."""


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


def masked_by(policy: CompiledPolicy, finding: Finding) -> Finding:
    """Returns a finding of another policy, with its key masked by this one too.

    If this policy masks the key differently, the finding has the masked text as its key, and no hint: the
    hint may quote the key. Without a key, a script's first line may be shown.
    """
    violation = finding.violation
    if policy.secrecy is None:
        return finding
    if violation.key is None:
        first_line = shown_code(policy, violation.shown.encode("utf-8", "backslashreplace"))
        return finding._replace(violation=violation._replace(shown=first_line))
    is_channel = violation.rule.startswith("channel.")
    shown = shown_in(policy, violation.key, None if is_channel else policy.target(violation.key))
    plain = printable(violation.key)
    if shown in (plain, violation.shown):
        return finding
    text = shown if violation.shown == plain else MASKED.decode()
    return finding._replace(violation=_masked(violation, text))


def _masked(violation: Violation, text: str) -> Violation:
    return violation._replace(key=text.encode("utf-8", "backslashreplace"), shown=text, message="", hint="")
