"""The plan of a draft: the kinds of keys with their names, claims, scopes, rights and placeholders.

Rule: the plan depends on the evidence only. The same evidence gives the same plan.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from keyfence.policy.units import counted as count

from .applications import Application
from .kinds import Kind, Slot, Ways, kinds_of
from .layout import Rights, Scope, claims_of, rights_of, scope_of, scopes_of
from .legacy import mark_legacy
from .naming import name_kinds, name_slots, unique
from .requirements import Fields, fields_of, known_slot
from .seen import MARK, READS, WRITES, Evidence, Facts
from .text import HIDDEN, masked, secret_slots, shown
from .typos import Typo
from .values import ValueClass, class_of

_DAY = 86_400.0


class Refused(NamedTuple):
    """Commands that were seen and that the draft refuses."""

    rule: str
    service: str
    command: str
    what: str  # the entry, or the kind of the first key
    mistake: str  # why it is right to refuse them; "" if nothing shows it
    times: int

    def sentence(self) -> str:
        """Returns these commands as people may read them."""
        what = f"{self.service} {self.command} {shown(self.what)}".rstrip()
        return (
            f"{self.rule}: {what}, {count(self.times, 'time')}{f' ({self.mistake})' if self.mistake else ''}"
        )


@dataclasses.dataclass
class Plan:
    """What the draft will say."""

    evidence: Evidence
    name: str
    entries: list[Kind]
    legacy: list[Kind]
    channels: list[Kind]
    slots: dict[str, tuple[ValueClass, set[str]]]
    fields: dict[str, tuple[Fields, Slot | None]]  # by entry
    claims: list[str]
    scopes: list[Scope]
    rights: dict[str, Rights]
    hash_tag: str  # required, optional or ""
    cluster: bool
    services: list[str]
    renamed: str  # the name of clients that nothing identified
    unused: list[Kind]  # kinds of keys that are there, and that no command was seen on …
    holder: str  # … and the name of the service that they stand for
    left_out: Mapping[str, Typo]  # keys and channels that no entry is made of
    applications: list[Application] = dataclasses.field(default_factory=list)
    typos: list[Typo] = dataclasses.field(default_factory=list)
    grants: dict[str, dict[str, set[str]]] = dataclasses.field(default_factory=dict)  # service: what: globs
    omitted: set[tuple[str, str]] = dataclasses.field(default_factory=set)  # entry and setting
    refused: list[Refused] = dataclasses.field(default_factory=list)

    @property
    def kinds(self) -> list[Kind]:
        return [*self.entries, *self.legacy, *self.channels]

    def scope(self, kind: Kind) -> Scope | None:
        return scope_of(kind, self.scopes)

    @functools.cached_property
    def hidden(self) -> set[str]:
        """The placeholders that may stand for secrets."""
        return {slot.name for kind in self.kinds for slot in secret_slots(kind)}

    @functools.cached_property
    def names(self) -> set[str]:
        """The values of placeholders that replace words: they may be shown."""
        return {value for kind in self.kinds for slot in kind.slots if slot.guessed for value in slot.values}

    @functools.cached_property
    def _kinds(self) -> dict[str, Kind]:
        return {key: kind for kind in self.kinds for key in kind.keys}

    def shown(self, name: str) -> str:
        """Returns a key or channel as a draft may show it: by the pattern of its kind."""
        if name in self.left_out:
            kind = self.left_out[name].names[name]
            return masked(kind.shape.replace(MARK, HIDDEN))
        return self._kinds[name].pattern if name in self._kinds else masked(name, self.names)

    def pattern_of(self, keys: Collection[str]) -> str:
        """Returns the pattern of the one entry that these keys belong to; "" if they belong to several."""
        found = {kind.pattern for kind in self.entries if not kind.held.isdisjoint(keys)}
        return found.pop() if len(found) == 1 else ""


def plan_of(
    evidence: Evidence,
    name: str,
    renamed: str,
    ways: Ways,
    *,
    guesses_legacy: bool,
    left_out: Mapping[str, Typo] | None = None,
) -> Plan:
    """Returns the plan of a draft. `renamed` is the name of clients that nothing identified."""
    left_out = left_out or {}
    kinds = kinds_of({key: facts for key, facts in evidence.keys.items() if key not in left_out}, ways)
    holder = renamed or ("unidentified" if evidence.services else "app")
    unused = [kind for kind in kinds if not kind.facts.uses]
    for kind in unused:
        kind.facts.uses = {holder: WRITES | READS}
    for kind in kinds:
        _leave_out_strangers(kind)
    claims = claims_of(kinds)
    scopes = scopes_of(kinds, claims)
    name_kinds(kinds, lambda kind: _behind(kind, scopes))
    if guesses_legacy:
        mark_legacy(kinds)
    entries = [kind for kind in kinds if kind.legacy_of is None]
    legacy = [kind for kind in kinds if kind.legacy_of is not None]
    claims = claims_of(entries)
    scopes = scopes_of(entries, claims)
    channels = _channels(evidence, ways, left_out)
    slots = name_slots([*entries, *legacy, *channels], lambda kind: _behind(kind, scopes))
    name_kinds(entries, lambda kind: _behind(kind, scopes))
    name_kinds(channels, lambda _kind: "")
    fields = {kind.name: _fields(kind, slots) for kind in entries}
    tags = [_has_hash_tag(kind) for kind in entries]
    return Plan(
        evidence=evidence,
        name=name,
        entries=entries,
        legacy=legacy,
        channels=channels,
        slots=dict(sorted(slots.items())),
        fields=fields,
        claims=claims,
        scopes=scopes,
        rights={kind.name: rights_of([kind]) for kind in entries},
        hash_tag=("required" if all(tags) else "optional") if any(tags) else "",
        cluster=sum(tags) > len(tags) / 2,
        services=_services([*entries, *legacy, *channels]),
        renamed=renamed,
        unused=unused,
        holder=holder,
        left_out=left_out,
    )


def _leave_out_strangers(kind: Kind) -> None:
    """Leaves out the uses by services whose commands are all for another type, if others use the keys too."""
    strangers = kind.facts.types.strangers()
    left = {service: use for service, use in kind.facts.uses.items() if service not in strangers}
    if left:
        kind.strangers = frozenset(kind.facts.uses.keys() - left.keys())
        kind.facts.uses = left


def _behind(kind: Kind, scopes: Sequence[Scope]) -> str:
    scope = scope_of(kind, scopes)
    return scope.text if scope is not None else ""


def _services(kinds: Iterable[Kind]) -> list[str]:
    """Returns the services that use a key or a channel; others need no rights."""
    return sorted({service for kind in kinds for service in kind.facts.uses})


def _has_hash_tag(kind: Kind) -> bool:
    text = "".join(part if isinstance(part, str) else "x" for part in kind.parts)
    inside = text.partition("{")[2].partition("}")
    return bool(inside[0]) and bool(inside[1]) and text.count("{") == text.count("}") == 1


def _channels(evidence: Evidence, ways: Ways, left_out: Collection[str]) -> list[Kind]:
    keys = {}
    for name, uses in evidence.channels.items():
        if name in left_out:
            continue
        keys[name] = facts = Facts(times=evidence.channel_times[name])
        facts.uses = dict(uses)
    return kinds_of(keys, ways)


def _fields(kind: Kind, slots: dict[str, tuple[ValueClass, set[str]]]) -> tuple[Fields, Slot | None]:
    """Returns the fields of an entry, with a placeholder for those that are values."""
    found = fields_of(kind.facts, before=(kind.words or [""])[-1])
    if not found.values:
        return found, None
    known = known_slot(found.values, slots)
    if known:
        return found, Slot(found.values, True, known)
    held = class_of(found.values)
    same = next((name for name, (one, _) in slots.items() if one == held and name.startswith("field")), "")
    name = same or unique("field", slots, [f"{kind.name}_field".replace("-", "_")], "_")
    slots[name] = held, found.values | (slots[name][1] if name in slots else set())
    return found, Slot(found.values, True, name)


def is_short(evidence: Evidence) -> bool:
    """Whether the evidence covers less than a day."""
    return evidence.seconds is None or evidence.seconds < _DAY
