"""Rights that the policy gives and nobody has used: candidates for removal.

Rule: only rights for which keyfence was looking the whole time are listed.
"""

from __future__ import annotations

from typing import NamedTuple

from keyfence.commands.model import READ, WRITE
from keyfence.policy.compiled.policy import CompiledPolicy

from .queries import Reader

_KINDS = ("entry", "scope", "legacy")


class UnusedRight(NamedTuple):
    """A right that a service has and did not use."""

    service: str
    kind: str  # read, write, legacy or grant
    name: str  # the entry, scope or legacy form; of a grant its commands
    last: float | None  # the last use that the store knows of, in Unix seconds


def unused_rights(policy: CompiledPolicy, reader: Reader, since: float) -> list[UnusedRight]:
    """The rights that no service has used since a time, in the order of the policy."""
    used, ever = reader.asked(since), reader.asked(0.0)
    found = []
    for service, kind, name, shown in _rights(policy):
        if (service, kind, name) not in used:
            last = ever.get((service, kind, name))
            found.append(UnusedRight(service, kind, shown, last.last if last is not None else None))
    return found


class Right(NamedTuple):
    """A right that a service has, with its uses."""

    kind: str  # as of UnusedRight
    name: str
    times: int | None  # since the time that was asked for; None: not known
    last: float | None  # the last use that the store knows of, in Unix seconds


def rights_of(policy: CompiledPolicy, reader: Reader, service: str, since: float) -> list[Right]:
    """The rights of one service, in the order of the policy, with their uses since the hour of a time."""
    own = [(kind, name, shown) for owner, kind, name, shown in _rights(policy) if owner == service]
    if not reader.knows_uses:
        return [Right(kind, shown, None, None) for kind, _, shown in own]
    used, last = reader.asked(since, service), reader.last_uses(service)
    found = []
    for kind, name, shown in own:
        times = used.get((service, kind, name))
        found.append(Right(kind, shown, times.times if times else 0, last.get((kind, name))))
    return found


def _rights(policy: CompiledPolicy) -> list[tuple[str, str, str, str]]:
    """Every right of the policy once: service, kind, name, and the name for people."""
    rights: dict[tuple[str, str, str], str] = {}
    for target in policy.targets:
        if target.kind not in _KINDS or not target.name:
            continue
        for number, service in enumerate(policy.services):
            held = target.rights[number] & ~target.denied[number]
            for need, kind in ((READ, "read"), (WRITE, "write")):
                if held & need:
                    is_legacy = target.kind == "legacy"
                    right, name = ("legacy", target.text) if is_legacy else (kind, target.name)
                    rights[service, right, name] = name
    for number, grants in policy.grants.items():
        for index, grant in enumerate(grants):
            commands = ", ".join(sorted(grant.selectors))
            rights[policy.services[number], "grant", str(index)] = commands
    return [(service, kind, name, shown) for (service, kind, name), shown in rights.items()]
