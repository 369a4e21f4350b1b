"""`keyfence ready --for cluster`: which services would break on a cluster, and what to change.

Rule: it changes nothing. Exit code 0 means that every service with traffic would work, 1 that one would not
or that nothing is known, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from keyfence.cli.terminal.asking import ask_admin, checked_answer
from keyfence.cli.terminal.options import print_json
from keyfence.cli.terminal.output import fail, print_table, say, table_of, wrapped
from keyfence.policy.show import one_line
from keyfence.policy.units import clock_text, counted

_NAMES = ("service", "standing", "commands", "breaks", "partial", "unknown", "costs")
_STYLES = {"not ready": "bold red", "ready": "bold green"}
_BEGIN = "No cluster is rehearsed. Begin with: keyfence candidate load --for cluster"


def ready_for_cluster(admin: str, service: str, form: str) -> None:
    """Prints what a rehearsal has shown, and ends with the exit code."""
    answer = ask_admin(admin, "/rehearsal")
    with checked_answer(admin):
        rehearsal = answer["rehearsal"]
        services = [one for one in answer["services"] if service in ("", one["service"])]
        rows = [one for one in answer["rows"] if service in ("", one["service"])]
        table = table_of(_NAMES, (_cells(one, rows) for one in services), right=_NAMES[2:])
        lines = [line for one in services for line in _details(one, rows)]
    if service and rehearsal is not None and not services:
        fail(f"{service!r} is not a service of the policy")
    if form == "json":
        print_json({**answer, "services": services, "rows": rows})
    elif rehearsal is None:
        say(_BEGIN)
    else:
        print_table(table)
        for line in lines:
            say(line)
        say(f"\nThe rehearsal began {clock_text(rehearsal['since'])}.")
    seen = [one for one in services if one["readiness"] != "no traffic"]
    sys.exit(0 if seen and all(one["readiness"] == "ready" for one in seen) else 1)


def _cells(service: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Text | str]:
    def times(level: str) -> str:
        number = sum(
            one["times"] for one in rows if one["service"] == service["service"] and one["level"] == level
        )
        return str(number or "–")

    readiness = str(service["readiness"])
    return [
        str(service["service"]),
        Text(readiness, _STYLES.get(readiness, "")),
        str(service["commands"]),
        *map(times, _NAMES[3:]),
    ]


def _details(service: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The obstacles of a service, each with its evidence and its remedy."""
    own = [one for one in rows if one["service"] == service["service"]]
    if service["readiness"] == "no traffic":
        return []
    shared = counted(service["share_slots"], "command or transaction", "commands and transactions")
    lines = [f"\n{one_line(service['service'])}: {shared} with several keys share a hash slot"]
    for one in own:
        keys = " and ".join(dict.fromkeys(one_line(key["name"]) for key in one["keys"]))
        works = f"; {one['works']} others would work" if one["works"] else ""
        what = f"{one_line(one['command'])} {one['meaning']}{f': {keys}' if keys else ''}"
        lines.append(wrapped(what, f"  {one['level']:9}"))
        if one["script"]:
            lines.append(wrapped(f"script {one_line(one['script'])}", " " * 11))
        lines.append(wrapped(f"{counted(one['times'], 'time')}{works}", " " * 11))
        lines.append(wrapped(one_line(one["change"]), f"{'':11}→ "))
    return lines
