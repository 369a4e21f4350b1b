"""The modes of one environment: they turn a verdict into a ruling (refused, observed or waived).

Rule: modes are resolved once, into a table of rule × service. A `should` never refuses, a waived violation
never refuses, and an observed violation never hides an enforced one.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.patterns.automaton import Automaton
from keyfence.policy.rules import RULES
from keyfence.policy.verdict import (
    PASS,
    Action,
    Finding,
    Found,
    Mode,
    Ruling,
    Verdict,
    Violation,
    entry_and_scope,
    script_in,
)

from .waiver_keys import waived_keys, waiver_keys

BYPASS = "redis.address"  # unless it is enforced, traffic may go past keyfence


def keeps_in(mode: str | None, *, is_waived: bool) -> bool:
    """Returns whether Redis tells a service no address, if BYPASS has this mode for it."""
    return mode == "enforce" and not is_waived


class ModeRule(NamedTuple):
    """One line of the configuration's `modes`.

    The first matching line decides; "" matches any rule or service.
    """

    mode: Mode
    rule: str = ""
    service: str = ""


def parse_mode(text: str, service: str = "") -> ModeRule:
    """Returns the mode that RULE=enforce means, for a service or ("") for all; RULE may be `*`.

    Raises ValueError.
    """
    rule, _, mode = text.partition("=")
    if mode != "enforce":
        raise ValueError(f"{text!r} is not a mode to try; write RULE=enforce, as scope.write=enforce")
    if rule not in RULES and rule != "*":
        raise ValueError(f"{rule!r} is not a rule{did_you_mean(rule, RULES)}")
    return ModeRule("enforce", "" if rule == "*" else rule, service)


class Waiver(NamedTuple):
    """A known violation that passes and is still counted. "" matches any entry, scope, command, key or
    script."""

    service: str
    rule: str
    entry: str = ""  # an entry or a channel
    command: str = ""
    keys: str = ""  # a glob with placeholders (`waiver_keys`)
    script: str = ""  # the SHA-1 of an unregistered script, or a function's name
    scope: str = ""  # only keys of this scope that no entry covers

    def covers(self, violation: Waiver) -> bool:
        """Returns whether it covers a violation (`as_waiver`) on a key that it names."""
        return (
            (self.service, self.rule) == (violation.service, violation.rule)
            and self.entry in ("", violation.entry)
            and self.command in ("", violation.command)
            and self.script in ("", violation.script)
            and self.scope in ("", violation.scope)
        )


def as_waiver(service: str, rule: str, name: str, command: str, shape: str, *, is_covered: bool) -> Waiver:
    """Returns the narrowest waiver for a violation that names no keys. `name` and `shape` are the violation's
    `entry` and `shape`, or those of a report's row. `is_covered`: an entry or a channel covers the key."""
    entry, scope = entry_and_scope(name, is_covered=is_covered)
    return Waiver(service, rule, entry, command, script=script_in(rule, shape), scope=scope)


def best_waiver(waivers: Iterable[Waiver], violation: Waiver, key: bytes) -> Waiver | None:
    """Returns the waiver that covers a violation (`as_waiver`), the most specific one of several; None if
    none does."""
    fits = (
        one
        for one in waivers
        if one.covers(violation) and (not one.keys or waiver_keys(one.keys).matches(key))
    )
    return max(fits, key=_specificity, default=None)


def _specificity(one: Waiver) -> tuple[bool, ...]:
    return bool(one.entry or one.scope), bool(one.keys or one.script), bool(one.command)


