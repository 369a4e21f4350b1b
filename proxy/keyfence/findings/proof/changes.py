"""What has changed from the basis of evidence to the one in force, rule by rule.

Rule: a rule that is not named here gives the same answers under both, to a command that the named part of the
policy decided about. A doubt counts as a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from keyfence.policy.engine.command_evidence import ANYTHING, CARRIED, NOWHERE, REACH, SCRIPTS
from keyfence.policy.rules import RULES, rules_at

from .basis import GROUPS, ON_KEYS, ON_REACH, Described

EVERY_RULE = tuple(RULES)
ON_CHANNELS = rules_at("channel")


class Changed(NamedTuple):
    """Rules that may answer otherwise now, and why, as part of a sentence."""

    rules: Iterable[str]
    why: str


class Changes:
    """All changes from an older basis to the one in force."""

    def __init__(self, old: Described, new: Described) -> None:
        self._old = old
        self._new = new
        self._were = _by_place(old)
        self._are = _by_place(new)
        self._moved = self._moves()

    def of_part(self, service: str, part: str) -> Iterator[Changed]:
        """The changes for a service's commands that a part of the policy decided about."""
        old, new = self._old, self._new
        if part == ANYTHING:
            yield from self._of_anything(service)
        elif part == SCRIPTS:
            if old["scripts"] != new["scripts"]:
                yield Changed(EVERY_RULE, "the registered scripts changed")
        elif part == REACH:
            if of(old, service, "reach") != of(new, service, "reach"):
                yield Changed(ON_REACH, "what a pattern reaches changed")
        else:
            yield from self._of_place(service, part.removeprefix(CARRIED), part.startswith(CARRIED))

    def of_rule(self, service: str, rule: str) -> str:
        """Why a rule may answer otherwise now to any command of a service; "": it does not."""
        old, new = self._old, self._new
        if rule in (of(old, service, "disabled") or ()):
            return "the rule was disabled"
        if not _waivers(old, service, rule) <= _waivers(new, service, rule):
            return "a waiver is gone or has changed"
        if of(old, service, "grants") != of(new, service, "grants"):
            return f"the grants of {service} changed"
        if rule in ON_CHANNELS and of(old, service, "channels") != of(new, service, "channels"):
            return "the channels changed"
        return f"what the policy says of {rule} changed" if old["rules"][rule] != new["rules"][rule] else ""

    def keeps(self, entry: str) -> bool:
        """Whether all keys of an entry or scope, well-formed or not, are the same ones and belong to the same
        places."""
        were, are = (
            {one["place"]: one["keys"] for one in side["places"] if one["entry"] == entry}
            for side in (self._old, self._new)
        )
        return bool(were) and were == are and not any(self._moved.get(place) for place in were)

    # -- places

    def _of_anything(self, service: str) -> Iterator[Changed]:
        if self._old["scripts"] != self._new["scripts"]:
            yield Changed(EVERY_RULE, "the registered scripts changed")
        new = [one["name"] for place, held in self._are.items() if place not in self._were for one in held]
        if new:
            yield Changed(ON_KEYS, f"{new[0]} is new")
        if of(self._old, service, "reach") != of(self._new, service, "reach"):
            yield Changed(ON_REACH, "what a pattern reaches changed")
        for place in self._were:
            yield from self._of_place(service, place, True)
        yield from self._of_place(service, NOWHERE, False)

    def _of_place(self, service: str, place: str, by_all: bool) -> Iterator[Changed]:
        """`by_all`: what other services may do there decides, too."""
        if place == NOWHERE:
            if self._old["nowhere"] != self._new["nowhere"]:
                yield Changed(ON_KEYS, "the claims changed")
        elif place not in self._were:  # evidence of a policy that the store has described otherwise
            yield Changed(EVERY_RULE, f"{place} is not known")
            return
        elif not self._has_same_keys(place):
            name = self._were[place][0]["name"]
            is_gone = place not in self._are and not any(one["name"] == name for one in self._new["places"])
            yield Changed(ON_KEYS, f"{name} is gone" if is_gone else f"{name} changed")
            return
        else:
            yield from self._differing(service, place, place, by_all, "changed")
        for other in sorted(self._moved.get(place, ())):
            yield from self._differing(service, place, other, by_all, "is new")

    def _differing(self, service: str, place: str, other: str, by_all: bool, how: str) -> Iterator[Changed]:
        """The rules that answer otherwise at a place in force than at an older one, to which the same keys
        belonged."""
        name = self._are[other][0]["name"]
        if place == NOWHERE:
            yield Changed(ON_KEYS, f"{name} {how}")
            return
        were, are = self._were[place], self._are[other]
        rules = {
            rule
            for group, of_group in GROUPS.items()
            if [one["groups"][group] for one in were] != [one["groups"][group] for one in are]
            for rule in of_group
        }
        others = (*self._old["services"], *self._new["services"]) if by_all else ()
        for one in dict.fromkeys((service, *others)):
            if _rights(self._old, were, one) != _rights(self._new, are, one):
                rules |= set(GROUPS["rights"])
        if rules:
            yield Changed(rules, f"{name} {how}")

    def _has_same_keys(self, place: str) -> bool:
        were, are = self._were.get(place), self._are.get(place)
        if were is None or are is None:
            return False
        return [one["keys"] for one in were] == [one["keys"] for one in are]

    def _moves(self) -> dict[str, set[str]]:
        """By an older place that is still there (or NOWHERE): the places in force that some of its keys
        belong to now."""
        old_order = {place: number for number, place in enumerate(self._were)}
        kept = {place for place in self._were if self._has_same_keys(place)}
        moved: dict[str, set[str]] = {}
        for members in self._new["meets"]:
            targets = [self._new["places"][number] for number in members]
            names = [one["place"] for one in targets]
            stay = [name for name in names if name in kept]
            if stay != sorted(stay, key=old_order.__getitem__):  # they decide in another order now
                for name in stay:
                    moved.setdefault(name, set()).update(set(names) - {name})
            for at, target in enumerate(targets):
                if names[at] not in kept:
                    for decided in _deciding(targets[at + 1 :], kept):
                        moved.setdefault(decided, set()).add(names[at])
                if target["sure"]:
                    break
        return moved


def _deciding(targets: Iterable[Described], kept: set[str]) -> Iterator[str]:
    """The places among `kept` that can decide about a key that all these targets match but for its length,
    and NOWHERE if none of them must."""
    for one in targets:
        if one["place"] in kept:
            yield one["place"]
            if one["sure"]:
                return
    yield NOWHERE


def _by_place(basis: Described) -> dict[str, list[Described]]:
    found: dict[str, list[Described]] = {}
    for one in basis["places"]:
        found.setdefault(one["place"], []).append(one)
    return found


def _rights(basis: Described, targets: Iterable[Described], service: str) -> list[list[int]]:
    services = basis["services"]
    number = services.index(service) if service in services else len(services) - 1
    return [one["rights"][number] for one in targets]


def of(basis: Described | None, service: str, name: str) -> Any:
    """What a basis says of a service under this name; None: nothing."""
    return basis["of"].get(service, {}).get(name) if basis is not None else None


def _waivers(basis: Described, service: str, rule: str) -> set[str]:
    return set((of(basis, service, "waivers") or {}).get(rule, ()))
