"""Judges keys at rest: which part of the policy a key belongs to, and which rules it breaks.

Rule: the policy's own evaluator and tables decide, as for a command. Rights are no matter here: a key at rest
has no caller. What a key that is being written may still get (a time above `min`) is not held against it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from keyfence.commands.model import READ, WRITE, Access, Content, Field, Touches
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Target, types_in
from keyfence.policy.compiled.sizes import Question, late_excess, questions
from keyfence.policy.compiled.ttl import late_fault
from keyfence.policy.engine.content import content_faults, fits
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.engine.keys import ANYONE
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import Severity
from keyfence.policy.wording.masking import shown_in

Kind = Literal["entry", "legacy", "malformed", "scope", "unregistered"]

# What TYPE says of modules' types, by what a policy calls them.
_TYPES = {
    "ReJSON-RL": "json",
    "MBbloom--": "bloom",
    "MBbloomCF": "cuckoo",
    "CMSk-TYPE": "cms",
    "TopK-TYPE": "topk",
    "TDIS-TYPE": "tdigest",
    "TSDB-TYPE": "timeseries",
}
_JUDGED = frozenset({"entry", "scope"})  # an open scope may have requirements too
_WRITE = Access(0, b"", WRITE)


class Facts(NamedTuple):
    """What Redis says about a key."""

    type: str  # as a policy calls it
    ttl: int  # milliseconds; -1: none
    size: int  # bytes of memory; 0 if not asked
    idle: int  # seconds since it was used; -1 if not asked
    fields: tuple[bytes, ...] = ()  # the names of some fields of a hash
    sizes: tuple[tuple[Question, int], ...] = ()


class Fault(NamedTuple):
    """A rule that a key breaks."""

    rule: str
    severity: Severity


class Place(NamedTuple):
    """The part of the policy that a key belongs to. Keys of one place are counted together."""

    kind: Kind
    name: str  # of the entry or scope; "" for unregistered keys
    scope: str  # around it; "" for none
    owner: str  # a contact or a team; "" for nobody


class Look(NamedTuple):
    """What a key's name shows."""

    target: Target | None
    place: Place
    faults: tuple[Fault, ...]


def type_name(reply: str) -> str:
    """What a policy calls the type that TYPE names."""
    return _TYPES.get(reply, reply)


