"""The unregistered scripts and functions of a report, and a draft of the section that registers them.

Rule: the drafted section is valid in a policy as it is. It states that a script reads and writes its declared
keys and touches nothing else; a person must verify that.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keyfence.policy.compiled.scripts import is_sha1
from keyfence.policy.show import one_line
from keyfence.policy.units import counted

_KEYS = re.compile(r"keys: (\d+)\}")
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LOADS = "SCRIPT LOAD"


@dataclasses.dataclass
class Seen:
    """One script or function."""

    script: str  # the SHA-1, or the function's name
    keys: int | str | None = None  # declared keys; "any" if calls differ; None if it was only loaded
    line: str = ""  # the first line of its text, if it was seen
    count: int = 0
    refused: int = 0
    last: float = 0.0
    services: list[str] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_function(self) -> bool:
        return not is_sha1(self.script)

    def as_object(self) -> dict[str, Any]:
        """Returns the object that `keyfence scripts --format json` prints."""
        return {"kind": "function" if self.is_function else "script", **dataclasses.asdict(self)}


class SeenScripts(NamedTuple):
    """The scripts of a report."""

    unregistered: list[Seen]  # the most frequent first
    registered: list[str]  # those that the policy has registered since
    unknown: int  # calls of scripts that are not known


def seen_scripts(rows: Iterable[Mapping[str, Any]]) -> SeenScripts:
    """Returns the scripts of a report."""
    found: dict[str, Seen] = {}
    registered: dict[str, None] = {}
    unknown = 0
    for row in rows:
        if row["rule"] != "script.unregistered":
            continue
        script = row["shape"]
        if script in ("", "other"):
            unknown += row["count"]
            continue
        if row.get("registered"):
            registered[script] = None
        else:
            _add(found.setdefault(script, Seen(script)), row)
    ordered = sorted(found.values(), key=lambda one: (-one.count, one.script))
    return SeenScripts(ordered, sorted(registered), unknown)


def _add(one: Seen, row: Mapping[str, Any]) -> None:
    one.count += row["count"]
    one.refused += row["actions"].get("refused", 0)
    one.last = max(one.last, row["last"])
    one.line = one.line or row["example"]
    one.services = sorted({*one.services, row["service"]})
    one.commands = sorted({*one.commands, row["command"]})
    declared = declared_keys(row)
    if declared is not None:
        one.keys = declared if one.keys in (None, declared) else "any"


def declared_keys(row: Mapping[str, Any]) -> int | None:
    """Returns how many keys a call of an unregistered script declared; None: its row does not say."""
    declared = _KEYS.search(str(row.get("hint") or ""))
    return int(declared[1]) if declared is not None and row["command"] != _LOADS else None


def section(scripts: Iterable[Seen]) -> str:
    """Returns the sections `scripts` and `functions` as YAML."""
    listed = list(scripts)
    lines = ["# For each script, add what else it reads and writes: docs/policy.md, Scripts."]
    for title, of_functions in (("scripts", False), ("functions", True)):
        of_kind = [one for one in listed if one.is_function == of_functions]
        if of_kind:
            lines.append(f"{title}:")
        for one in of_kind:
            lines += _entry(one)
    return "\n".join(lines) + "\n"


def _entry(one: Seen) -> Iterator[str]:
    line = f": {one.line}" if one.line else ""
    comment = f"{', '.join(one.services)}: {', '.join(one.commands)}, {counted(one.count, 'time')}{line}"
    yield f"  # {one_line(comment)}"
    if one.keys is None:
        yield "  # It was only loaded so far; set how many keys it takes."
    name = one.script if one.is_function else f"script_{one.script[:8]}"
    sha1 = "" if one.is_function else f'sha1: "{one.script}", '
    quoted = name if _PLAIN.fullmatch(name) else json.dumps(name)
    yield f"  {quoted}: {{{sha1}keys: {one.keys or 0}, declared: both}}"
