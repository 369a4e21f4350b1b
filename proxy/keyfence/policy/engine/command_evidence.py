"""Positive evidence: which rules a command was checked against, which rights it used, and which parts of the
policy decided.

Rule: evidence depends only on the command's kind, the service and the targets of its keys, never on names,
values or time. So the decision cache draws it once for each of its decisions. It says that a rule was asked,
not that it was kept: what broke it is a violation.

The readiness of a rule and the list of unused rights are made from it. A part of the policy that has changed
since makes evidence about it worthless (`findings.proof`), so evidence names the parts and the basis: the
policy, modes and waivers under which it was drawn.
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from keyfence.commands.model import GROUP, MANY, READ, WRITE, Access, Channel, Touches
from keyfence.policy.budget import Budget, cost
from keyfence.policy.compiled.key_targets import Classify, KeyTargets
from keyfence.policy.compiled.permissions import selects_name
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.requirements import rules_of
from keyfence.policy.reach.channels import key_of, may_notify
from keyfence.policy.rules import rules_at, rules_with

from .checks import carries

# Asked of each command.
ALWAYS = (*rules_at("session"), "command.forbidden", "command.unknown")
# Asked of each key.
_OF_KEYS = tuple(dict.fromkeys((*rules_with("form"), "key.length", "key.charset")))


MOST_STEPS = MANY  # for looking at the keys and channels of one command: 500 of up to 31 bytes


class Right(NamedTuple):
    """A right that was used."""

    kind: str  # read, write, legacy (a deprecated form), grant (a service's grant, by its number)
    name: str  # the entry or scope; the legacy form as written; the grant's number


# The parts of a policy that decided, beside places (`place_of`).
ANYTHING = "*"  # any part of the policy
SCRIPTS = "scripts"
REACH = "reach"  # every place, as far as rights go
NOWHERE = "no target"  # the place of keys that no target covers
# Before a place from which, or to which, a command moves content: who else has rights there decides, too.
CARRIED = "~"


class Evidence(NamedTuple):
    """What one command is evidence of."""

    rules: tuple[str, ...]
    rights: tuple[Right, ...]
    parts: tuple[str, ...] = ()  # of the policy, which decided
    basis: str = ""  # the policy's revision, and what else the environment decides (`Modes.label`)


NONE = Evidence((), ())


def evidence_of(
    policy: CompiledPolicy,
    service: int,
    touches: Touches,
    *,
    several: bool = False,
    basis: str = "",
    keys: KeyTargets | None = None,
) -> Evidence:
    """Returns what a command by the service with this number is evidence of. `several`: it stands for
    commands with more such keys. `basis` "" is the policy alone. `keys` are its keys."""
    looked = _looked_at(touches, policy.target if keys is None else keys.target)
    rules = dict.fromkeys(ALWAYS)
    rights: dict[Right, None] = {}
    if touches.databases:
        rules["database.forbidden"] = None
    if touches.pattern is not None:
        rules["scan.scope"] = None
    for channel in looked.channels:
        rules["channel.write" if channel.publish else "channel.read"] = None
    if looked.notifying:
        rules["database.forbidden"] = None
    if touches.script is not None:
        rules |= dict.fromkeys(("script.keys", "script.unregistered"))
    for access, target in looked.keys:
        rules |= dict.fromkeys(_rules_of(policy, access, target))
        rights |= dict.fromkeys(_rights_of(policy, service, touches, access, target))
    if policy.cluster and (several or len(touches.accesses) > 1):
        rules["slot.cross"] = None
    return Evidence(
        tuple(rules), tuple(rights), tuple(_parts(policy, touches, looked)), basis or policy.revision
    )


class _LookedAt(NamedTuple):
    """The part of a command that evidence is drawn of."""

    keys: list[tuple[Access, Target | None]]  # also those that a subscriber hears about
    channels: list[Channel]
    notifying: list[Channel]  # those that may tell of keys
    is_whole: bool


def _looked_at(touches: Touches, target_of: Classify) -> _LookedAt:
    """The first keys and channels of a command, so that a long command delays no other client."""
    steps = Budget(MOST_STEPS)
    keys: list[tuple[Access, Target | None]] = []
    for access in touches.accesses:
        if not steps.take(cost(access.key)):
            break
        keys.append((access, target_of(access.key)))
    channels = list(takewhile(lambda one: steps.take(cost(one.name)), touches.channels))
    is_whole = len(keys) == len(touches.accesses) and len(channels) == len(touches.channels)
    notifying = list(filter(may_notify, channels))
    for one in notifying:
        key = key_of(one)
        if key is not None:
            keys.append((Access(one.position, key, READ), target_of(key)))
    return _LookedAt(keys, channels, notifying, is_whole)


def place_of(target: Target | None) -> str:
    """Returns the name of a target among a policy's parts. It is the same in policies where the target is
    written alike."""
    return NOWHERE if target is None else f"{target.kind} {target.text}"


def _parts(policy: CompiledPolicy, touches: Touches, looked: _LookedAt) -> dict[str, None]:
    """The parts of the policy that decide about a command. Channels and the command itself are parts of every
    command's rules (`findings.proof.basis`)."""
    if not looked.is_whole:
        return {ANYTHING: None}
    parts: dict[str, None] = {}
    script = touches.script
    if script is not None:
        # A registered script may touch more than it declares.
        parts[ANYTHING if policy.registration(script) is not None else SCRIPTS] = None
    hears = None in map(key_of, looked.notifying)
    if touches.pattern is not None or touches.problem is not None or hears:
        parts[REACH] = None
    moves = any(map(carries, touches.accesses))
    for _, target in looked.keys:
        place = place_of(target)
        parts[CARRIED + place if moves else place] = None
    return parts


def _rules_of(policy: CompiledPolicy, access: Access, target: Target | None) -> list[str]:
    """The rules that an access to one key is checked against."""
    rules = list(_OF_KEYS)
    if target is not None:  # a key of no target is no one's, so no right is asked for
        if access.needs & READ or not access.needs & (READ | WRITE):  # existence is told to holders only
            rules.append("scope.read")
        if access.needs & WRITE:
            rules.append("scope.write")
        if target.hash_tag != "any":
            rules.append("key.hash_tag")
    entry = target.entry if target is not None else None
    if entry is not None:
        rules += rules_of(entry, access)
    elif policy.home(target).type_words:
        rules.append("type.mismatch")
    return rules


def _rights_of(
    policy: CompiledPolicy, service: int, touches: Touches, access: Access, target: Target | None
) -> list[Right]:
    """The rights that an access uses: those of the target that the service holds, or else its grants."""
    rights = []
    held = target.rights[service] & ~target.denied[service] if target is not None else 0
    missing = access.needs & (READ | WRITE)
    if target is not None and held:
        for need, kind in ((READ, "read"), (WRITE, "write")):
            if access.needs & need and held & (need | (GROUP if need == WRITE else 0)):
                missing &= ~need
                is_legacy = target.kind == "legacy"
                rights.append(Right("legacy", target.text) if is_legacy else Right(kind, target.name))
    if missing and service in policy.grants and touches.command is not None:
        name = touches.command.name
        for number, grant in enumerate(policy.grants[service]):
            if selects_name(grant.selectors, name) and grant.covers(access.key, target):
                rights.append(Right("grant", str(number)))
    return rights
