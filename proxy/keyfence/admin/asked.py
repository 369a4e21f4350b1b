"""Questions about findings, as values: what operators, pipelines and the page ask.

Rule: a question says what is asked, and nothing of how it is answered. `process.answers_on_findings` answers
all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keyfence.findings.filter import Filter
from keyfence.policy.enforcement.modes import ModeRule


class Question:
    """What is asked."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Listing(Question):
    """The findings that a filter matches, and how many there are without its limit."""

    which: Filter


@dataclasses.dataclass(frozen=True, slots=True)
class CommonCause(Question):
    """How many findings are active, and what most of them have in common."""


@dataclasses.dataclass(frozen=True, slots=True)
class Single(Question):
    """One finding with its history. `name` is its id, or the beginning of it."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class EvidenceSince(Question):
    """The rules that each service's commands were checked against since a time (Unix seconds), when a command
    was last evaluated, the findings that were reopened, and what is not known since the policy changed."""

    since: float


@dataclasses.dataclass(frozen=True, slots=True)
class Readiness(Question):
    """Which rules can be enforced for which services: nothing broke them for `quiet` seconds."""

    quiet: float


@dataclasses.dataclass(frozen=True, slots=True)
class Unused(Question):
    """The rights that nobody has used for some seconds."""

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Summary(Question):
    """What has happened: findings by state, new and latest ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trend(Question):
    """Violations by hour since a time, and commands by hour since another (Unix seconds). `service` "" is
    all."""

    since: float
    service: str
    commands_since: float


@dataclasses.dataclass(frozen=True, slots=True)
class Uses(Question):
    """How often each right was used since a time, and the active findings of each entry."""

    since: float


@dataclasses.dataclass(frozen=True, slots=True)
class RightsOf(Question):
    """The rights of a service, with their uses since a time."""

    service: str
    since: float


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet(Question):
    """What the keyfences with the same findings store run, and what differs between them."""


@dataclasses.dataclass(frozen=True, slots=True)
class News(Question):
    """What has happened since a time (Unix seconds), and what is about to; `owner` "" is everyone's."""

    since: float
    owner: str


@dataclasses.dataclass(frozen=True, slots=True)
class Owners(Question):
    """Everyone who owns a finding."""


@dataclasses.dataclass(frozen=True, slots=True)
class WhatIf(Question):
    """What modes would refuse of what was seen since a time (Unix seconds)."""

    modes: Sequence[ModeRule]
    service: str
    since: float
