"""The entry that a key without an entry is nearest to: a slip of the pen in its name.

Rule: `explain` and the lists of findings name the same entry.
"""

from __future__ import annotations

import difflib
from collections.abc import Generator
from typing import NamedTuple

from keyfence.policy.budget import driven
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.show import printable

_LEAST = 0.5  # likeness of a pattern, and of a segment that may be meant
PAUSE_AFTER = 50  # entries, or comparisons of two segments, each of which takes some 10 µs


class Slip(NamedTuple):
    """The beginning of a key that differs from an entry's, each with the segments before it."""

    given: str
    meant: str


def nearest_entry(policy: CompiledPolicy, service: int | None, key: bytes) -> Target | None:
    """Returns the entry with the nearest pattern; None if none is near. Entries that only others may use do
    not count for a service."""
    return driven(nearest_entry_in_steps(policy, service, key))


def nearest_entry_in_steps(
    policy: CompiledPolicy, service: int | None, key: bytes
) -> Generator[None, None, Target | None]:
    """The same, and yields where other work may be done meanwhile."""
    given = printable(key, 512).split(":")
    known: dict[tuple[str, str], float] = {}
    best, found = 0.0, None
    paused_at = 0
    for looked_at, target in enumerate(policy.targets):
        if looked_at + len(known) - paused_at >= PAUSE_AFTER:
            paused_at = looked_at + len(known)
            yield
        if target.kind != "entry" or (service is not None and target.is_others(service)):
            continue
        wanted = target.pattern.text.split(":")
        shorter, longer = sorted((len(wanted), len(given)))
        if shorter / longer <= best:
            continue  # even if all of their segments were equal
        likeness = _likeness(wanted, given, known)
        if likeness > best:
            best, found = likeness, target
    return found if best >= _LEAST else None


def slip(target: Target, key: bytes) -> Slip | None:
    """Returns where a key begins to differ from its nearest entry; None if no own text of the entry does."""
    wanted, given = target.pattern.text.split(":"), printable(key, 512).split(":")
    for at, (one, other) in enumerate(zip(wanted, given, strict=False)):
        if "<" in one or one == other:
            continue
        if _ratio(one, other, {}) < _LEAST:
            return None
        end = "" if at + 1 == len(given) else ":"
        return Slip(":".join(given[: at + 1]) + end, ":".join(wanted[: at + 1]) + end)
    return None


def _likeness(wanted: list[str], given: list[str], known: dict[tuple[str, str], float]) -> float:
    """Returns how similar a key is to a pattern, from 0 to 1, compared segment by segment."""
    pairs = zip(wanted, given, strict=False)
    score = sum(0.75 if "<" in one else _ratio(one, other, known) for one, other in pairs)
    return score / max(len(wanted), len(given))


def _ratio(one: str, other: str, known: dict[tuple[str, str], float]) -> float:
    """Returns how similar two segments are. Entries share many segments, so the answers are `known`."""
    ratio = known.get((one, other))
    if ratio is None:
        ratio = known[one, other] = difflib.SequenceMatcher(None, one, other).ratio()
    return ratio
