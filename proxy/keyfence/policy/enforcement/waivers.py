"""Waivers: the known violations that are tolerated for a while, each with its owner, reason and last day.

Rule: a waiver names what it tolerates narrowly enough that new violations aren't tolerated with it, and its
end refuses nothing: it is told of, until somebody mends the cause or moves the date.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from keyfence.commands.table import KNOWN_COMMANDS
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import Diagnostic, FileError, did_you_mean
from keyfence.policy.source.model import Date, RuleName
from keyfence.policy.source.validate import file_kind, validate
from keyfence.policy.source.yaml import Source, read_source
from keyfence.policy.verdict import script_in

from .modes import Waiver, best_waiver
from .waiver_keys import KINDS, keys_of_shape, unknown_placeholders

NOTICE = datetime.timedelta(days=14)
# What was not needed for so long is unused; before that, a weekly job may still come.
ENOUGH = datetime.timedelta(days=7)
State = Literal["lapsed", "unused", "too early", "ending", "in use", ""]
# What stands as `entry` in a report where a key is in a policy's claims and in no scope of it.
_NAMELESS = {"claim", "keyspace", "keyevent"}
SHA1 = re.compile("[0-9a-f]{40}")
_KINDS = ", ".join(f"<{name}>" for name in KINDS)


class WaiverModel(BaseModel):
    """A known violation that is tolerated until it is mended."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str
    rule: RuleName
    entry: str = ""  # or scope; "" is any, and none
    command: str = ""  # "" is any
    keys: str = ""  # a glob with placeholders that the key must match; "" is any. For what no entry covers
    script: str = ""  # the SHA-1 of an unregistered script, or a function's name; "" is any
    owner: str
    reason: str
    until: Date  # the last day

    @property
    def waiver(self) -> Waiver:
        command, script = command_as_waived(self.command), self.script
        script = script.lower() if SHA1.fullmatch(script.lower()) else script
        return Waiver(self.service, self.rule, self.entry, command, self.keys, script)


@file_kind("a waivers file, which --waivers names")
class WaiversModel(BaseModel):
    """A waivers file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    waivers: list[WaiverModel]


def command_as_waived(name: str) -> str:
    """A command's name as waivers compare it."""
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
        for name in unknown_placeholders(one.keys):
            text = f"{name} stands for no kind of text; write {_KINDS}, or \\{name} for the text itself"
            faults.append(source.error(("waivers", index, "keys"), text))
        if one.script and one.rule != "script.unregistered":
            text = "only script.unregistered is about a script; take this out"
            faults.append(source.error(("waivers", index, "script"), text))
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
        command = command_as_waived(one.command)
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
    state: State
    since: float | None = None  # since when uses are counted, in Unix seconds, where that is known

    def as_object(self) -> dict[str, Any]:
        """As `keyfence waivers --json` prints it."""
        one = self.waiver
        return {**one.model_dump(mode="json"), "uses": self.times, "last": self.last, "state": self.state} | {
            "since": self.since
        }


def uses(
    waivers: Sequence[WaiverModel],
    rows: Iterable[Mapping[str, Any]] | None,
    today: datetime.date,
    since: datetime.datetime | None = None,
) -> list[Use]:
    """What became of each waiver. `rows` are those of a report; None where there is none to ask. They count
    from `since` on, where that is known."""
    midnight = datetime.datetime.combine(today, datetime.time(), datetime.UTC)
    is_early = since is not None and since > midnight - ENOUGH
    start = None if since is None else since.timestamp()
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
        Use(
            one,
            None if rows is None else counts[at],
            last[at],
            _state(one, rows, counts[at], today, is_early=is_early),
            start,
        )
        for at, one in enumerate(waivers)
    ]


def _state(waiver: WaiverModel, rows: object, count: int, today: datetime.date, *, is_early: bool) -> State:
    if waiver.until < today:
        return "lapsed"
    if rows is not None and not count:
        return "too early" if is_early else "unused"
    if waiver.until - today <= NOTICE:
        return "ending"
    return "in use" if rows is not None else ""


def _waiver_of(row: Mapping[str, Any], waivers: Sequence[Waiver]) -> Waiver | None:
    """Which waiver tolerated what a row counts. Its example stands for all of its keys."""
    script = script_in(row["rule"], row["shape"])
    shape = "" if script else keys_of_shape(row["shape"])
    alike = [one._replace(keys="") if one.keys and one.keys == shape else one for one in waivers]
    key = row["example"].encode("utf-8", "surrogateescape")
    best = best_waiver(alike, row["service"], row["rule"], row["entry"], row["command"], key, script)
    return None if best is None else waivers[alike.index(best)]