class ServiceWaivers:
    """The waivers of one service, found without a look at each."""

    def __init__(self, waivers: Iterable[Waiver]) -> None:
        self._of_keys: list[Waiver] = []
        self._by_keys: set[str] = set()  # the rules that some of them waive
        self._others: dict[tuple[str, str, str], list[Waiver]] = {}  # by rule, entry and scope
        for one in waivers:
            if one.keys:
                self._of_keys.append(one)
                self._by_keys.add(one.rule)
            else:
                self._others.setdefault((one.rule, one.entry, one.scope), []).append(one)
        # Tells apart the keys that they name. None: they name none, or these are too many.
        self.automaton = waived_keys(tuple(one.keys for one in self._of_keys))

    def tells(self, rule: str) -> bool:
        """Returns whether command, entry and `automaton` decide if a violation of the rule is waived."""
        return self.automaton is not None or rule not in self._by_keys

    def near(self, violation: Waiver, key: bytes) -> list[Waiver]:
        """Returns those that may cover a violation (`as_waiver`), and few others."""
        rule, entry, scope = violation.rule, violation.entry, violation.scope
        found = [*self._others.get((rule, "", ""), ())]
        if entry or scope:
            found += self._others.get((rule, entry, scope), ())
        if self.automaton is None:
            return found + self._of_keys
        accept = self.automaton.match(bytes(key))  # a key that is streamed is a subclass of bytes
        members = self.automaton.sets[accept] if accept >= 0 else ()
        return found + [self._of_keys[index] for index in members]


@dataclasses.dataclass(slots=True)
class BreakGlass:
    """A period in which nothing is refused, for one rule or service or for all. "" means all."""

    until: float  # seconds, on the clock of the authorizer
    rule: str = ""
    service: str = ""

    def covers(self, rule: str, service: str, now: float) -> bool:
        """Returns whether it is open for this rule and service at the time `now`."""
        return now < self.until and self.rule in ("", rule) and self.service in ("", service)


class Modes:
    """The modes of all rules for all services of a policy, with the waivers, in one environment."""

    def __init__(
        self,
        rules: Sequence[ModeRule],
        services: Sequence[str],
        waivers: Iterable[Waiver] = (),
        default: Mode = "observe",
    ) -> None:
        """Builds the automata of the waivers, which may take half a second for each service. They are kept
        for later modes with the same waivers. So where an event loop serves clients, another thread makes
        modes of new waivers first (`process.serving.packing`)."""
        self.services = tuple(services)
        self._waivers: dict[tuple[str, str], list[Waiver]] = {}
        for one in dict.fromkeys(waivers):
            self._waivers.setdefault((one.service, one.rule), []).append(one)
        self._modes: list[dict[str, Mode]] = [
            {rule: mode_of(rules, rule, service, default) for rule in RULES} for service in services
        ]
        self._of_service = {
            name: ServiceWaivers(one for (of, _), held in self._waivers.items() if of == name for one in held)
            for name in self.services
        }

    def mode(self, rule: str, service: int) -> Mode:
        """Returns the mode of a rule for the service with this number."""
        return self._modes[service][rule]

    def enforces(self, service: int) -> bool:
        """Returns whether any rule is enforced for the service with this number."""
        return "enforce" in self._modes[service].values()

    def matrix(self) -> dict[str, dict[str, Mode]]:
        """Returns rule → service → mode, as `keyfence modes` prints it."""
        return {
            rule: {name: self._modes[number][rule] for number, name in enumerate(self.services)}
            for rule in RULES
        }

    def may_waive(self, service: str, rule: str) -> bool:
        """Returns whether there are waivers for this service and rule."""
        return bool(self._waivers.get((service, rule)))

    def waivers_of(self, service: str, rule: str) -> tuple[Waiver, ...]:
        """Returns the waivers for this service and rule."""
        return tuple(self._waivers.get((service, rule), ()))

    @cached_property
    def label(self) -> str:
        """Tells these modes from others under which less is found: with rules disabled, with waivers, or with
        clients that may go past keyfence. Such modes may hide what other modes refuse."""
        disabled = [
            (rule, name)
            for number, name in enumerate(self.services)
            for rule, mode in self._modes[number].items()
            if mode == "disabled"
        ]
        waivers = sorted(one for held in self._waivers.values() for one in held)
        closed = [name for name in self.services if self.keeps_in(name)]
        if not disabled and not waivers and not closed:
            return ""
        text = repr((disabled, waivers, *closed)).encode("utf-8", "surrogateescape")
        return f"+{hashlib.blake2b(text, digest_size=6).hexdigest()}"

    def keeps_in(self, service: str) -> bool:
        """Returns whether Redis tells a service no address, so that its clients stay with keyfence."""
        if service not in self.services:
            return False
        mode = self._modes[self.services.index(service)][BYPASS]
        return keeps_in(mode, is_waived=self.may_waive(service, BYPASS))

    def waived_keys(self, service: int) -> Automaton | None:
        """Returns the automaton that tells apart the keys that the service's waivers name. None: they name
        none, or these are too many (`tells_waived`)."""
        return self._of_service[self.services[service]].automaton

    def tells_waived(self, service: int, rule: str) -> bool:
        """Returns whether command, entry and `waived_keys` decide if a violation of the rule is waived."""
        return self._of_service[self.services[service]].tells(rule)

    def waived(self, violation: Violation | Found, service: str, command: str) -> bool:
        """Returns whether a waiver covers a violation by this command of the service."""
        rule, entry, shape, key = violation.rule, violation.entry, violation.shape, violation.key or b""
        if (service, rule) not in self._waivers:
            return False
        found = as_waiver(service, rule, entry, command, shape, is_covered=shape == entry)
        return best_waiver(self._of_service[service].near(found, key), found, key) is not None

    def rule_on(
        self, verdict: Verdict, service: int, command: str, now: float, glass: Sequence[BreakGlass] = ()
    ) -> Ruling:
        """Returns the ruling on a verdict on a command of the service with this number, at the time `now`."""
        if not verdict.violations:
            return PASS
        found = [(one, self.action(one, service, command)) for one in verdict.violations]
        return self.ruling(
            [(one, action) for one, action in found if action is not None], service, now, glass
        )

    def action(self, violation: Violation | Found, service: int, command: str) -> Action | None:
        """Returns the action on a violation by a command of the service with this number, break-glass aside.

        None means that the rule is disabled: the violation is neither counted nor reported.
        """
        mode = self._modes[service][violation.rule]
        if mode == "disabled":
            return None
        if self._waivers and self.waived(violation, self.services[service], command):
            return "waived"
        return "observed" if mode == "observe" or violation.severity == "should" else "refused"

    def ruling(
        self,
        found: Iterable[tuple[Violation, Action]],
        service: int,
        now: float,
        glass: Sequence[BreakGlass] = (),
    ) -> Ruling:
        """Returns the ruling on all violations of a command, each with its `action`.

        Open break-glass applies.
        """
        findings: list[Finding] = []
        refused_by: Violation | None = None
        name = self.services[service]
        for violation, action in found:
            if glass and action == "refused" and any(one.covers(violation.rule, name, now) for one in glass):
                action = "observed"
            findings.append(Finding(violation, action))
            if action == "refused":
                refused_by = refused_by or violation
        return Ruling(tuple(findings), refused_by)


