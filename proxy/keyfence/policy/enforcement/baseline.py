"""A baseline: a first waivers file, made from the violations of a report.

Rule: each waiver is as narrow as waivers can be. The baseline lists every waiver that admits more than the
report shows, and every row that no waiver covers.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from keyfence.policy.compiled.tenants import OWN
from keyfence.policy.enforcement.modes import Waiver, as_waiver
from keyfence.policy.enforcement.waiver_keys import exactly, is_wide, keys_of_shape, waiver_keys
from keyfence.policy.enforcement.waivers import command_as_waived
from keyfence.policy.units import counted
from keyfence.shapes.shapes import is_older

OTHER = "other"
# What every waiver of these rules admits, because a waiver cannot name it.
_ANY_OF = {
    "database.forbidden": "any database",
    "field.unknown": "any field",
    "script.keys": "any keys of any script",
    "value.invalid": "any value",
}
_CANNOT_TELL = re.compile(r"\\|<masked>|…$|^sha256:")


class Baseline(NamedTuple):
    """A waivers file, and notes that people must read before they use it."""

    text: str
    wide: list[str]  # one sentence for each waiver that admits more than the report shows
    left: list[str]  # one sentence for each row that no waiver covers
    items: list[str]  # the waivers, each on one line


def baseline(rows: Iterable[Mapping[str, Any]], owner: str, reason: str, until: datetime.date) -> Baseline:
    """Returns waivers for all violations of a report that have none yet. A `should` needs no waiver."""
    found: dict[Waiver, int] = {}
    examples: dict[Waiver, str] = {}
    of_others: dict[Waiver, str] = {}  # waivers for other callers' keys → the bound placeholder
    left = []
    for row in rows:
        times = row["count"] - row["actions"].get("waived", 0)
        if row["severity"] == "should" or times <= 0:
            continue
        waiver = _waiver(row)
        if waiver is None:
            left.append(_seen(row))
            continue
        found[waiver] = found.get(waiver, 0) + times
        examples.setdefault(waiver, row["example"])
        if row["hint"].startswith(OWN):
            of_others[waiver] = row["hint"].removeprefix(OWN).partition(":")[0]
    lines = [
        "# Violations that were known when this file was written. Remove a waiver once its cause is fixed.",
        "waivers:",
    ]
    wide, items = [], []
    for waiver in sorted(found):
        more = _more_than_seen(waiver, of_others.get(waiver, ""))
        text = yaml_item({**waiver._asdict(), "owner": owner, "reason": reason, "until": str(until)})
        items.append(text)
        note = f"; admits more than the findings: {more}" if more else ""
        lines.append(f"  - {text}  # {found[waiver]} so far{note}")
        if more:
            seen = f"; seen: {examples[waiver]}" if examples[waiver] else ""
            wide.append(
                f"{waiver.service}, {waiver.rule}, {waiver.command or 'any command'}: admits {more}{seen}"
            )
    if not found:
        lines[-1] = "waivers: []"
    return Baseline("\n".join(lines) + "\n", wide, left, items)


def row_of_finding(finding: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a finding as a row of a report."""
    names = ("service", "rule", "severity", "command", "entry", "shape", "hint")
    examples = finding["examples"]
    return {name: finding[name] for name in names} | {
        "count": finding["total"],
        "actions": finding["counts"],
        "example": examples[0]["key"] if examples else "",
    }


def _waiver(row: Mapping[str, Any]) -> Waiver | None:
    """Returns the waiver for a row; None if only a waiver for everything would cover it."""
    if OTHER in (row["service"], row["rule"], row["shape"]):
        return None
    command = "" if row["command"] == OTHER else command_as_waived(row["command"])
    found = as_waiver(
        row["service"], row["rule"], row["entry"], command, row["shape"], is_covered=not row["shape"]
    )
    seen = [row["example"], *(one["key"] for one in row.get("examples", ()))]
    older = is_older(row["shape"], seen)
    keys = "" if found.script or older else keys_of_shape(row["shape"])
    if row["shape"] and not found.script:
        keys = _narrowest(row, keys, only_example=older)
        if not keys:
            return None
    return found._replace(keys=keys)


def _narrowest(row: Mapping[str, Any], keys: str, *, only_example: bool) -> str:
    """Returns the narrowest pattern for the row's keys.

    That is the example itself if nothing else is known of them (`only_example`), if it was seen once and the
    shape is wide, or if the shape does not match it.
    """
    example = row["example"]
    if not example or _CANNOT_TELL.search(example):
        return keys
    exact = exactly(example)
    if only_example or (row["count"] == 1 and (not keys or is_wide(keys))):
        return exact
    return keys if not keys or waiver_keys(keys).matches(example.encode()) else exact


def _more_than_seen(waiver: Waiver, others: str) -> str:
    """Describes what a waiver admits beyond the findings; "" if it admits only keys of the same kind."""
    if is_wide(waiver.keys):
        return f"any key {waiver.keys}"
    if waiver.rule == "script.unregistered" and not waiver.script:
        return "any script"
    if others and not waiver.keys:
        return f"the keys of any {others}"
    if not waiver.command:
        return "any command"
    return _ANY_OF.get(waiver.rule, "")


def _seen(row: Mapping[str, Any]) -> str:
    example = f", for example {row['example']}" if row["example"] else ""
    what = row["shape"] or row["entry"]
    times = counted(row["count"], "time")
    return f"{row['service']}, {row['rule']}, {row['command']} {what}{example}: {times}"


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*|\d{4}-\d\d-\d\d")
_NOT_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}  # to YAML 1.1


def yaml_item(fields: Mapping[str, str]) -> str:
    """Returns a mapping in YAML on one line, without its empty fields."""
    return "{" + ", ".join(f"{name}: {_yaml(value)}" for name, value in fields.items() if value) + "}"


def _yaml(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    return "".join(map(_escaped, json.dumps(text, ensure_ascii=False)))


def _escaped(char: str) -> str:
    """A character of a quoted text. YAML admits no others than printable ones."""
    return char if char.isprintable() else f"\\U{ord(char):08x}"
