"""Coverage: which parts of a policy its tests have exercised.

Rule: an item counts as exercised once a test has shown it at work: an entry admitted a command, an entry
stopped one, a rule was broken, an exception was used. The policy's impossible outcomes are not items.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from keyfence.commands.model import READ, WRITE, Access, Touches
from keyfence.policy.compiled.permissions import selects
from keyfence.policy.compiled.policy import CompiledPolicy, Grant
from keyfence.policy.compiled.requirements import rules_to_test
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.verdict import Verdict

Item = tuple[str, str, str]  # (section, name, outcome: allow, violation, or an entry's rule)


class Section(NamedTuple):
    """A kind of items: how many tests exercised, how many there are, and which are missing."""

    name: str
    exercised: int
    total: int
    missing: list[str]


class Coverage:
    """The items of one policy, with a mark for those that tests have exercised."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self.policy = policy
        self._items: dict[Item, bool] = dict.fromkeys(_items(policy), False)

    def record(self, service: int, touches: Touches, verdict: Verdict) -> None:
        """Marks the items that a command's verdict exercises."""
        for violation in verdict.violations:
            self._mark("rules", violation.rule, "violation")
            self._mark("entries", violation.entry, "violation")
            self._mark("rules of entries", violation.entry, violation.rule)
            if violation.rule == "key.legacy":
                self._mark("legacy", self._legacy_text(violation.key), "violation")
            if violation.rule in ("channel.read", "channel.write"):
                self._mark("channels", violation.entry, "violation")
        script = touches.script
        registration = self.policy.registration(script) if script is not None else None
        if registration is not None:
            self._mark("scripts", registration.name, "allow" if verdict.allowed else "violation")
        if verdict.allowed:
            self._allowed(service, touches, registration)

    def _allowed(self, service: int, touches: Touches, registration: Registration | None) -> None:
        for access in effective_accesses(touches, registration):
            target = self.policy.target(access.key)
            if target is not None and target.kind == "entry":
                self._mark("entries", target.name, "allow")
            elif target is not None and target.kind == "legacy":
                self._mark("legacy", target.text, "allow")
        for channel in touches.channels:
            index = self.policy.channel_classifier.first(channel.name)
            if index >= 0:
                self._mark("channels", self.policy.channels[index].name, "allow")
        if any(self._is_used(one, touches) for one in self.policy.grants.get(service, ())):
            self._mark("grants", self.policy.services[service], "allow")

    def _is_used(self, grant: Grant, touches: Touches) -> bool:
        """Whether a grant admits the command: on one of its keys or channels, if it names any."""
        if touches.command is None or not selects(grant.selectors, touches.command):
            return False
        if not touches.accesses and not touches.channels:
            return True
        return any(grant.covers(one.key, self.policy.target(one.key)) for one in touches.accesses) or any(
            grant.covers_channels(one.name) if one.is_pattern else grant.covers_channel(one.name)
            for one in touches.channels
        )

    def _legacy_text(self, key: bytes | None) -> str:
        target = self.policy.target(key) if key is not None else None
        return target.text if target is not None else ""

    def _mark(self, section: str, name: str, what: str) -> None:
        if (section, name, what) in self._items:
            self._items[section, name, what] = True

    def sections(self) -> list[Section]:
        """Returns the kinds of items that the policy has, each with its missing items."""
        names = dict.fromkeys(section for section, _, _ in self._items)
        return [self._section(name) for name in names]

    def _section(self, section: str) -> Section:
        mine = {item: done for item, done in self._items.items() if item[0] == section}
        missing = [_item_text(item) for item, done in mine.items() if not done]
        return Section(section, sum(mine.values()), len(mine), missing)

    @property
    def percent(self) -> int:
        """The percentage of exercised items, rounded down."""
        return 100 * sum(self._items.values()) // max(len(self._items), 1)


def _item_text(item: Item) -> str:
    section, name, what = item
    if section == "rules":
        return name
    if section == "rules of entries":
        return f"{what} of {name}"
    return f"{name}: {'nothing admitted' if what == 'allow' else 'no violation'}"


def _items(policy: CompiledPolicy) -> Iterator[Item]:
    entries = {target.name: target.entry for target in policy.targets if target.kind == "entry"}
    for name in entries:
        yield "entries", name, "allow"
        yield "entries", name, "violation"
    of_entries = {name: rules_to_test(entry) for name, entry in entries.items() if entry is not None}
    used = {rule for rules in of_entries.values() for rule in rules} | _rules_of_scopes(policy)
    for rule in [*_rules_of_policy(policy), *sorted(used)]:
        yield "rules", rule, "violation"
    for name, rules in of_entries.items():
        for rule in rules:
            yield "rules of entries", name, rule
    for target in policy.targets:
        if target.kind == "legacy":
            if any(target.rights):
                yield "legacy", target.text, "allow"
            yield "legacy", target.text, "violation"
    for target in policy.channels:
        if target.kind == "channel":
            yield "channels", target.name, "allow"
            yield "channels", target.name, "violation"
    for registration in {**policy.scripts, **policy.functions}.values():
        yield "scripts", registration.name, "allow"
    for number in policy.grants:
        yield "grants", policy.services[number], "allow"


def _rules_of_scopes(policy: CompiledPolicy) -> set[str]:
    """Returns what scopes require of their keys that no entry covers."""
    scopes = (one.entry for one in policy.targets if one.kind == "scope" and one.is_open)
    return {rule for entry in scopes if entry is not None for rule in rules_to_test(entry)}


def _rules_of_policy(policy: CompiledPolicy) -> Iterator[str]:
    """Yields the rules that commands can break under the policy as a whole."""
    kinds = {target.kind for target in policy.targets}
    yield "command.unknown"
    yield "command.forbidden"
    if policy.databases is not None:
        yield "database.forbidden"
    if kinds & {"entry", "scope"}:
        yield "scope.read"
        yield "scope.write"
    if "legacy" in kinds or any(target.successor is not None for target in policy.targets):
        yield "key.legacy"
    if any(home.type_words for home in policy.homes):
        yield "type.mismatch"
    if kinds & {"malformed", "claim"}:
        yield "key.format"
    if not _is_open(policy):
        yield "key.unregistered"
    yield from dict.fromkeys(rule for home in policy.homes for rule in home.names.rules)
    if any(target.hash_tag != "any" for target in policy.targets):
        yield "key.hash_tag"
    if policy.cluster:
        yield "slot.cross"
    yield "scan.scope"
    if any(target.kind == "channel" for target in policy.channels):
        yield "channel.read"
        yield "channel.write"
    if policy.scripts or policy.functions:
        yield "script.keys"
    if any(policy.unregistered_scripts(number) != "declared" for number in range(len(policy.services))):
        yield "script.unregistered"


def _is_open(policy: CompiledPolicy) -> bool:
    """Returns whether every key lies in a scope that admits unregistered keys."""
    scopes = [target for target in policy.targets if target.kind == "scope"]
    everything = [one for one in scopes if one.pattern.is_prefix and not one.pattern.literal_prefix]
    return bool(everything) and all(one.is_open for one in scopes)


def effective_accesses(touches: Touches, registration: Registration | None) -> list[Access]:
    """Returns the accesses of a command, with the keys that a registered script makes from its arguments."""
    if registration is None or touches.script is None:
        return list(touches.accesses)
    accesses = list(touches.accesses) if registration.declared else []
    captured = registration.captured(touches.script)
    for template, right in registration.touches if captured is not None else ():
        name = template.fill(touches.script, captured or {})
        if not name.is_pattern:
            accesses.append(Access(touches.script.position, name.text, right & (READ | WRITE)))
    return accesses
