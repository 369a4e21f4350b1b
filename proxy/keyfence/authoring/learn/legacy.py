"""Deprecated forms: kinds whose keys seem to be older names of another kind's keys.

Rule: this is a guess, and the draft says so. A kind that is still written to is taken for a deprecated form
only if its name says so, and the draft allows these writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyfence.policy.units import counted as count

from .kinds import Kind, Slot
from .seen import CONSUMES, READS, WRITES

_LEAST_SHARE = 0.2  # of the values, which both kinds must have in common
_MIN_COMMON = 2


def mark_legacy(kinds: Sequence[Kind]) -> None:
    """Marks the kinds that seem to be deprecated forms of others."""
    for old in kinds:
        if old.facts.by_script or not old.slots or not old.facts.uses:
            continue
        candidates = [
            (score, new) for new in kinds if new is not old and (score := _score(old, new)) is not None
        ]
        if candidates:
            (_, why), best = max(candidates, key=lambda one: (one[0][0], one[1].pattern))
            _connect(old, best, why)


def _score(old: Kind, new: Kind) -> tuple[float, str] | None:
    """Returns how much speaks for one kind being an old form of another, and why; None if it cannot be."""
    if new.legacy_of is not None or not new.facts.changed or not _may_be_older(old, new):
        return None
    if old.types and new.types and not set(old.types) <= set(new.types):
        return None
    facts, newer = old.facts, new.facts
    able = set(newer.services(WRITES, CONSUMES, READS))
    writers = set(newer.services(WRITES))
    if not set(facts.uses) <= able or not facts.deleters | set(facts.services(WRITES)) <= writers:
        return None
    pairs = _pairs(old, new)
    if pairs is None:
        return None
    moved = sum(
        times for key, times in facts.targets.items() if key.decode("utf-8", "surrogateescape") in new.held
    )
    shares = [
        len(one.values & other.values) / min(len(one.values), len(other.values)) for one, other in pairs
    ]
    alike = _alike(old, new)
    numeric = all(slot.value_class.text.startswith("[0-9]{") for slot in old.slots)
    if numeric and not alike and not moved:
        return None  # small numbers are the same everywhere
    common = sum(len(one.values & other.values) for one, other in pairs)
    used = (
        "its name is that of {new} without the beginning" if facts.changed else "it was only read or deleted"
    )
    why = f"{common} of its values also stand in {{new}}, and {used}"
    if moved:
        why = f"its keys were copied to {{new}} {count(moved, 'time')}, and {used}"
    return 10.0 * bool(moved) + alike + sum(shares) / len(shares), why


def _pairs(old: Kind, new: Kind) -> list[tuple[Slot, Slot]] | None:
    """Returns the placeholders of the new kind with those of the old one that hold the same values. An old
    name may lack the new one's hash tag."""
    pairs = []
    left = list(old.slots)
    for slot in new.slots:
        best = max(left, key=lambda one: len(one.values & slot.values), default=None)
        common = len(best.values & slot.values) if best is not None else 0
        fewer = min(len(best.values), len(slot.values)) if best is not None else 0
        if best is None or common < min(_MIN_COMMON, fewer) or common < _LEAST_SHARE * fewer or not common:
            if slot.guessed:
                continue
            return None
        left.remove(best)
        pairs.append((best, slot))
    return pairs or None


def _connect(old: Kind, new: Kind, why: str) -> None:
    old.legacy_of, old.why = new, why
    for mine, standard in _pairs(old, new) or []:
        held = mine.values | standard.values
        standard.values |= held
        old.parts = [standard if part is mine else part for part in old.parts]


def _first(kind: Kind) -> str:
    return kind.prefix.partition(":")[0]


def _may_be_older(old: Kind, new: Kind) -> bool:
    """Whether the names allow that one kind is an older form of another: it begins in another way, or has
    the same words. If it is still written, its name must be the other one's without the beginning."""
    words, newer = _words(old), _words(new)
    is_elsewhere = _first(old) != _first(new)
    if old.facts.changed:
        return is_elsewhere and old.words == new.words[len(new.words) - len(old.words) :] and bool(words)
    return is_elsewhere or (words == newer and len(old.slots) <= len(new.slots) and old.shape != new.shape)


def _alike(old: Kind, new: Kind) -> int:
    """Returns how many words of an old name are also words, or beginnings of words, of a new one."""
    return sum(
        any(one.startswith(word) or word.startswith(one) for one in _words(new)) for word in _words(old)
    )


def _words(kind: Kind) -> set[str]:
    return {piece.lower() for word in kind.words for piece in word.split("_") if len(piece) > 2}
