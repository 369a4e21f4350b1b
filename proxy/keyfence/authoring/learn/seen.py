"""Evidence: what services were seen to do, from command logs, decision logs and findings, and which keys are
there.

Rule: evidence is only what a source says. A masked or cut name is counted and not used, and a shape counts
as a shape, never as a key.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from keyfence.authoring.replay import row_named
from keyfence.authoring.seen_scripts import declared_keys
from keyfence.commands.effects import constant_ttl, effect_of
from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Access, Ttl
from keyfence.policy.services import UNKNOWN
from keyfence.policy.wording.command_log import MAX_NAME, Recorded, feed_lines, from_line
from keyfence.shapes.shapes import Placeholder, is_older, parsed

MAX_KEYS = 200_000  # different keys that are kept
MAX_LINES = 50_000  # commands that are kept, to try the draft on them
MAX_CALLS = 500  # different calls of a script that are kept
MAX_FIELDS = 2_000  # different field names of a key that are kept
# A placeholder of a shape, within the text of a key. No real key that is used holds this character.
MARK = "\x00"
HIDDEN_FIELD = "<masked>"  # in place of a field's name that a source hides

_FEW_TYPES = 0.05  # the share below which a type is a mistake …
_FEW_READS = 0.25  # … and the same if commands only read it
WRITES, CONSUMES, READS, ASKS = 8, 4, 2, 1  # what a service does to keys of a kind
_MASKED = re.compile(rb"<masked>|^sha256:|\xe2\x80\xa6$")
_FIELDED = frozenset(("hash", "stream"))
_INTEGERS = ("INCR", "DECR", "INCRBY", "DECRBY")
_FORMS_OF = {"HINCRBY": "integer", "HINCRBYFLOAT": "number"}


@dataclasses.dataclass(slots=True)
class Lifetimes:
    """What commands did to the time to live of keys, and what it is of keys that are there."""

    given: Counter[int] = dataclasses.field(default_factory=Counter)  # milliseconds, with the write itself
    expires: Counter[int] = dataclasses.field(default_factory=Counter)  # milliseconds, by a later command
    unreadable: int = 0  # times to live whose length is not known
    without: int = 0  # writes that leave a key without one although they could set one (SET)
    silent: int = 0  # writes that may create a key and cannot set one (HSET, INCR)
    carried: int = 0  # a time to live that came from another key or a dump
    expiring: int = 0  # keys that are there and expire …
    longest: int = 0  # … the last one after so many milliseconds
    staying: int = 0  # keys that are there and do not expire

    def add(self, ttl: Ttl | None, times: int, now: float) -> None:
        if ttl is None:
            return
        if ttl.kind in ("sets", "expires"):
            left = ttl.milliseconds
            if left is not None and ttl.absolute:
                left = left - round(now * 1000) if now else None
            if left is None:
                self.unreadable += times
            elif left > 0:
                (self.given if ttl.kind == "sets" else self.expires)[left] += times
        elif ttl.kind == "drops" and not ttl.follows:
            self.without += times
        elif ttl.kind in ("keeps", "drops"):
            self.silent += times if ttl.creates else 0
        elif ttl.kind == "carries":
            self.carried += times

    def take(self, other: Lifetimes) -> None:
        self.given.update(other.given)
        self.expires.update(other.expires)
        self.unreadable += other.unreadable
        self.without += other.without
        self.silent += other.silent
        self.carried += other.carried
        self.expiring += other.expiring
        self.longest = max(self.longest, other.longest)
        self.staying += other.staying


@dataclasses.dataclass(slots=True)
class Types:
    """Which types keys have: what Redis holds, or else what the commands on a key admit.

    A source does not show which commands Redis answered with WRONGTYPE. But who writes keys knows their
    type, and a key that several commands of different types write has that of most of them."""

    there: Counter[tuple[str, ...]] = dataclasses.field(default_factory=Counter)
    written: Counter[tuple[str, ...]] = dataclasses.field(default_factory=Counter)
    read: dict[str, Counter[tuple[str, ...]]] = dataclasses.field(default_factory=dict)  # by service
    writers: set[str] = dataclasses.field(default_factory=set)
    # What each service's commands admit; the empty one is that of commands on any type.
    by_service: dict[str, set[tuple[str, ...]]] = dataclasses.field(default_factory=dict)

    def see(self, service: str, admitted: tuple[str, ...], *, writes: bool, times: int) -> None:
        self.by_service.setdefault(service, set()).add(admitted)
        if writes and admitted:
            self.written[admitted] += times
            self.writers.add(service)
        elif admitted:
            self.read.setdefault(service, Counter())[admitted] += times

    def take(self, key: Types) -> None:
        """Adds one key, with the types that it probably has."""
        for admitted, times in key.there.items():
            self.there[admitted] += times
        if key.written:
            most = max(_sure(key.written).values(), default=0)
            for admitted, times in key.written.items():
                if len(admitted) > 1 or times == most:
                    self.written[admitted] += times
            self.writers |= key.writers
        for service, seen in key.read.items():
            read = self.read.setdefault(service, Counter())
            for admitted, times in seen.items():
                read[admitted] += times
        for service, types in key.by_service.items():
            self.by_service.setdefault(service, set()).update(types)

    def strangers(self) -> set[str]:
        """Returns the services whose every command is for another type than the keys have."""
        types = self.found()
        return {
            service
            for service, seen in self.by_service.items()
            if types and all(admitted and not set(admitted) & set(types) for admitted in seen)
        }

    def found(self) -> list[str]:
        """Returns the types of the keys."""
        known = _sure(self.there) or _sure(self.written)
        readers = self.writers if known else self.read.keys()
        read = Counter[tuple[str, ...]]()
        for service in () if self.there else readers & self.read.keys():
            read.update(self.read[service])
        least = max(sum(known.values()), sum(_sure(read).values()) / 2) * _FEW_READS
        types = {one for one, times in known.items() if times >= _FEW_TYPES * sum(known.values())}
        types |= {one for one, times in _sure(read).items() if times >= least}
        several = [set(admitted) for admitted in (*self.written, *itertools.chain(*self.read.values()))]
        if not types and several:
            types = set.intersection(*several)
        return sorted(types) if len(types) < 4 else []


def _sure(seen: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    """Returns the types that commands of one type admit."""
    return {admitted[0]: times for admitted, times in seen.items() if len(admitted) == 1}


@dataclasses.dataclass(slots=True)
class Facts:
    """Everything that was seen of one key, or of all keys of a kind."""

    times: int = 0
    there: int = 0  # keys that Redis holds
    uses: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # service: WRITES | CONSUMES | READS | ASKS
    commands: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)  # service: command: times
    types: Types = dataclasses.field(default_factory=Types)
    lifetimes: Lifetimes = dataclasses.field(default_factory=Lifetimes)
    fields: Counter[str] = dataclasses.field(default_factory=Counter)
    field_forms: dict[str, Counter[str]] = dataclasses.field(default_factory=dict)
    forms: Counter[str] = dataclasses.field(
        default_factory=Counter
    )  # of values or members; "": no known form
    written: int = 0  # commands that wrote fields
    holders: int = 0  # hashes whose fields were read
    adds: int = 0  # XADD
    lengths: Counter[tuple[int | None, bool]] = dataclasses.field(default_factory=Counter)  # of their MAXLEN
    first: str = ""  # times as RFC 3339
    last: str = ""
    by_script: int = 0  # accesses of scripts
    changed: int = 0  # writes other than removing the whole key
    deleters: set[str] = dataclasses.field(default_factory=set)  # services that removed whole keys
    targets: Counter[bytes] = dataclasses.field(default_factory=Counter)  # keys that took its whole value

    def see(self, service: str, command: str, needs: int, times: int, when: str) -> None:
        use = WRITES if needs & WRITE and not needs & GROUP else CONSUMES if needs & GROUP else 0
        use |= (READS if needs & READ else 0) or (0 if use else ASKS)
        self.uses[service] = self.uses.get(service, 0) | use
        self.commands.setdefault(service, Counter())[command] += times
        self.times += times
        if needs & DELETE:
            self.deleters.add(service)
        elif needs & WRITE:
            self.changed += times
        _widen(self, when, when)

    def take(self, other: Facts) -> None:
        """Adds what was seen of other keys of the same kind."""
        self.times += other.times
        self.there += other.there
        for service, use in other.uses.items():
            self.uses[service] = self.uses.get(service, 0) | use
        for service, commands in other.commands.items():
            self.commands.setdefault(service, Counter()).update(commands)
        self.types.take(other.types)
        self.lifetimes.take(other.lifetimes)
        self.fields.update(other.fields)
        for name, forms in other.field_forms.items():
            self.field_forms.setdefault(name, Counter()).update(forms)
        self.forms.update(other.forms)
        self.written += other.written
        self.holders += other.holders
        self.adds += other.adds
        self.lengths.update(other.lengths)
        self.by_script += other.by_script
        self.changed += other.changed
        self.deleters |= other.deleters
        self.targets.update(other.targets)
        _widen(self, other.first, other.last)

    def services(self, *uses: int) -> list[str]:
        """Returns the services with one of these uses and no stronger one."""
        return sorted(name for name, use in self.uses.items() if strongest(use) in uses)


def _widen(seen: Facts | Evidence, first: str, last: str) -> None:
    """Adds a window of time to that of what was seen; "" is none."""
    if first:
        seen.first = min(seen.first or first, first)
        seen.last = max(seen.last, last)


def strongest(use: int) -> int:
    return next(one for one in (WRITES, CONSUMES, READS, ASKS) if use & one)


@dataclasses.dataclass(slots=True)
class ScriptSeen:
    """A script or function that was run."""

    is_function: bool
    times: int = 0
    keys: Counter[int] = dataclasses.field(default_factory=Counter)  # how many keys calls declared
    commands: set[str] = dataclasses.field(default_factory=set)
    services: set[str] = dataclasses.field(default_factory=set)
    example: bytes = b""
    calls: set[tuple[str, ...]] = dataclasses.field(default_factory=set)  # the declared keys of some calls
    line: str = ""  # the first line of its text, if a report shows it
    loaded: bool = False


class Evidence:
    """What one or more sources say."""

    def __init__(self) -> None:
        self.keys: dict[str, Facts] = {}  # the key as text; placeholders of shapes as MARK and their kind
        self.channels: dict[str, dict[str, int]] = {}  # channel: service: WRITES | READS
        self.channel_times: Counter[str] = Counter()
        self.patterns: Counter[tuple[str, str, str, bool]] = Counter()  # service, command, glob, of channels
        self.scripts: dict[str, ScriptSeen] = {}
        self.databases: set[int] = set()
        self.commands: Counter[tuple[str, str]] = Counter()  # service, command
        self.clients: dict[str, set[str]] = {}  # service: its clients as people read them
        self.lines: list[Recorded] = []
        self.several: list[tuple[str, ...]] = []  # the keys of commands with more than one
        self.times = 0
        self.there = 0  # keys that Redis holds
        self.masked = 0  # uses of keys and channels that cannot be used
        self.cut = 0  # commands of which a source has only a part
        self.masked_scripts = 0  # calls of scripts whose SHA-1 or name a source hides
        self.lost = 0  # accesses beyond MAX_KEYS
        self.first = ""
        self.last = ""
        self.sources: list[str] = []

    @property
    def services(self) -> list[str]:
        found = {service for service, _ in self.commands} | {
            one for facts in self.keys.values() for one in facts.uses
        }
        return sorted(found)

    @property
    def seconds(self) -> float | None:
        """Returns the length of the window; None if the sources have no times."""
        if not self.first:
            return None
        return (_instant(self.last) - _instant(self.first)).total_seconds()

    def feed(self, lines: Iterable[bytes], complain: Callable[[str], None]) -> list[dict[str, Any]]:
        """Reads a command log. Returns the lines that belong to a decision log instead."""
        others: list[dict[str, Any]] = []

        def take(line: dict[str, Any]) -> None:
            if "rule" in line:
                others.append(line)
            else:
                self.add_command(line)

        feed_lines(lines, take, lambda number, fault: complain(f"line {number} is skipped: {fault}"))
        return others

    # -- a command, as a line of a command log or the example of a finding

    def add_command(self, line: Mapping[str, Any]) -> None:
        """Adds a line of a command log. Raises ValueError if it is none."""
        one = from_line(line)
        when = str(line.get("time", ""))
        now = _instant(when).timestamp() if when else 0.0
        self._window(when)
        self.times += one.times
        self.commands[one.service, one.command] += one.times
        if len(self.lines) < MAX_LINES and not one.is_cut:
            self.lines.append(one)
        texts = []
        for access, raw in zip(one.touches.accesses, line.get("accesses", []), strict=True):
            text = self._usable(access.key, one.times)
            if text:
                self._add_access(one, text, access, raw.get("content") or {}, when, now)
                texts.append(text)
        if one.is_cut:
            self.cut += one.times
            return  # the other keys and channels are not known
        if len(texts) > 1:
            self.several.append(tuple(texts))
        self._add_rest(one)

    def _add_access(
        self, one: Recorded, text: str, access: Access, content: Mapping[str, Any], when: str, now: float
    ) -> None:
        facts = self._facts(text, one.times)
        if facts is None:
            return
        facts.see(one.service, one.command, access.needs, one.times, when)
        if one.touches.script is not None:
            facts.by_script += one.times
        facts.types.see(one.service, access.types, writes=bool(access.needs & WRITE), times=one.times)
        facts.lifetimes.add(access.ttl, one.times, now)
        if one.command in _INTEGERS:
            facts.forms["integer"] += one.times
        if access.content is None:
            return
        if "form" in content or not (
            content.get("fields") or content.get("stream") or content.get("carried")
        ):
            facts.forms[str(content.get("form") or "")] += one.times
        if access.content.carried is not None and access.content.carried.kind == "value":
            for source in access.content.carried.keys:
                held = self._facts(self._usable(source, 0) or text, 0)
                if held is not None and source != access.key:
                    held.targets[access.key] += one.times
        if access.content.stream_add:
            facts.adds += one.times
            facts.lengths[access.content.maxlen, access.content.maxlen_approximate] += one.times
        if one.is_cut and _FIELDED & set(access.types):
            facts.fields[HIDDEN_FIELD] += one.times  # the line may lack fields
        elif access.content.fields:
            self._add_fields(facts, one, [_text(field.name) for field in access.content.fields], content)

    def _add_fields(self, facts: Facts, one: Recorded, names: list[str], content: Mapping[str, Any]) -> None:
        facts.written += one.times
        forms = content.get("forms") or [None] * len(names)
        for name, form in zip(names, forms, strict=False):
            if len(facts.fields) < MAX_FIELDS or name in facts.fields:
                facts.fields[name] += one.times
                known = form if form is not None else _FORMS_OF.get(one.command)
                facts.field_forms.setdefault(name, Counter())[str(known or "")] += one.times

    def _add_rest(self, one: Recorded) -> None:
        touches = one.touches
        for channel in touches.channels:
            name = _text(channel.name)
            if channel.is_pattern:
                self.patterns[one.service, one.command, name, True] += one.times
            elif not name.startswith("__key") and self._usable(channel.name, one.times):
                uses = self.channels.setdefault(name, {})
                uses[one.service] = uses.get(one.service, 0) | (WRITES if channel.publish else READS)
                self.channel_times[name] += one.times
        if touches.pattern is not None:
            self.patterns[one.service, one.command, _text(touches.pattern.glob), False] += one.times
        self.databases.update(number for _, number in touches.databases)
        script = touches.script
        if script is not None:
            name = _text(script.name)
            if _MASKED.search(script.name):
                self.masked_scripts += one.times
                return
            seen = self.scripts.setdefault(
                name.lower() if script.kind != "function" else name, ScriptSeen(script.kind == "function")
            )
            seen.times += one.times
            seen.commands.add(one.command)
            seen.services.add(one.service)
            if one.command == "SCRIPT LOAD":
                seen.loaded = True
            else:
                seen.keys[len(script.keys)] += one.times
                seen.example = seen.example or next(iter(script.keys), b"")
                if len(seen.calls) < MAX_CALLS:
                    seen.calls.add(tuple(map(_text, script.keys)))

    # -- a key that is there

    def add_key(self, key: bytes, database: int, kind: str, ttl: int, fields: Iterable[bytes]) -> None:
        """Adds a key that Redis holds. `ttl` is in milliseconds; below 0: it does not expire. Who uses it is
        not known."""
        self.databases.add(database)
        text = self._usable(key, 1)
        facts = self._facts(text, 1) if text else None
        if facts is None:
            return
        self.there += 1
        facts.there = 1
        facts.types.there[(kind,)] += 1
        lifetimes = facts.lifetimes
        lifetimes.expiring, lifetimes.staying = (1, 0) if ttl >= 0 else (0, 1)
        lifetimes.longest = max(ttl, 0)
        names = [_text(name) for name in fields]
        facts.holders += bool(names)
        for name in names:
            if len(facts.fields) < MAX_FIELDS or name in facts.fields:
                facts.fields[name] += 1
                facts.field_forms.setdefault(name, Counter())[""] += 1

    # -- a row of a report, a decision log or a findings store

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Adds a row of `GET /report`, or a finding."""
        service, command = str(row["service"]), str(row["command"])
        times = int(row.get("count") or row.get("total") or 1)
        for client in row.get("clients", []):
            self.clients.setdefault(service, set()).add(_client_text(client))
        lines = [line for one in row.get("examples", []) if (line := one.get("command"))]
        for line in lines:
            self.add_command(line | {"count": 1})
        self._window(_rfc3339(row.get("first")), _rfc3339(row.get("last")))
        if "other" in (service, command):
            return
        if row["rule"] == "script.unregistered":
            self._add_script_row(row, service, command, times)
            return
        times -= len(lines)
        if times <= 0:
            return
        self.times += times
        self.commands[service, command] += times
        place = str(row.get("shape") or "")
        key = str(row.get("example") or "")
        parts = parsed(place)
        if is_older(place, [key]) or not any(isinstance(part, Placeholder) for part in parts):
            text = key
        else:
            text = "".join(part if isinstance(part, str) else MARK + part.kind + MARK for part in parts)
        if not text or not row["rule"].startswith(("key.", "scope.")) or "…" in text or "<more>" in place:
            return
        if _MASKED.search(text.encode("utf-8", "surrogateescape")):
            self.masked += times
            return
        self._add_named(text, service, command, times, _rfc3339(row.get("last")))

    def _add_named(self, text: str, service: str, command: str, times: int, when: str) -> None:
        """Adds a command of which only the name and a key or shape are known."""
        found = row_named(command)
        facts = self._facts(text, times)
        if facts is None or found is None or not found.specs:
            return
        effect = effect_of(found, 0)
        facts.see(service, command, effect.needs, times, when)
        facts.types.see(service, effect.types, writes=bool(effect.needs & WRITE), times=times)
        facts.lifetimes.add(constant_ttl(found, 0), times, 0.0)

    def _add_script_row(self, row: Mapping[str, Any], service: str, command: str, times: int) -> None:
        name = str(row.get("shape") or "")
        if not name or name == "other":
            return
        if _MASKED.search(name.encode("utf-8", "surrogateescape")):
            self.masked_scripts += times
            return
        seen = self.scripts.setdefault(name, ScriptSeen(re.fullmatch("[0-9a-f]{40}", name) is None))
        seen.times += times
        seen.commands.add(command)
        seen.services.add(service)
        seen.line = seen.line or str(row.get("example") or "")
        declared = declared_keys(row)
        if declared is not None:
            seen.keys[declared] += times

    # -- common

    def _usable(self, key: bytes, times: int) -> str:
        """Returns a key or channel as text; "" if it is masked, cut or empty, or so long that a record would
        cut it."""
        if not 0 < len(key) <= MAX_NAME or _MASKED.search(key) or MARK.encode() in key:
            self.masked += times
            return ""
        return _text(key)

    def _facts(self, text: str, times: int) -> Facts | None:
        found = self.keys.get(text)
        if found is None:
            if len(self.keys) >= MAX_KEYS:
                self.lost += times
                return None
            found = self.keys[text] = Facts()
        return found

    def _window(self, *times: str) -> None:
        for when in times:
            _widen(self, when, when)

    def without(self, names: Collection[str], scripts: Collection[str] = ()) -> Evidence:
        """Returns this evidence without some keys, channels and scripts, and the commands that name only
        these."""
        rest = copy.copy(self)
        rest.keys = {key: facts for key, facts in self.keys.items() if key not in names}
        rest.channels = {name: uses for name, uses in self.channels.items() if name not in names}
        rest.scripts = {name: seen for name, seen in self.scripts.items() if name not in scripts}
        rest.several = [keys for keys in self.several if not all(key in names for key in keys)]
        rest.lines = [
            one
            for one in self.lines
            if not (touched := names_in(one)) or not all(name in names for name in touched)
        ]
        return rest

    def rename_unknown(self) -> str:
        """Gives clients that nothing identified a name of their own. Returns the name, "" if there are none.

        A policy cannot give rights to `unknown`.
        """
        if UNKNOWN not in self.services:
            return ""
        name = "app" if len(self.services) == 1 else "unidentified"
        for facts in self.keys.values():
            _rename(facts.uses, name)
            _rename(facts.commands, name)
            _rename(facts.types.read, name)
            _rename(facts.types.by_service, name)
            facts.types.writers = {name if one == UNKNOWN else one for one in facts.types.writers}
            facts.deleters = {name if one == UNKNOWN else one for one in facts.deleters}
        for uses in self.channels.values():
            _rename(uses, name)
        for script in self.scripts.values():
            script.services = {name if one == UNKNOWN else one for one in script.services}
        self.commands = Counter(
            {(name if one == UNKNOWN else one, word): times for (one, word), times in self.commands.items()}
        )
        self.patterns = Counter(
            {(name if one == UNKNOWN else one, *rest): times for (one, *rest), times in self.patterns.items()}  # type: ignore[misc]
        )
        self.lines = [one._replace(service=name) if one.service == UNKNOWN else one for one in self.lines]
        _rename(self.clients, name)
        return name


def names_in(one: Recorded) -> list[str]:
    """Returns the keys and channels that a command names."""
    touches = one.touches
    return [_text(access.key) for access in touches.accesses] + [
        _text(channel.name) for channel in touches.channels
    ]


def _rename(where: dict[str, Any], name: str) -> None:
    if UNKNOWN in where:
        where[name] = where.pop(UNKNOWN)


def _client_text(client: Mapping[str, str]) -> str:
    library = " ".join(filter(None, (client.get("library"), client.get("version"))))
    parts = (client.get("name"), library and f"({library})", client.get("user") and f"as {client['user']}")
    return " ".join(filter(None, (client.get("address"), *parts)))


def _rfc3339(at: Any) -> str:
    if not at:
        return ""
    return (
        datetime.datetime.fromtimestamp(float(at), datetime.UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    )


def _instant(when: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(when)
    except ValueError:
        raise ValueError(f"{when!r} is not a time") from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
