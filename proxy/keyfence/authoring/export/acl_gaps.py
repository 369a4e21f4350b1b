"""What an ACL user admits although the policy refuses it.

Rule: every gap is listed. A gap names a rule; it may be limited to the keys of one entry or scope, or to some
commands. Rules that never refuse (`should`) are no gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Target
from keyfence.policy.compiled.requirements import requirements_of

from .acl_commands import CARRYING, FUNCTIONS, SCANNING, SCRIPTS, SUBSCRIBING, Commands
from .acl_keys import Keys, reached


class Gap(NamedTuple):
    """One thing that ACL cannot express."""

    rule: str
    entry: str = ""  # the entry, deprecated key or scope; "" for all keys
    commands: frozenset[str] = frozenset()  # empty: all
    through: str = ""  # the entry whose ACL pattern reaches these keys, if it is another one


ANY_RULE = "any rule about keys"
_WHY = {
    ANY_RULE: "ACL checks what a script touches only when it touches it; declared keys may be any",
    "channel.read": "ACL compares names of channels with patterns only, and shows which channels there are",
    "channel.write": "ACL compares names of channels with patterns only",
    "command.forbidden": "ACL does not know what a command's arguments do to the key",
    "command.unknown": "ACL does not look at patterns in arguments, as those of SORT",
    "database.forbidden": "ACL knows databases only in SELECT",
    "field.unknown": "ACL does not look into a command's fields",
    "key.charset": "ACL has no rule for names",
    "key.format": "an ACL pattern's * stands for any bytes",
    "key.hash_tag": "ACL has no rule for names",
    "key.legacy": "an ACL pattern reaches deprecated keys",
    "key.length": "an ACL pattern has no length",
    "key.members": "ACL does not count",
    "key.unregistered": "an ACL pattern reaches keys of no entry",
    "scan.scope": "ACL does not look at the pattern of a scan, so all names are shown",
    "scope.read": "the service may not read these keys",
    "scope.write": "the service, or a plain command, may not write these keys",
    "script.keys": "ACL checks what a script touches only when it touches it",
    "script.unregistered": "ACL does not know scripts; each command of one is checked as the service's own",
    "slot.cross": "ACL does not compare keys",
    "stream.maxlen": "ACL does not look into XADD",
    "ttl.forbidden": "ACL does not look at times to live",
    "ttl.range": "ACL does not look at times to live",
    "ttl.required": "ACL does not look at times to live",
    "type.mismatch": "ACL does not know what a key holds",
    "value.invalid": "ACL does not look at values",
    "value.size": "ACL does not look at values",
}


def why(rule: str) -> str:
    """Returns why ACL cannot express a rule."""
    return _WHY[rule]


def gaps_of(
    policy: CompiledPolicy,
    service: int,
    keys: Sequence[Keys],
    lent: Sequence[Keys],
    commands: Commands,
) -> list[Gap]:
    """Returns the gaps of a service's ACL user, each once, in the order of the rules."""
    found = [
        *_of_commands(policy, service, keys, commands),
        *(gap for one in (*keys, *lent) if one.target is not None for gap in _of_own(one.target, policy)),
        *(gap for one in keys for gap in _of_unreadable(one)),
        *(gap for one in (*keys, *lent) for gap in _of_reached(policy, service, one)),
    ]
    order = list(_WHY)
    kept = {(one.rule, one.entry, one.commands): one for one in reversed(found)}
    whole = {(one.rule, "") for one in found if not one.entry and not one.commands}
    left = [one for one in kept.values() if not one.entry or (one.rule, "") not in whole]
    return sorted(left, key=lambda one: (order.index(one.rule), one.entry, sorted(one.commands)))


