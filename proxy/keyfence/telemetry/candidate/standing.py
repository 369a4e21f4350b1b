"""Which services would break on a cluster, and what to change: the rehearsal as people see it.

Rule: a service is ready only if its commands were seen and met no obstacle that a cluster refuses, answers in
part, or that is not known. The texts hold names and shapes, never a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.policy.compiled.hash_tags import tagged, tagged_shape, worth
from keyfence.policy.compiled.obstacles import (
    CHANNEL,
    OBSTACLES,
    OF_SLOTS,
    PUBSUB,
    SCRIPT,
    TRANSACTION,
    WATCH,
)
from keyfence.policy.compiled.splittable import COUNTED, LISTED

LEVELS = ("breaks", "partial", "unknown", "costs")
_BLOCKING = frozenset(LEVELS) - {"costs"}
# What to do where two keys can have no hash tag in common, by the obstacle.
_INSTEAD = {
    TRANSACTION: "keep to the keys of one hash slot, or use two transactions",
    SCRIPT: "keep to the keys of one hash slot, or run two scripts",
    WATCH: "watch the keys of one hash slot only",
    CHANNEL: "subscribe to each channel in a command of its own",
}


class Asked(NamedTuple):
    """What a rehearsal is asked with."""

    commands: Mapping[str, int]  # that were compared, by service
    texts: Mapping[str, str]  # the patterns of the policy's entries, as written, by the entry's name
    seconds: float  # for which it has been running


def standing_of(rows: Iterable[Mapping[str, Any]], asked: Asked) -> dict[str, Any]:
    """Returns the services with their readiness, and a row for each obstacle that was met."""
    rows = list(rows)
    works: dict[tuple[str, str, str], int] = {}
    for row in rows:
        place = row["service"], row["obstacle"], row["command"]
        works[place] = works.get(place, 0) + row["works"]
    met = [_met(row, works, asked) for row in rows if row["times"] > 0]
    met.sort(key=lambda one: (one["service"], LEVELS.index(one["level"]), -one["times"], one["command"]))
    blocked = {one["service"] for one in met if one["level"] in _BLOCKING}
    evidence: dict[str, int] = {}
    for (service, obstacle, _), number in works.items():
        if obstacle in OF_SLOTS:
            evidence[service] = evidence.get(service, 0) + number
    services = [
        {
            "service": service,
            "readiness": "not ready" if service in blocked else "ready" if number else "no traffic",
            "commands": number,
            "share_slots": evidence.get(service, 0),  # commands and transactions with several keys that do
        }
        for service, number in sorted(asked.commands.items())
    ]
    return {"services": services, "rows": met}


def _met(row: Mapping[str, Any], works: Mapping[tuple[str, str, str], int], asked: Asked) -> dict[str, Any]:
    obstacle = OBSTACLES[row["obstacle"]]
    name = "EXEC" if obstacle.name == TRANSACTION else row["command"]
    return {
        "service": row["service"],
        "obstacle": obstacle.name,
        "level": obstacle.level,
        "command": row["command"],
        "meaning": obstacle.meaning,
        "keys": row["keys"],
        "script": row["script"],
        "times": row["times"],
        "works": works.get((row["service"], obstacle.name, name), 0),
        "links": row["links"],
        "change": _change(row, asked),
    }


def _change(row: Mapping[str, Any], asked: Asked) -> str:
    """What to change, as a sentence without its full stop."""
    obstacle = OBSTACLES[row["obstacle"]]
    if obstacle.name == PUBSUB:
        rate = row["times"] / max(asked.seconds, 1.0)
        return f"{rate:.2g} a second go to every node; {obstacle.remedy}"
    keys = row["keys"]
    if obstacle.name not in OF_SLOTS or len(keys) < 2:
        return obstacle.remedy
    best = max(row["links"], key=lambda one: worth(one["times"], one["values"]), default=None)
    forms = tagged_forms(keys, best, asked.texts) if best is not None else None
    if best is None or forms is None:
        return _without_link(row, asked.texts)
    part = "" if best["times"] == row["times"] else f", which fits {best['times']} of {row['times']}"
    return f"write {' and '.join(dict.fromkeys(forms))}{part}"


def tagged_forms(
    keys: Sequence[Mapping[str, Any]], link: Mapping[str, Any], texts: Mapping[str, str]
) -> tuple[str, str] | None:
    """Returns the forms of two kinds of keys with hash tags round the linked parts; None if one of them has a
    hash tag already."""
    forms = []
    for key, placeholder in zip(keys, (link["first"], link["second"]), strict=True):
        text = _form_of(key, texts)
        form = tagged(text, placeholder) if key["is_entry"] else tagged_shape(text, placeholder)
        if form == text:
            return None
        forms.append(form)
    return forms[0], forms[1]


def _form_of(key: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """The form of a kind of keys: of an entry as the policy writes it, or else its shape."""
    name: str = key["name"]
    return texts.get(name, "") if key["is_entry"] else name


def _without_link(row: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """What to change where no part of both keys can be their hash tag."""
    has_tag = any("{" in _form_of(key, texts) for key in row["keys"])
    why = "their hash tags differ" if has_tag else "they have no part in common"
    return f"{_INSTEAD.get(row['obstacle']) or _of_command(row['command'])}: {why}"


def _of_command(name: str) -> str:
    if name in (*LISTED, *COUNTED):
        return "send a command for each key, or have keyfence split it (split in the configuration)"
    if name == "MSET":
        return "send a SET for each key, which is not atomic"
    return "use keys of one hash slot, or read and write in two commands"
