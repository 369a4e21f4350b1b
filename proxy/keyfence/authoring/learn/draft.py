"""A draft of a policy: everything that was seen, as entries to read and to edit.

Rule: a draft is a valid policy that admits what was seen. Where it cannot, it says what it refuses and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keyfence.authoring.lint import check_text
from keyfence.authoring.replay import verdict_on
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy

from .applications import Application, applications_in, without
from .kinds import FINE, Ways, kinds_of
from .plan import Plan, Refused, plan_of
from .sections import notes, widenings, written
from .seen import Evidence, Facts, names_in
from .text import masked
from .typos import Typo, typos_of

MAX_TRIES = 5
_RIGHTS = ("scope.read", "scope.write")
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


class CatchAllError(DraftError):
    """The draft and an application are both about all keys that no other file claims."""


class Draft(NamedTuple):
    """A draft, and what people must read before they use it."""

    text: str
    plan: Plan
    widenings: list[str]
    refused: list[Refused]
    notes: list[str]


def draft(
    evidence: Evidence,
    name: str = "draft",
    shipped: Mapping[str, str] | None = None,
    is_right: Callable[[Typo], bool] = lambda _: False,
) -> Draft:
    """Returns a draft of a policy. Raises DraftError if nothing can come of the evidence.

    `shipped` are the texts of applications' policies by name; one whose keys were seen is proposed.
    `is_right` says of a word that looks mistyped whether it is right."""
    if not evidence.keys and not evidence.channels:
        raise DraftError(_nothing(evidence))
    renamed = evidence.rename_unknown()
    applications = applications_in(evidence, shipped or {})
    rest = without(evidence, applications)
    typos = [one for one in suspects(rest) if not is_right(one)]
    try:
        return _best(rest, name, renamed, applications, typos)
    except CatchAllError:  # a file without claims, of which a folder can have only one
        applications = [one for one in applications if one.claims]
        return _best(without(evidence, applications), name, renamed, applications, typos)


def _best(
    evidence: Evidence, name: str, renamed: str, applications: list[Application], typos: list[Typo]
) -> Draft:
    """Returns the draft with the fewest faults. Raises DraftError, and CatchAllError if neither it nor an
    application has claims."""
    left_out = {key: one for one in typos for key in one.names}
    tried: list[tuple[tuple[int, int, int], Draft]] = []
    reason = ""
    for ways, guesses_legacy in _WAYS:
        try:
            plan = plan_of(evidence, name, renamed, ways, guesses_legacy=guesses_legacy, left_out=left_out)
            plan.applications, plan.typos = applications, typos
            if not plan.claims and not all(one.claims for one in applications):
                raise CatchAllError
            found = _settled(plan)
        except FileError as fault:
            reason = str(fault.diagnostics[0])
            continue
        errors, warnings = check_text(found.text)
        reason = str(errors[0]) if errors else reason
        misplaced = sum(one.rule in _MISPLACED and not one.mistake for one in found.refused)
        tried.append(((len(errors), len(warnings), misplaced), found))
        if tried[-1][0] == (0, 0, 0):
            return found
    faults, best = min(tried, key=lambda one: one[0], default=((1, 0, 0), None))
    if best is None or faults[0]:
        raise DraftError(f"the draft is not a valid policy, which is a fault of keyfence: {reason}")
    return best


def suspects(evidence: Evidence) -> list[Typo]:
    """Returns the words in keys and channels that look mistyped."""
    channels = {
        name: Facts(evidence.channel_times[name], uses=dict(uses)) for name, uses in evidence.channels.items()
    }
    return typos_of([*kinds_of(evidence.keys), *kinds_of(channels)])


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
    found: Counter[tuple[str, str, str, str, str]] = Counter()
    strangers = {(kind.name, service) for kind in plan.entries for service in kind.strangers}
    for one in plan.evidence.lines:
        names = names_in(one)
        for violation in verdict_on(evaluator, one).violations:
            if violation.rule in _RIGHTS and (violation.entry, one.service) in strangers:
                continue  # its type is why it gets no right
            mistake = next(
                (f"typo of {plan.left_out[name].nearest}" for name in names if name in plan.left_out), ""
            )
            what = violation.entry if not mistake else ""
            if not what and one.touches.pattern is not None:
                what = masked(one.touches.pattern.glob.decode("utf-8", "surrogateescape"), plan.names)
            if not what and names:
                what = plan.shown(names[0])
            if violation.rule == "type.mismatch":
                mistake = mistake or "Redis answers WRONGTYPE"
            found[violation.rule, one.service, one.command, what, mistake] += one.times
    forbidden = {key[1:4] for key in found if key[0] == "command.forbidden"}
    return [
        Refused(*key, times)
        for key, times in sorted(found.items())
        if key[0] == "command.forbidden" or key[1:4] not in forbidden
    ]


_SETTINGS = {
    "value.invalid": ("fields", "values", "members"),
    "field.unknown": ("fields",),
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
        if one.mistake:
            continue
        plan.omitted |= {(one.what, setting) for setting in _SETTINGS.get(one.rule, ())}
        if one.rule == "key.hash_tag":
            plan.hash_tag = "optional" if plan.hash_tag == "required" else ""
        elif one.rule == "script.keys":
            plan.omitted |= {(name, "keys") for name in plan.evidence.scripts}
        elif one.rule == "slot.cross":
            plan.cluster = False
        elif one.rule in ("scan.scope", "channel.read") and _may_be_granted(one.what):
            what = "keys" if one.rule == "scan.scope" else "channels"
            granted = plan.grants.setdefault(one.service, {})
            granted.setdefault(what, set()).add(one.what)
            granted.setdefault("commands", set()).add(one.command)
    return before != (len(plan.omitted), plan.hash_tag, plan.cluster, _size(plan))


def _may_be_granted(glob: str) -> bool:
    return bool(glob) and glob.isascii() and glob.isprintable()  # HIDDEN is not ASCII


def _size(plan: Plan) -> int:
    return sum(len(globs) for granted in plan.grants.values() for globs in granted.values())
