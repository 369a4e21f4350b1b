"""Times to live: an entry's rule, and the outcome of one access under it.

Rule: only the key's resulting time counts. If one command shows that it is wrong, that is a violation at
once. If only Redis knows it, that is a question for later, and no violation is reported before the answer.

A time below `min` is found only when a command sets it: a time that is copied or left has already run down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from keyfence.commands.model import DELETE, WRITE, Access, Ttl
from keyfence.policy.units import duration_text


@dataclasses.dataclass(frozen=True, slots=True)
class TtlRule:
    """The time to live that a key must end up with; times in milliseconds."""

    none: bool = False  # it must not have one
    required: bool = True  # it must have one; if both are false, it may
    min: int | None = None
    max: int | None = None
    default: int | None = None  # what the owner sets; hints name it, nothing checks it
    at: Literal["write", "refresh"] = "refresh"  # write: the writing command itself must set it
    immediate: bool = False  # a doubt is a violation at once
    grace: int = 5000  # for this time a later command may set what a write left open


# Outcomes: what an access means for the time to live that its key ends up with.
FINE: Final = 0
FORBIDDEN: Final = 1  # it sets a time to live, and the key must not have one
REQUIRED: Final = 2  # it leaves the key without a time to live, and the key must have one
TOO_SHORT: Final = 3
TOO_LONG: Final = 4
ASKS_PRESENCE: Final = 5  # the key may be left without one
ASKS_ALL: Final = 6  # the key may be left with any time to live, or without one
GIVES: Final = 7  # the key has one afterwards, but perhaps not the one that the command sets
SETTLES: Final = 8  # afterwards the key has a correct one, or is gone
ASKS_GONE: Final = 9  # like ASKS_ALL, and the key may be gone

# The types that a plain command can create together with a time to live (SET … EX). Other types get one from
# a dump or from another key: RESTORE, RENAME, COPY.
BRING_TTL: Final = frozenset({"string"})

FAULTS: Final = frozenset({FORBIDDEN, REQUIRED, TOO_SHORT, TOO_LONG})
SETTLING: Final = frozenset({GIVES, SETTLES})
QUESTIONS: Final = frozenset({ASKS_PRESENCE, ASKS_ALL, ASKS_GONE})

# The same outcomes for an access that also leaves the key's size open (`sizes`).
SIZED: Final = {found: found + 10 for found in (FINE, *sorted(FAULTS), *sorted(QUESTIONS | SETTLING))}
UNSIZED: Final = {sized: found for found, sized in SIZED.items()}

GONE: Final = -2  # PTTL's reply for a key that does not exist,
NO_TTL: Final = -1  # and for one without a time to live


def outcome(rule: TtlRule, access: Access, clock: Callable[[], float]) -> int:
    """Returns the outcome of an access under the rule of its key's entry. `clock` returns Unix seconds."""
    ttl = access.ttl
    if ttl is None:
        if access.needs & DELETE:
            return SETTLES
        return ASKS_GONE if access.needs & WRITE else FINE  # a script's key: its effect is unknown
    if ttl.kind == "keeps":
        return _without(rule) if ttl.creates and rule.required else FINE
    if ttl.kind == "drops":
        return _dropped(rule, ttl)
    if ttl.kind == "carries":
        return _doubt(rule, ASKS_ALL)
    return _set(rule, ttl, clock)


def _without(rule: TtlRule) -> int:
    """The outcome of a write that may create the key and cannot set the required time to live."""
    return REQUIRED if rule.at == "write" or rule.immediate else ASKS_PRESENCE


def _dropped(rule: TtlRule, ttl: Ttl) -> int:
    if not rule.required:
        return FINE
    return _without(rule) if ttl.follows else REQUIRED


def _doubt(rule: TtlRule, question: int) -> int:
    if not rule.immediate:
        return question
    if rule.none:
        return FORBIDDEN
    return REQUIRED if rule.required else TOO_LONG


def _set(rule: TtlRule, ttl: Ttl, clock: Callable[[], float]) -> int:
    """The outcome of a given time. Redis refuses a time that is not an integer; a past time removes the
    key."""
    left = ttl.milliseconds
    if left is None:
        return FINE
    if ttl.absolute:
        left -= int(clock() * 1000)
    condition = ttl.condition if ttl.kind == "expires" else ""
    if left <= 0:
        removes = ttl.kind == "expires" and not condition
        return SETTLES if removes else FINE
    if rule.none:
        # XX and GT do not change a key without a time to live, which is correct here.
        return _doubt(rule, ASKS_ALL) if "XX" in condition or "GT" in condition else FORBIDDEN
    if rule.min is not None and left < rule.min:
        return FINE if "GT" in condition else TOO_SHORT  # GT never shortens a time
    if rule.max is not None and left > rule.max:
        return _doubt(rule, ASKS_ALL) if "LT" in condition else TOO_LONG  # LT never lengthens one
    return _settled_by(ttl)


def _settled_by(ttl: Ttl) -> int:
    """The outcome of a correct time that may be set under a condition."""
    if not ttl.condition:
        return SETTLES
    return GIVES if ttl.kind == "expires" and ttl.condition in ("NX", "LT") else FINE


class TtlFault(NamedTuple):
    """A violation of a rule about time to live, in words."""

    rule: str
    message: str
    hint: str


def rule_of(found: int) -> str:
    """Returns the rule that an outcome of FAULTS breaks."""
    return {FORBIDDEN: "ttl.forbidden", REQUIRED: "ttl.required"}.get(found, "ttl.range")


def fault_of(found: int, rule: TtlRule, command: str, key: str) -> TtlFault:
    """Returns the words for an outcome of FAULTS. `key` is the key as messages show it."""
    if found == FORBIDDEN:
        return TtlFault("ttl.forbidden", f"{key} must not have a time to live", "leave it out")
    if found == REQUIRED:
        return TtlFault("ttl.required", f"{key} must have a time to live", _hint(rule, command))
    if found == TOO_SHORT:
        return TtlFault("ttl.range", f"the time to live of {key} is too short", _at_least(rule))
    return TtlFault("ttl.range", f"the time to live of {key} is too long", _at_most(rule))


def late_fault(left: int, everything: bool, rule: TtlRule, command: str, key: str) -> TtlFault | None:
    """Returns the fault of a key whose PTTL is `left` milliseconds, a grace time after `command` wrote it;
    None if it has none.

    Not `everything`: only whether the key has a time to live counts.
    """
    after = f"{duration_text(rule.grace)} after {command}"
    if left == NO_TTL:
        if not rule.required:
            return None
        hint = f"{_hint(rule, command)}; {command} leaves that to an EXPIRE"
        return TtlFault("ttl.required", f"{key} has no time to live {after}", hint)
    if left < 0 or not everything:
        return None
    if rule.none:
        return TtlFault("ttl.forbidden", f"{key} has a time to live {after}", "PERSIST it")
    if rule.max is not None and left > rule.max:
        return TtlFault("ttl.range", f"the time to live of {key} is too long {after}", _at_most(rule))
    return None


def _at_least(rule: TtlRule) -> str:
    return f"at least {duration_text(rule.min or 0)}"


def _at_most(rule: TtlRule) -> str:
    return (
        f"at most {duration_text(rule.max)}"
        if rule.max is not None
        else "the time to live of its source may be too long"
    )


def _hint(rule: TtlRule, command: str) -> str:
    milliseconds = rule.default or rule.max or rule.min or 60_000
    if command in ("SET", "SETNX", "GETSET", "MSET", "MSETNX"):
        return f"SET it with EX {max(milliseconds // 1000, 1)}"
    return f"{duration_text(milliseconds)}, for example"
