"""Waivers files: known violations that pass for a while, each with its owner, reason and last day.

Rule: a waiver is narrow enough that new violations do not pass with it. After its last day it still works:
keyfence reports it as lapsed until a person fixes the cause or changes the date.
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
from keyfence.policy.verdict import NAMELESS

from .modes import Waiver, as_waiver, best_waiver
from .waiver_keys import KINDS, keys_of_shape, unknown_placeholders

NOTICE = datetime.timedelta(days=14)  # a waiver whose last day is this near is `ending`
# A waiver without uses for this long is `unused`. A weekly job may need it before.
ENOUGH = datetime.timedelta(days=7)
State = Literal["lapsed", "unused", "too early", "ending", "in use", ""]
SHA1 = re.compile("[0-9a-f]{40}")
_KINDS = ", ".join(f"<{name}>" for name in KINDS)


class WaiverModel(BaseModel):
    """A known violation that passes until its cause is fixed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    service: str
    rule: RuleName
    entry: str = ""  # an entry or a channel; "" is any, and none
    scope: str = ""  # only keys of this scope that no entry covers; "" is any, and none
    command: str = ""  # "" is any
    keys: str = ""  # a glob with placeholders, for keys that no entry covers; "" is any
    script: str = ""  # the SHA-1 of an unregistered script, or a function's name; "" is any
    owner: str
    reason: str
    until: Date  # the last day

    @property
    def waiver(self) -> Waiver:
        """The waiver as `Modes` uses it."""
        command, script = command_as_waived(self.command), self.script
        script = script.lower() if SHA1.fullmatch(script.lower()) else script
        return Waiver(self.service, self.rule, self.entry, command, self.keys, script, self.scope)


@file_kind("a waivers file, which --waivers names")
class WaiversModel(BaseModel):
    """A waivers file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    waivers: list[WaiverModel]


def command_as_waived(name: str) -> str:
    """Returns a command's name in the form that waivers compare."""
    return " ".join(name.upper().split())


def read_waivers(path: str | Path) -> tuple[tuple[WaiverModel, ...], Source]:
    """Reads a waivers file. Returns its waivers, and the source with their places. Raises FileError."""
    source = read_source(path)
    waivers = tuple(validate(WaiversModel, source).waivers)
    faults = []
    first: dict[Waiver, int] = {}
    for index, one in enumerate(waivers):
        at = first.setdefault(one.waiver, index)
        if at != index:
            line = source.place(("waivers", at)).line
            faults.append(
                source.error(("waivers", index), f"line {line} has the same waiver already; remove one")
            )
        for field in ("owner", "reason"):
            if not getattr(one, field).strip():
                faults.append(
                    source.error(("waivers", index, field), f"{field!r} is empty; write at least a word")
                )
        if one.entry and one.scope:
            text = "a key is of an entry, or of a scope and no entry; remove one of the two"
            faults.append(source.error(("waivers", index, "scope"), text))
        for name in unknown_placeholders(one.keys):
            text = f"{name} is not a placeholder; write {_KINDS}, or \\{name} for the text itself"
            faults.append(source.error(("waivers", index, "keys"), text))
        if one.script and one.rule != "script.unregistered":
            text = "only waivers of script.unregistered name a script; remove this"
            faults.append(source.error(("waivers", index, "script"), text))
    if faults:
        raise FileError(faults)
    return waivers, source


def waiver_faults(
    waivers: Sequence[WaiverModel], source: Source | None, policy: CompiledPolicy
) -> list[Diagnostic]:
    """Returns a fault for every name that the policy or Redis lacks. Such a waiver would cover nothing."""
    if source is None:
        return []
    scopes = {target.name for target in policy.targets if target.kind == "scope"}
    targets = (*(target for target in policy.targets if target.kind != "scope"), *policy.channels)
    entries = {target.name for target in targets if target.name}
    faults = []
    for index, one in enumerate(waivers):
        path = ("waivers", index)
        if one.service not in policy.services:
            known = did_you_mean(one.service, policy.services)
            message = f"{one.service!r} is not a service of the policy{known}"
            faults.append(source.error((*path, "service"), message))
        if one.entry and one.entry not in entries | NAMELESS:
            known = did_you_mean(one.entry, entries)
            if one.entry in scopes:
                known = f"; for keys of that scope that no entry covers, write scope: {one.entry}"
            message = f"{one.entry!r} is not an entry or channel of the policy{known}"
            faults.append(source.error((*path, "entry"), message))
        if one.scope and one.scope not in scopes:
            known = f"; write entry: {one.scope}" if one.scope in entries else did_you_mean(one.scope, scopes)
            message = f"{one.scope!r} is not a scope of the policy{known}"
            faults.append(source.error((*path, "scope"), message))
        command = command_as_waived(one.command)
        # The table lacks commands of unknown modules, and of course unknown commands.
        unlisted = "." in command or one.rule == "command.unknown"
        if command and not unlisted and command not in KNOWN_COMMANDS:
            known = did_you_mean(command, KNOWN_COMMANDS)
            message = f"{one.command!r} is not a command of Redis or Valkey{known}"
            faults.append(source.error((*path, "command"), message))
    return faults


class Use(NamedTuple):
    """A waiver, its number of uses (None if no source counts them), and its state."""

    waiver: WaiverModel
    times: int | None
    last: float | None  # Unix seconds
    state: State
    since: float | None = None  # uses are counted since then, in Unix seconds; None if unknown

    def as_object(self) -> dict[str, Any]:
        """Returns the object that `keyfence waivers --format json` prints."""
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
    """Returns the uses and the state of each waiver.

    `rows` are those of a report; None if there is no report. `since` is the time from which they count, if
    known.
    """
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


def due(waivers: Iterable[WaiverModel], today: datetime.date) -> dict[str, Any]:
    """How many waivers have lapsed and how many end soon, and the first of them (None if there is none). For
    JSON."""
    near = [one for one in waivers if one.until - today <= NOTICE]
    lapsed = sum(one.until < today for one in near)
    first = min(near, key=lambda one: one.until, default=None)
    shown = {"service", "rule", "until"}
    return {
        "lapsed": lapsed,
        "ending": len(near) - lapsed,
        "first": None if first is None else first.model_dump(mode="json", include=shown),
    }


def _state(waiver: WaiverModel, rows: object, count: int, today: datetime.date, *, is_early: bool) -> State:
    if waiver.until < today:
        return "lapsed"
    if rows is not None and not count:
        return "too early" if is_early else "unused"
    if waiver.until - today <= NOTICE:
        return "ending"
    return "in use" if rows is not None else ""


def _waiver_of(row: Mapping[str, Any], waivers: Sequence[Waiver]) -> Waiver | None:
    """Returns the waiver that covered a row's violations. The row's example represents all of its keys."""
    found = as_waiver(
        row["service"], row["rule"], row["entry"], row["command"], row["shape"], is_covered=not row["shape"]
    )
    shape = "" if found.script else keys_of_shape(row["shape"])
    alike = [one._replace(keys="") if one.keys and one.keys == shape else one for one in waivers]
    key = row["example"].encode("utf-8", "surrogateescape")
    best = best_waiver(alike, found, key)
    return None if best is None else waivers[alike.index(best)]