class Judge:
    """One policy's judgement on keys."""

    def __init__(self, policy: CompiledPolicy, clock: Callable[[], float] = time.time) -> None:
        self._evaluator = Evaluator(policy, clock)
        self.policy = self._evaluator.policy
        self._scopes = [one for one in self.policy.targets if one.kind == "scope"]
        self._places: dict[int, Place] = {}  # by the target's identity
        self._legacy: dict[int, tuple[Fault, ...]] = {}
        self._without_sizes: dict[int, Entry] = {}

    def shown(self, key: bytes, target: Target | None) -> str:
        """A key as people may see it."""
        return shown_in(self.policy, key, target)

    def look(self, key: bytes) -> Look:
        """What a key's name shows."""
        target = self.policy.target(key)
        place = self._place(target)
        if target is not None and place.kind in ("entry", "scope", "legacy"):
            faults = self._deprecated(target)
            well_named = target.names_sure or place.kind == "legacy"
            if well_named or self._evaluator.checks.keys.is_well_named(key, target):
                return Look(target, place, faults)
            return Look(target, place, (*faults, *self._by_name(key)))
        return Look(target, place, tuple(self._by_name(key)))

    def _by_name(self, key: bytes) -> Iterator[Fault]:
        """The rules about a key's form that its name breaks."""
        touches = Touches(None, (Access(0, key, READ),))
        known = set()
        asked = self._evaluator.evaluation(ANYONE, [b"AUDIT"], touches)
        for found in self._evaluator.checks.violations(asked):
            if found is not None and RULES[found.rule].stage == "form" and found.rule not in known:
                known.add(found.rule)
                yield Fault(found.rule, found.severity)

    def _place(self, target: Target | None) -> Place:
        if target is None:
            return Place("unregistered", "", "", self.policy.common.contact or self.policy.common.owner)
        known = self._places.get(id(target))
        if known is None:
            home = self.policy.home(target)
            owner = home.contact or home.owner
            if target.kind in ("entry", "legacy", "malformed"):
                scope = "" if target.kind == "legacy" else self._scope_of(target.pattern)
                known = Place(target.kind, target.name, scope, owner)
            elif target.kind == "scope":
                known = Place("scope" if target.is_open else "unregistered", "", target.name, owner)
            else:
                known = Place("unregistered", "", "", owner)
            self._places[id(target)] = known
        return known

    def _scope_of(self, pattern: KeyPattern) -> str:
        example = pattern.example()
        around = [one for one in self._scopes if one.pattern.capture(example) is not None]
        return max(around, key=lambda one: len(one.pattern.literal_prefix)).name if around else ""

    def _deprecated(self, target: Target) -> tuple[Fault, ...]:
        """`key.legacy` for a deprecated form. As long as a service may still use it, it is a `should`."""
        if target.kind != "legacy" and target.successor is None:
            return ()
        known = self._legacy.get(id(target))
        if known is None:
            tolerated = any(held & ~gone for held, gone in zip(target.rights, target.denied, strict=False))
            severity: Severity = "should" if tolerated or "key.legacy" in target.should else "must"
            known = self._legacy[id(target)] = (Fault("key.legacy", severity),)
        return known

    # -- what Redis says

    def questions(self, key: bytes, target: Target | None, of_type: str) -> tuple[Question, ...]:
        """The questions about the size of a key of this type."""
        entry = _entry_of(target)
        if entry is None or not entry.is_sized:
            return ()
        return questions(entry, _WRITE._replace(key=key, types=(of_type,)))

    @staticmethod
    def has_fields(target: Target | None, of_type: str) -> bool:
        """Whether the policy says which fields a key of this type may have."""
        entry = _entry_of(target)
        return entry is not None and entry.fields is not None and of_type == "hash"

    @staticmethod
    def requires_ttl(target: Target | None) -> bool:
        """Whether the policy requires a time to live of the keys of a target."""
        entry = _entry_of(target)
        return entry is not None and entry.ttl is not None and entry.ttl.required

    def of_facts(self, key: bytes, target: Target | None, facts: Facts) -> Iterator[Fault]:
        """The rules that a key's type, time to live, fields and size break. Legacy keys are judged by their
        name only: what they hold matters once they are moved."""
        if target is None or target.kind not in _JUDGED:
            return
        entry = target.entry
        types = entry.types if entry is not None else ()
        types = types or types_in(key, self.policy.home(target).type_words)
        if not fits(types, (facts.type,)):
            yield self._fault("type.mismatch", target)
        if entry is None:
            return
        if entry.fields is not None and facts.fields:
            content = Content(fields=tuple(Field(0, name, 0, b"") for name in facts.fields))
            access = _WRITE._replace(content=content)
            for fault in content_faults(access, self._unsized(entry), str, Budget()):
                if fault is not None:
                    found = self._fault(fault.rule, target)
                    yield found._replace(severity="must") if fault.is_must else found
                    break
        for question, size in facts.sizes:
            excess = late_excess(question, size, "", "")
            if excess is not None:
                yield self._fault(excess.rule, target)
        late = late_fault(facts.ttl, True, entry.ttl, "", "") if entry.ttl is not None else None
        if late is not None:
            yield self._fault(late.rule, target)

    def _unsized(self, entry: Entry) -> Entry:
        """The entry without limits on sizes: Redis is asked about these, and has all fields."""
        known = self._without_sizes.get(id(entry))
        if known is None:
            none = {"max_value": None, "max_fields": None, "max_members": None}
            known = self._without_sizes[id(entry)] = dataclasses.replace(entry, **none)  # type: ignore[arg-type]
        return known

    def _fault(self, rule: str, target: Target) -> Fault:
        return Fault(rule, "should" if rule in target.should else "must")


def _entry_of(target: Target | None) -> Entry | None:
    """What says what keys of a target must hold; None: nothing does."""
    return target.entry if target is not None and target.kind in _JUDGED else None
