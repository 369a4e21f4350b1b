"""Waivers: the known violations that are tolerated for a while, each with its owner, reason and last day.

Rule: a waiver names what it tolerates narrowly enough that new violations aren't tolerated with it, and its
end refuses nothing: it is told of, until somebody mends the cause or moves the date.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from ..commands.words import glob_escape
from .build_grants import KNOWN_COMMANDS
from .compiled import CompiledPolicy
from .diagnostics import Diagnostic, FileError, did_you_mean
from .model import Date, RuleName
from .modes import Waiver, best_waiver
from .validate import file_kind, validate
from .yaml_source import Source, read_source

NOTICE = datetime.timedelta(days=14)
# What stands as `entry` in a report where a key is in a policy's claims and in no scope of it.
_NAMELESS = {"claim", "keyspace", "keyevent"}


class WaiverModel(BaseModel):
    """A known violation that is tolerated until it is mended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str
    rule: RuleName
    entry: str = ""  # or scope; "" is any, and none
    command: str = ""  # "" is any
    keys: str = ""  # a glob that the key must match; "" is any. For keys that no entry covers
    owner: str
    reason: str
    until: Date  # the last day

    @property
    def waiver(self) -> Waiver:
        return Waiver(self.service, self.rule, self.entry, _command(self.command), self.keys)


@file_kind("a waivers file, which --waivers names")
class WaiversModel(BaseModel):
    """A waivers file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    waivers: list[WaiverModel]


def _command(name: str) -> str:
    return " ".join(name.upper().split())


def read_waivers(path: str | Path) -> tuple[tuple[WaiverModel, ...], Source]:
    """A waivers file, and where in it everything stands. Raises FileError."""
    source = read_source(path)
    waivers = tuple(validate(WaiversModel, source).waivers)
    faults = []
    first: dict[Waiver, int] = {}
    for index, one in enumerate(waivers):
        at = first.setdefault(one.waiver, index)
        if at != index:
            line = source.place(("waivers", at)).line
            faults.append(source.error(("waivers", index), f"the same is tolerated in line {line} already"))
        for field in ("owner", "reason"):
            if not getattr(one, field).strip():
                faults.append(
                    source.error(("waivers", index, field), f"{field!r} is empty; say it in a word")
                )
    if faults:
        raise FileError(faults)
    return waivers, source


def waiver_faults(
    waivers: Sequence[WaiverModel], source: Source | None, policy: CompiledPolicy
) -> list[Diagnostic]:
    """What names something that the policy, or Redis, doesn't have: it would tolerate nothing."""
    if source is None:
        return []
    entries = {target.name for target in (*policy.targets, *policy.channels) if target.name}
    faults = []
    for index, one in enumerate(waivers):
        path = ("waivers", index)
        if one.service not in policy.services:
            known = did_you_mean(one.service, policy.services)
            message = f"{one.service!r} is no service of the policy{known}"
            faults.append(source.error((*path, "service"), message))
        if one.entry and one.entry not in entries | _NAMELESS:
            known = did_you_mean(one.entry, entries)
            message = f"{one.entry!r} is no entry, scope or channel of the policy{known}"
            faults.append(source.error((*path, "entry"), message))
        command = _command(one.command)
        # Modules' commands, and those that are the fault themselves, are in no table.
        unlisted = "." in command or one.rule == "command.unknown"
        if command and not unlisted and command not in KNOWN_COMMANDS:
            known = did_you_mean(command, KNOWN_COMMANDS)
            message = f"{one.command!r} is no command of Redis or Valkey{known}"
            faults.append(source.error((*path, "command"), message))
    return faults


class Use(NamedTuple):
    """A waiver, how often it was needed (None: nobody was asked), and how its date stands."""

    waiver: WaiverModel
    times: int | None
    last: float | None  # Unix seconds
    state: Literal["lapsed", "unused", "ending", "in use", ""]

    def as_object(self) -> dict[str, Any]:
        """As `keyfence waivers --json` prints it."""
        one = self.waiver
        return {**one.model_dump(mode="json"), "uses": self.times, "last": self.last, "state": self.state}


def uses(
    waivers: Sequence[WaiverModel], rows: Iterable[Mapping[str, Any]] | None, today: datetime.date
) -> list[Use]:
    """What became of each waiver. `rows` are those of a report; None where there is none to ask."""
    counts = [0] * len(waivers)
    last: list[float | None] = [None] * len(waivers)
    numbers = {one.waiver: number for number, one in enumerate(waivers)}
    for row in rows or ():
        times = row["actions"].get("waived", 0)
        best = _waiver_of(row, list(numbers)) if times else None
        if best is not None:
            number = numbers[best]
            counts[number] += times
            last[number] = max(last[number] or 0.0, row["last"])
    return [
        Use(one, None if rows is None else counts[at], last[at], _state(one, rows, counts[at], today))
        for at, one in enumerate(waivers)
    ]


def _state(
    waiver: WaiverModel, rows: object, count: int, today: datetime.date
) -> Literal["lapsed", "unused", "ending", "in use", ""]:
    if waiver.until < today:
        return "lapsed"
    if rows is not None and not count:
        return "unused"
    if waiver.until - today <= NOTICE:
        return "ending"
    return "in use" if rows is not None else ""


def _waiver_of(row: Mapping[str, Any], waivers: Sequence[Waiver]) -> Waiver | None:
    """Which waiver tolerated what a row counts. Its example stands for all of its keys."""
    shape = shape_glob(row["shape"]) if row["shape"] else ""
    alike = [one._replace(keys="") if one.keys and one.keys == shape else one for one in waivers]
    key = row["example"].encode("utf-8", "surrogateescape")
    best = best_waiver(alike, row["service"], row["rule"], row["entry"], row["command"], key)
    return None if best is None else waivers[alike.index(best)]


_HOLE = re.compile(r"<[a-z*]+>")


def shape_glob(shape: str) -> str:
    """A glob over the keys of a learnt shape; "" where it would match any key."""
    literals = _HOLE.split(shape)
    if not any(literal.strip(":") for literal in literals) or shape == "other":
        return ""
    return "*".join(glob_escape(literal.encode()).decode() for literal in literals)


def baseline(
    rows: Iterable[Mapping[str, Any]], owner: str, reason: str, until: datetime.date
) -> tuple[str, int]:
    """A waivers file for all violations of a report that aren't tolerated yet, and how many rows it can't
    cover: those of keys that have nothing in common. A `should` needs no waiver."""
    found: dict[Waiver, int] = {}
    left = 0
    for row in rows:
        times = row["count"] - row["actions"].get("waived", 0)
        if row["severity"] == "should" or times <= 0:
            continue
        keys = shape_glob(row["shape"]) if row["shape"] else ""
        if "other" in (row["service"], row["rule"]) or (row["shape"] and not keys):
            left += 1
            continue
        command = "" if row["command"] == "other" else row["command"]
        waiver = Waiver(row["service"], row["rule"], row["entry"], command, keys)
        found[waiver] = found.get(waiver, 0) + times
    lines = [
        "# Violations that were known when this was written. Whoever mends one takes it out.",
        "waivers:",
    ]
    for waiver in sorted(found):
        fields = {name: value for name, value in waiver._asdict().items() if value}
        fields |= {"owner": owner, "reason": reason, "until": str(until)}
        text = ", ".join(f"{name}: {_yaml(value)}" for name, value in fields.items())
        lines.append(f"  - {{{text}}}  # {found[waiver]} so far")
    if not found:
        lines[-1] = "waivers: []"
    return "\n".join(lines) + "\n", left


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*|\d{4}-\d\d-\d\d")


def _yaml(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