def mode_of(rules: Sequence[ModeRule], rule: str, service: str, default: Mode = "observe") -> Mode:
    """Returns the mode of the first line that matches a rule and a service."""
    for candidate in rules:
        if candidate.rule in ("", rule) and candidate.service in ("", service):
            return candidate.mode
    return default


def advised(policy: CompiledPolicy) -> dict[str, list[str]]:
    """Returns rule → the entries, scopes and naming rules for which the rule is only a `should`.

    Rules that the policy as a whole lists under `should` are left out.
    """
    found: dict[str, set[str]] = {}
    for target in policy.targets:
        for rule in target.should - policy.home(target).should:
            if target.kind == "scope" or (target.kind == "entry" and rule != "key.unregistered"):
                found.setdefault(rule, set()).add(target.name)
    for home in policy.homes:
        for rule, what in home.names.advised:
            found.setdefault(rule, set()).add(f"names.{what}")
    return {rule: sorted(found[rule]) for rule in RULES if rule in found}


def mode_faults(rules: Sequence[ModeRule], services: Sequence[str]) -> list[tuple[int, str, str]]:
    """Returns (index, field, message) for every mode that names an unknown rule or service."""
    faults = []
    for index, rule in enumerate(rules):
        if rule.rule and rule.rule not in RULES:
            faults.append((index, "rule", f"{rule.rule!r} is not a rule{did_you_mean(rule.rule, RULES)}"))
        if rule.service and rule.service not in services:
            known = did_you_mean(rule.service, services)
            faults.append((index, "service", f"{rule.service!r} is not a service of the policy{known}"))
    return faults
