"""The report of an audit as plain values, from which every form of it is made.

Rule: all forms show the same numbers. A number that comes from a sample is an estimate for all keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.rules import RULES
from keyfence.policy.show import one_line

from .scan import Options, Result
from .servers.nodes import Server
from .sums import IDLE_DAYS, Extreme, Group

# What to do about keys that are there already, where it is not the rule's own remedy.
_HINTS = {
    "key.format": "find who writes these keys: the policy has no key of this form here",
    "key.unregistered": "register these keys, or find who writes them and delete them",
    "type.mismatch": "find who writes another type here, and delete these keys",
    "field.unknown": "list the field, or HDEL it",
    "value.size": "write less, or raise the limit",
    "key.members": "trim it, or raise the limit",
    "ttl.required": "EXPIRE these keys, and have their writer set a time to live",
    "ttl.forbidden": "PERSIST these keys, and find who sets a time to live",
    "ttl.range": "EXPIRE these keys again, and have their writer keep to the range",
}
_KINDS = ("entry", "scope", "malformed", "legacy")


def summary(
    policy: CompiledPolicy, source: str, servers: Sequence[Server], options: Options, result: Result
) -> dict[str, Any]:
    """The report of an audit."""
    groups = sorted(result.sums, key=_order)
    known = [_entry(one) for one in groups if one.kind != "unregistered"]
    strays = [_shape(one) for one in groups if one.kind == "unregistered"]
    databases = list(_databases(policy, servers, result))
    found = [broken for group in groups for broken in _violations(group)]
    foreign = sum(one["keys"] for one in databases if not one["allowed"])
    # The whole key space was walked over, so what was not seen is not there.
    used = {one.name for one in groups if one.kind == "entry"}
    return {
        "source": source,
        "policy": policy.name,
        "revision": policy.revision,
        "began": result.began,
        "seconds": round(result.seconds, 3),
        "keys": result.seen,
        "gone": result.gone,
        "moving": result.moving,
        "moved_slots": result.moved_slots,
        "bytes": sum(one.estimate(one.size) for one in groups),
        "sample": options.sample,
        "rate": options.rate,
        "databases": databases,
        "scopes": _scopes(groups),
        "entries": known,
        "unregistered": strays,
        "violations": sorted(found, key=lambda one: (list(RULES).index(one["rule"]), -one["keys"])),
        "orphans": [name for name in _names(policy) if name not in used],
        "notes": list(result.notes),
        "must": sum(one["keys"] for one in found if one["severity"] == "must") + foreign,
        "should": sum(one["keys"] for one in found if one["severity"] == "should"),
    }


def _order(group: Group) -> tuple[bool, str, int, str, int, str]:
    """The place of a group in the report: by scope and name, the deprecated forms last; shapes by number."""
    is_shape = group.kind == "unregistered"
    kind = _KINDS.index(group.kind) if not is_shape else len(_KINDS)
    return (not group.scope, group.scope, kind, group.name, -group.keys if is_shape else 0, group.shape)


def _names(policy: CompiledPolicy) -> list[str]:
    return sorted({one.name for one in policy.targets if one.kind == "entry"})


def _entry(group: Group) -> dict[str, Any]:
    return {"kind": group.kind, "name": group.name, "scope": group.scope, **_numbers(group)}


def _shape(group: Group) -> dict[str, Any]:
    extremes = {"biggest": _extreme(group.biggest, "bytes"), "oldest": _extreme(group.oldest, "idle")}
    return {"shape": one_line(group.shape), "scope": group.scope, **_numbers(group), **extremes}


def _numbers(group: Group) -> dict[str, Any]:
    return {
        "owner": group.owner,
        "keys": group.keys,
        "asked": group.asked,
        "bytes": group.estimate(group.size),
        "without_ttl": group.estimate(group.without_ttl),
        "types": {kind: group.estimate(number) for kind, number in sorted(group.types.items())},
        "idle": {
            f"{days}d": group.estimate(number) for days, number in zip(IDLE_DAYS, group.idle, strict=True)
        },
        "broken": {rule: group.broken_keys(one) for rule, one in sorted(group.broken.items())},
    }


def _extreme(one: Extreme | None, name: str) -> dict[str, Any] | None:
    return None if one is None else {"key": one.key, name: one.number, "type": one.type}


def _scopes(groups: Sequence[Group]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for group in groups:
        row = rows.setdefault(group.scope, {"scope": group.scope, "keys": 0, "bytes": 0, "violations": 0})
        row["keys"] += group.keys
        row["bytes"] += group.estimate(group.size)
        row["violations"] += sum(group.broken_keys(one) for one in group.broken.values())
    return list(rows.values())


def _violations(group: Group) -> Iterator[dict[str, Any]]:
    for rule, one in group.broken.items():
        yield {
            "rule": rule,
            "severity": one.severity,
            "entry": group.name or group.scope,
            "shape": one_line(group.shape),
            "kind": group.kind,
            "keys": group.broken_keys(one),
            "owner": group.owner,
            "hint": hint(group, rule),
            "examples": list(one.examples),
        }


def hint(group: Group, rule: str) -> str:
    """What to do about keys of a group that break a rule."""
    if rule == "key.legacy":
        return f"move to the form of {group.name}: keyfence audit --plan migrate"
    return _HINTS.get(rule, RULES[rule].remedy)


def _databases(policy: CompiledPolicy, servers: Sequence[Server], result: Result) -> Iterator[dict[str, Any]]:
    held: dict[int, int] = {}
    for server in servers:
        for number, keys in server.keys.items():
            held[number] = held.get(number, 0) + keys
    seen: Mapping[int, int] = result.databases
    for number in sorted(held.keys() | seen.keys()):
        allowed = policy.databases is None or number in policy.databases
        keys = seen.get(number, held.get(number, 0))
        yield {"database": number, "keys": keys, "allowed": allowed, "audited": number in seen}
