"""A draft of a policy: everything that was seen, as entries to read and to edit.

Rule: a draft is a valid policy that admits what was seen. Where it cannot, it says what it refuses and why.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from keyfence.policy.analysis.command_log import Recorded
from keyfence.policy.analysis.lint import check_text
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Verdict

from .evidence import Evidence
from .kinds import FINE, Ways
from .plan import Plan, Refused, plan_of
from .sections import notes, widenings, written

MAX_TRIES = 5
# The ways to find kinds, the best first. Later ones are tried if the draft has faults: if a key could be of
# two kinds, or if a guessed legacy form also matches other keys.
_WAYS = (
    (FINE, True),
    (Ways(stems=False), True),
    (Ways(stems=False, coarse=True), True),
    (FINE, False),
    (Ways(stems=False, coarse=True), False),
)
# What a draft refuses only if it takes keys for those of another kind.
_MISPLACED = ("scope.write", "key.unregistered", "key.format", "channel.write")


class DraftError(ValueError):
    """Nothing can come of the evidence; the message is one sentence."""


class Draft(NamedTuple):
    """A draft, and what people must read before they use it."""

    text: str
    plan: Plan
    widenings: list[str]
    refused: list[Refused]
    notes: list[str]


def draft(evidence: Evidence, name: str = "draft") -> Draft:
    """Returns a draft of a policy. Raises DraftError if nothing can come of the evidence."""
    if not evidence.keys and not evidence.channels:
        raise DraftError(_nothing(evidence))
    renamed = evidence.rename_unknown()
    tried: list[tuple[tuple[int, int, int], Draft]] = []
    reason = ""
    for ways, guesses_legacy in _WAYS:
        try:
            found = _settled(plan_of(evidence, name, renamed, ways, guesses_legacy=guesses_legacy))
        except FileError as fault:
            reason = str(fault.diagnostics[0])
            continue
        errors, warnings = check_text(found.text)
        reason = str(errors[0]) if errors else reason
        misplaced = sum(one.rule in _MISPLACED for one in found.refused)
        tried.append(((len(errors), len(warnings), misplaced), found))
        if tried[-1][0] == (0, 0, 0):
            return found
    faults, best = min(tried, key=lambda one: one[0], default=((1, 0, 0), None))
    if best is None or faults[0]:
        raise DraftError(f"the draft is not a valid policy, which is a fault of keyfence: {reason}")
    return best


def _nothing(evidence: Evidence) -> str:
    if evidence.masked:
        return f"every key is masked ({evidence.masked:,} in all), so nothing can be learned from them"
    if evidence.times:
        return f"no command names a key or a channel ({evidence.times:,} in all)"
    return "the source is empty: no commands, no findings and no keys"


def _settled(plan: Plan) -> Draft:
    """Tries the plan on the evidence, and relaxes what refuses it. Raises FileError if it does not load."""
    for _ in range(MAX_TRIES):
        plan.refused = refused_by(plan, written(plan))
        if not _relax(plan):
            break
    text = written(plan)
    return Draft(text, plan, widenings(plan), plan.refused, notes(plan))


def refused_by(plan: Plan, text: str) -> list[Refused]:
    """Returns what a draft refuses of the commands that were seen. Raises FileError if it does not load."""
    policy = parse_policy(text)
    evaluator = Evaluator(policy)
    found: Counter[tuple[str, str, str, str]] = Counter()
    for one in plan.evidence.lines:
        for violation in verdict_on(evaluator, one).violations:
            what = violation.entry
            if not what and one.touches.pattern is not None:
                what = one.touches.pattern.glob.decode("utf-8", "surrogateescape")
            if not what and one.touches.channels:
                what = one.touches.channels[0].name.decode("utf-8", "surrogateescape")
            if not what and one.touches.accesses:
                what = one.touches.accesses[0].key.decode("utf-8", "surrogateescape")
            found[violation.rule, one.service, one.command, what] += one.times
    return [Refused(*key, times) for key, times in sorted(found.items())]


def verdict_on(evaluator: Evaluator, one: Recorded) -> Verdict:
    """Returns the verdict on a recorded command."""
    policy = evaluator.policy
    argv = [word.encode("utf-8", "surrogateescape") for word in one.argv] or [b"?"]
    values = policy.owners_values(access.key for access in one.touches.accesses)
    return evaluator.evaluate(policy.number(one.service), argv, one.touches, values=values)


_SETTINGS = {
    "value.invalid": ("fields", "values", "members"),
    "field.unknown": ("fields",),
    "type.mismatch": ("type",),
    "ttl.required": ("ttl",),
    "ttl.forbidden": ("ttl",),
    "ttl.range": ("ttl",),
    "stream.maxlen": ("maxlen",),
}


def _relax(plan: Plan) -> bool:
    """Leaves out what refuses commands that were seen, and grants what rights cannot give. Returns whether
    anything changed."""
    before = len(plan.omitted), plan.hash_tag, plan.cluster, _size(plan)
    for one in plan.refused:
        plan.omitted |= {(one.what, setting) for setting in _SETTINGS.get(one.rule, ())}
        if one.rule == "key.hash_tag":
            plan.hash_tag = "optional" if plan.hash_tag == "required" else ""
        elif one.rule == "script.keys":
            plan.omitted |= {(name, "keys") for name in plan.evidence.scripts}
        elif one.rule == "slot.cross":
            plan.cluster = False
        elif one.rule in ("scan.scope", "channel.read") and _is_plain_glob(one.what):
            what = "keys" if one.rule == "scan.scope" else "channels"
            granted = plan.grants.setdefault(one.service, {})
            granted.setdefault(what, set()).add(one.what)
            granted.setdefault("commands", set()).add(one.command)
    return before != (len(plan.omitted), plan.hash_tag, plan.cluster, _size(plan))


def _is_plain_glob(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()


def _size(plan: Plan) -> int:
    return sum(len(globs) for granted in plan.grants.values() for globs in granted.values())