def _of_commands(
    policy: CompiledPolicy, service: int, keys: Sequence[Keys], commands: Commands
) -> Iterator[Gap]:
    """Yields the gaps of commands that are in no entry's requirements."""
    scans = commands.keyless & SCANNING
    if scans:
        yield from _unless(policy.should, Gap("scan.scope", commands=scans))
    if policy.databases is not None and commands.generic & {"COPY", "MOVE"}:
        moving = commands.generic & {"COPY", "MOVE"}
        yield from _unless(policy.should, Gap("database.forbidden", commands=moving))
    if commands.generic & (SCRIPTS | FUNCTIONS):
        running = commands.generic & (SCRIPTS | FUNCTIONS) | commands.keyless & {"SCRIPT LOAD"}
        for rule in ("script.keys", "script.unregistered"):
            yield from _unless(policy.should, Gap(rule, commands=running))
        if declares_other_keys(policy):
            yield Gap(ANY_RULE, commands=running)
    elif policy.unregistered_scripts(service) == "forbid" and "SCRIPT LOAD" in commands.keyless:
        yield from _unless(policy.should, Gap("script.unregistered", commands=frozenset({"SCRIPT LOAD"})))
    sorting = {name for names in commands.of_type.values() for name in names} & {"SORT", "SORT_RO"}
    if sorting and keys:
        yield from _unless(policy.should, Gap("command.unknown", commands=frozenset(sorting)))
    held = [one for one in policy.channels if one.kind == "channel"]
    for rule, right, names in (
        ("channel.write", WRITE, commands.publishing),
        ("channel.read", READ, commands.subscribing or SUBSCRIBING),
    ):
        if any(one.rights[service] & right for one in held):
            yield from _unless(policy.should, Gap(rule, commands=names))
    if policy.cluster and keys:
        yield from _unless(policy.should, Gap("slot.cross"))
    carrying = CARRYING & commands.on_keys
    for rule in ("scope.read", "type.mismatch", "value.invalid") if keys and carrying else ():
        yield from _unless(policy.should, Gap(rule, commands=carrying))


def declares_other_keys(policy: CompiledPolicy) -> bool:
    """Whether a registered script or function does not use its declared keys as keys."""
    known = (*policy.scripts.values(), *policy.functions.values())
    return any(one.declared != READ | WRITE and one.keys != 0 for one in known)


def _unless(should: frozenset[str], gap: Gap) -> Iterator[Gap]:
    if gap.rule not in should:
        yield gap


def _of_own(target: Target, policy: CompiledPolicy) -> Iterator[Gap]:
    """Yields the gaps of keys that the service may use: what they hold, and how they are named."""
    name = target.name or target.kind
    rules = [*_asked_by(target.entry)] if target.entry is not None else []
    rules += sorted(policy.names(target).rules) if not target.names_sure else []
    rules += ["key.hash_tag"] if target.hash_tag != "any" and not target.names_sure else []
    rules += ["scope.write"] if target.written_by else []
    rules += ["scope.read", "scope.write"] if target.tenancy is not None else []
    rules += ["key.format"] if target.alike else []
    for rule in rules:
        yield from _unless(target.should, Gap(rule, name))


def _of_unreadable(keys: Keys) -> Iterator[Gap]:
    """Yields the gap of keys that the service may write and not read. ACL lets it ask about what they hold
    (HEXISTS, OBJECT ENCODING), and read streams by their groups."""
    if keys.held & (WRITE | GROUP) and not keys.held & READ and keys.target is not None:
        yield from _unless(keys.target.should, Gap("scope.read", keys.target.name or keys.target.kind))


def _asked_by(entry: Entry) -> Iterator[str]:
    """Yields the rules of an entry's requirements, beside its type: ACL has commands by type."""
    for one in requirements_of(entry):
        if one.item != "types":
            yield from one.rules(entry)


def _of_reached(policy: CompiledPolicy, service: int, keys: Keys) -> Iterator[Gap]:
    """Yields the gaps of keys that are not the target's own, but match its ACL pattern."""
    through = "a grant" if keys.target is None else keys.target.name or keys.target.kind
    for target in reached(policy, keys):
        name = target.name or target.kind
        held = target.rights[service] & ~target.denied[service]
        may = keys.held & (READ | WRITE) | (WRITE if keys.held & (DELETE | GROUP) else 0)
        may |= READ if keys.held & GROUP else 0
        rules = _form_rules(target)
        is_granted = target.home == keys.granted_home
        if not is_granted:
            rules += ["scope.read"] if may & READ and not held & READ else []
            rules += ["scope.write"] if may & WRITE and (not held & WRITE or target.written_by) else []
        if target.kind == "legacy":
            rules += [] if is_granted else ["key.legacy"]
        if target.entry is not None and target.kind != "malformed":
            rules += _asked_by(target.entry)
            rules += ["type.mismatch"] if target.entry.types or policy.home(target).type_words else []
        rules += sorted(policy.names(target).rules)
        for rule in rules:
            yield from _unless(target.should, Gap(rule, name, through=through if name != through else ""))
    if not keys.pattern.is_literal:
        for rule in ("key.unregistered", "key.format"):
            yield from _unless(policy.should, Gap(rule, ""))


def _form_rules(target: Target) -> list[str]:
    if target.kind in ("malformed", "claim"):
        return ["key.format"]
    return ["key.unregistered"] if target.kind in ("scope", "stray") and not target.is_open else []
