"""A finding: violations of one rule by one service, on one kind of key, by one command.

Rule: the id depends only on service, rule, command, entry and shape, so it is the same after a restart and in
every instance. The states and what changes them are in this file only.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from keyfence.policy.units import clock_text
from keyfence.policy.verdict import Severity
from keyfence.telemetry.tally import Example, Key, Row, key_of

HOUR = 3600
DAY = 24 * HOUR
ACTIONS = ("observed", "refused", "waived", "late")
# The service of what an audit finds in keys that nobody touches now. No service can have this name.
AT_REST = "at rest"
NEW_SECONDS = DAY  # a finding is new for this long, and reopened for this long
QUIET_SECONDS = 7 * DAY  # without a violation while keyfence was looking: then a finding is quiet
# Violations that were counted just before a policy was put in force may arrive after it.
SETTLE_SECONDS = 5.0
EVERY_COMMAND = "internal.error"  # the rule that every command is asked about


class State(enum.StrEnum):
    """What has become of a finding."""

    NEW = "new"  # first seen within the last day
    OPEN = "open"
    WAIVED = "waived"  # the last violations were waived
    QUIET = "quiet"  # none for seven days in which keyfence was looking
    REOPENED = "reopened"  # seen again after it was quiet, resolved or waived, within the last day
    RESOLVED = "resolved"  # the policy in force allows all of it


# The states in which somebody must do something.
ACTIVE = frozenset({State.NEW, State.OPEN, State.REOPENED})
CLOSED = frozenset({State.QUIET, State.RESOLVED})


def finding_id(key: Key) -> str:
    """The id of a finding (service, rule, command, entry, shape), for people and URLs."""
    digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=6)
    return f"f-{digest.hexdigest()}"


def after_violations(before: State | None, counts: Mapping[str, int]) -> tuple[State, str]:
    """The state after new violations, by action, and why. `before` None: the finding is a new one."""
    only_waived = counts.get("waived", 0) > 0 and not any(
        counts.get(action, 0) for action in ACTIONS if action != "waived"
    )
    if only_waived:
        return State.WAIVED, "a waiver covers it"
    if before is None:
        return State.NEW, "first seen"
    if before in CLOSED:
        return State.REOPENED, f"seen again after it was {before}"
    if before is State.WAIVED:
        return State.REOPENED, "no waiver covers it any more"
    return before, ""


def after_time(state: State, since: float, unseen: float, now: float) -> tuple[State, str]:
    """The state after time has passed, and why. `since` is when the state began and `now` the time, both in
    Unix seconds; `unseen` is for how many seconds keyfence has looked since the last violation."""
    if state is not State.RESOLVED and state is not State.QUIET and unseen >= QUIET_SECONDS:
        return State.QUIET, "not seen for 7 days"
    if state in (State.NEW, State.REOPENED) and now - since >= NEW_SECONDS:
        return State.OPEN, "still open a day later"
    return state, ""


@dataclasses.dataclass(slots=True)
class Finding:
    """A finding as the store has it. Times are Unix seconds."""

    id: str
    service: str
    rule: str
    command: str
    entry: str  # a name of the policy; "" for none
    shape: str  # of keys that no entry covers, or an unregistered script; else ""
    severity: Severity
    state: State
    since: float  # when the state began
    first: float
    last: float
    counts: dict[str, int]  # by action, over all time; of keys at rest, how many there are now
    owner: str  # whom the policy names for the key: a contact or a team; "" for nobody
    hint: str
    revision: str  # of the policy that it was last seen under
    clients: list[dict[str, str]]
    examples: list[Example]
    resolved_by: str = ""  # the revision of the policy that resolved it

    @property
    def key(self) -> Key:
        return self.service, self.rule, self.command, self.entry, self.shape

    @property
    def place(self) -> str:
        """The entry or the shape of the keys, for people."""
        return self.shape or self.entry or "–"

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def blocks(self) -> bool:
        """Whether it stands in the way of enforcing its rule: a command would be refused."""
        return self.state in ACTIVE and self.severity == "must" and self.service != AT_REST

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON. Lists are the finding's own."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**values, "state": str(self.state), "total": self.total}


def of_row(row: Row, state: State) -> Finding:
    """The finding that a row of a report shows."""
    key = key_of(row)
    return Finding(
        finding_id(key),
        *key,
        severity="should" if row["severity"] == "should" else "must",
        state=state,
        since=row["first"],
        first=row["first"],
        last=row["last"],
        counts=dict(row["actions"]),
        owner=row.get("contact", ""),
        hint=row["hint"],
        revision=row.get("revision", ""),
        clients=list(row.get("clients", ())),
        examples=list(row.get("examples", ())),
    )


class Unjudged(NamedTuple):
    """A service sent commands about which an older policy decided: it is not known whether enforcing the rule
    refuses such commands now."""

    service: str
    rule: str
    last: float  # when such a command was seen last, in Unix seconds
    why: str  # what has changed since

    @property
    def sentence(self) -> str:
        """For people, in one line."""
        return (
            f"not known for {self.service} and {self.rule}: commands were seen until "
            f"{clock_text(self.last)}, and {self.why}"
        )


class Event(NamedTuple):
    """A change of a finding's state."""

    finding: str  # its id
    at: float  # Unix seconds
    state: State
    why: str

    def as_object(self) -> dict[str, Any]:
        """Plain values for JSON, and for the store."""
        return {**self._asdict(), "state": str(self.state)}
