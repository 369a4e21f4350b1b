"""Which services use which kinds of keys, from the report of the keyfence that stands before the Redis.

Rule: its policy names no key, so every command on a key is a row of the report under `key.unregistered`. A
command with several keys counts once for each.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence

from keyfence.policy.services import UNKNOWN
from keyfence.policy.verdict import Peer
from keyfence.telemetry.clients import Client
from keyfence.telemetry.tally import Row

from .kinds import Seen
from .naming import OTHERS, known

_KEYS = "key.unregistered"
NO_KEY = "(no key)"  # commands that name none, such as KEYS


@dataclasses.dataclass(slots=True)
class Use:
    """What a service does with one kind of keys, a channel, a script, or with commands that name none."""

    kind: str
    is_of_keys: bool = False
    reads: int = 0
    writes: int = 0
    others: int = 0  # what a script or a command without keys does is not known
    commands: dict[str, int] = dataclasses.field(default_factory=dict)
    shapes: set[str] = dataclasses.field(default_factory=set)  # of the kind, that the service uses

    def add(self, row: Row, shape: str, does: str) -> None:
        """Count a row. `does` is `reads`, `writes` or `others`."""
        times, command = row["count"], row["command"]
        self.shapes.add(shape)
        self.commands[command] = self.commands.get(command, 0) + times
        setattr(self, does, getattr(self, does) + times)

    @property
    def times(self) -> int:
        return self.reads + self.writes + self.others

    @property
    def names(self) -> list[str]:
        """The commands, the most frequent first."""
        return sorted(self.commands, key=lambda name: (-self.commands[name], name))


@dataclasses.dataclass(slots=True)
class Service:
    """A service, how it is told from others, and what it uses."""

    name: str
    by: str = ""
    libraries: dict[str, None] = dataclasses.field(default_factory=dict)
    uses: dict[str, Use] = dataclasses.field(default_factory=dict)

    @property
    def times(self) -> int:
        return sum(one.times for one in self.uses.values())

    @property
    def ordered(self) -> list[Use]:
        """The uses, the most frequent first."""
        return sorted(self.uses.values(), key=lambda one: (-one.times, one.kind))

    def meet(self, client: Client) -> None:
        peer = Peer(*(client.get(name, "") for name in Peer._fields))
        other = known(peer)
        is_verified = other.service != self.name and self.name not in (UNKNOWN, OTHERS)
        self.by = self.by or ("certificate" if is_verified else other.by)
        if library := " ".join(filter(None, (peer.library, peer.version))):
            self.libraries[library] = None


def services_of(rows: Sequence[Row], there: Seen) -> list[Service]:
    """The services in a report, by name. `there`: the keys that are there."""
    seen = Seen(copy.deepcopy(there.facts))
    uses = [(row, _place_of(row), _does(row, seen)) for row in _each_once(rows)]
    kinds = seen.kinds()
    found: dict[str, Service] = {}
    for row, place, does in uses:
        service = found.setdefault(row["service"], Service(row["service"]))
        for client in row.get("clients", ()):
            service.meet(client)
        is_of_keys = row["rule"] == _KEYS
        kind = kinds.get(place, place) if is_of_keys else place
        service.uses.setdefault(kind, Use(kind, is_of_keys)).add(row, place, does)
    return [found[name] for name in sorted(found)]


def _each_once(rows: Iterable[Row]) -> list[Row]:
    """The rows without those that have the same commands as another one: KEYS breaks two rules."""
    by_place: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by_place.setdefault((row["service"], row["command"]), []).append(row)
    found: list[Row] = []
    for same in by_place.values():
        named = [row for row in same if _place_of(row) != NO_KEY]
        found += named or [max(same, key=lambda row: row["count"])]
    return found


def _does(row: Row, seen: Seen) -> str:
    """What the command of a row does: `reads`, `writes` or `others`. `seen` gets what it does to keys."""
    rule = row["rule"]
    if rule == _KEYS:
        writes = seen.add_command(row["shape"], row["service"], row["command"], row["count"])
        return "writes" if writes else "reads"
    return {"channel.write": "writes", "channel.read": "reads"}.get(rule, "others")


def _place_of(row: Row) -> str:
    """What a row is about: the shape of keys, a channel, a script, or no key."""
    if row["rule"].startswith("channel."):
        return f"channel {row['shape'] or row['example']}"
    if row["rule"] == "script.unregistered":
        return f"script {row['shape'][:12]}"
    return row["shape"] if row["rule"] == _KEYS else NO_KEY
