"""Derives the standard key of a deprecated one: the rename that the policy calls for.

Rule: a rename is derived only if the old key shows everything that the new one needs, and if the new one
keeps the type and the time to live that the policy requires. Otherwise the reason is said, and somebody
decides.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.engine.content import fits
from keyfence.policy.units import duration_text
from keyfence.policy.wording.masking import fill

from .judge import Facts, Judge, Look


class Rename(NamedTuple):
    """A deprecated key, and what should become of it."""

    old: bytes
    shown: str  # the old key as people may see it
    database: int
    entry: str
    type: str
    new: bytes | None  # None: it cannot be derived
    ttl: int | None  # milliseconds that the new key has; None: no time to live
    sets_ttl: bool = False  # the old key has none, and the policy requires one
    why: str = ""  # why it cannot be derived


def rename_of(judge: Judge, key: bytes, look: Look, facts: Facts, database: int) -> Rename | None:
    """The rename of a key at rest; None if its form is not deprecated."""
    target = look.target
    if target is None or not (look.place.kind == "legacy" or target.successor is not None):
        return None
    shown = judge.shown(key, target)
    ttl = facts.ttl if facts.ttl >= 0 else None
    new, why = _new_key(judge, key, target)
    sets_ttl = False
    if new is not None:
        # Of the new key's entry, which for a replaced entry is another one.
        goal = judge.policy.target(new)
        assert goal is not None
        rule = goal.entry.ttl if goal.entry is not None else None
        why = _unfit(goal, facts)
        if not why:
            ttl, sets_ttl, why = _ttl(rule, ttl, goal.name)
    return Rename(key, shown, database, look.place.name, facts.type, None if why else new, ttl, sets_ttl, why)


def _new_key(judge: Judge, key: bytes, target: Target) -> tuple[bytes | None, str]:
    form = target.successor or target.standard
    if form is None:
        return None, "the policy names no form to use instead"
    held = target.pattern.capture(key)
    if held is None:
        return None, "the key is too long to be read"
    missing = [hole.name for hole in form.holes if hole.name not in held]
    if missing:
        holes = " and ".join(f"<{name}>" for name in missing)
        return None, f"{form.text} has {holes}, which the old key does not show"
    new = fill(form, held)
    goal = judge.policy.target(new)
    if goal is None or goal.kind != "entry":
        return None, f"it would not be a key of the form {form.text}"
    if faults := judge.look(new).faults:
        return None, f"the new key would break {faults[0].rule}"
    return new, ""


def _unfit(goal: Target, facts: Facts) -> str:
    types = goal.entry.types if goal.entry is not None else ()
    if fits(types, (facts.type,)):
        return ""
    return f"it is a {facts.type}, and {goal.name} is a {' or '.join(types)}"


def _ttl(rule: TtlRule | None, ttl: int | None, entry: str) -> tuple[int | None, bool, str]:
    """The new key's time to live, whether it is to be set, and why there is none that the policy allows."""
    if rule is None:
        return ttl, False, ""
    if ttl is None:
        if not rule.required:
            return None, False, ""
        default = rule.default or rule.max
        if default is None:
            return None, False, f"it has no time to live, {entry} requires one, and the policy names none"
        return default, True, ""
    if rule.none:
        return ttl, False, f"it has a time to live, and {entry} must have none; PERSIST it or let it expire"
    if rule.max is not None and ttl > rule.max:
        most = duration_text(rule.max)
        return ttl, False, f"its time to live is too long for {entry}: at most {most}; shorten it"
    return ttl, False, ""
