"""Since when evidence counts, by service and rule: until then something was seen that the basis in force may
answer otherwise.

Rule: evidence under another basis counts only where the changes of the basis say that nothing has changed. A
basis that is not known proves nothing. While a service knew addresses of Redis, its evidence was not all of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from keyfence.telemetry.usage import PART, RULE

from .basis import Described
from .changes import EVERY_RULE, Changes, of


class Drawn(Protocol):
    """Evidence of a service about a rule, or about a part of the policy, under one basis."""

    @property
    def basis(self) -> str: ...
    @property
    def service(self) -> str: ...
    @property
    def kind(self) -> str: ...  # RULE or PART
    @property
    def name(self) -> str: ...
    @property
    def last(self) -> float: ...  # Unix seconds


class Began(NamedTuple):
    """When the evidence of a service about a rule began again."""

    at: float  # Unix seconds
    why: str  # because …


KNEW_ADDRESSES = "the service knew addresses of Redis until then"
NOBODY: Mapping[str, float] = {}


class Worth:
    """The worth of evidence under the basis in force."""

    def __init__(
        self,
        in_force: str,
        drawn: Iterable[Drawn],
        described: Callable[[set[str]], Mapping[str, Described]],
        told: Mapping[str, float] = NOBODY,
    ) -> None:
        """`described` returns those bases that are known. `in_force` "": what is in force is not known, so no
        change is. `told`: services that were told addresses of Redis, and when last."""
        self._began: dict[tuple[str, str], Began] = {}
        self._last: dict[tuple[str, str], float] = {}  # when a rule was asked last
        self._worthless: set[tuple[str, str, str]] = set()  # service, rule and basis
        rows = list(drawn)
        known = described({one.basis for one in rows} | {in_force})
        new = known.get(in_force)
        # Also from the basis in force to itself: what was seen of a disabled rule proves nothing.
        changes = {name: Changes(old, new) for name, old in known.items() if new is not None}
        for one in rows:
            if one.kind == RULE:
                pair = one.service, one.name
                self._last[pair] = max(self._last.get(pair, 0.0), one.last)
            if in_force and (new is not None or one.basis != in_force):
                self._weigh(one, changes.get(one.basis))
                if one.service in told and not of(known.get(one.basis), one.service, "kept_in"):
                    self._begin(one, EVERY_RULE, KNEW_ADDRESSES)
        for service, at in told.items():
            for rule in EVERY_RULE:
                self._begin_at((service, rule), Began(at, KNEW_ADDRESSES))

    def _weigh(self, one: Drawn, changes: Changes | None) -> None:
        if changes is None:
            why = "it is not known what policy was in force before"
            self._begin(one, EVERY_RULE if one.kind == PART else (one.name,), why)
        elif one.kind == PART:
            for changed in changes.of_part(one.service, one.name):
                self._begin(one, changed.rules, changed.why)
        else:
            why = changes.of_rule(one.service, one.name)
            if why:
                self._begin(one, (one.name,), why)

    def _begin(self, one: Drawn, rules: Iterable[str], why: str) -> None:
        for rule in rules:
            pair = one.service, rule
            self._worthless.add((*pair, one.basis))
            self._begin_at(pair, Began(one.last, why))

    def _begin_at(self, pair: tuple[str, str], began: Began) -> None:
        before = self._began.get(pair)
        if before is None or before.at < began.at:
            self._began[pair] = began

    def began(self, service: str, rule: str) -> Began | None:
        """When the evidence about a rule began again; None: all of it counts."""
        return self._began.get((service, rule))

    def asked_after(self, service: str, rule: str) -> bool:
        """Whether the rule was asked since then."""
        began = self._began.get((service, rule))
        return began is None or self._last.get((service, rule), 0.0) > began.at

    def counts(self, service: str, rule: str, basis: str) -> bool:
        """Whether evidence about a rule under a basis counts."""
        return (service, rule, basis) not in self._worthless

    def all_began(self) -> Mapping[tuple[str, str], Began]:
        """By service and rule: when the evidence began again."""
        return self._began
