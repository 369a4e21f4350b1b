"""The basis of evidence: everything that decides about commands, in parts that can be compared later.

Rule: two bases with equal parts for a rule give the same answers for this rule. Evidence names the parts that
decided about a command (`policy.engine.command_evidence`). The description is plain values for JSON, so that
the findings store keeps it after the policy itself is gone.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

from keyfence.policy.compiled.names import Names
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Grant, Home, Target
from keyfence.policy.compiled.requirements import REQUIREMENTS
from keyfence.policy.compiled.scripts import Registration, Template
from keyfence.policy.enforcement.modes import Modes, as_waiver
from keyfence.policy.enforcement.waiver_keys import keys_of_shape
from keyfence.policy.engine.authorizer import basis_of
from keyfence.policy.engine.command_evidence import place_of
from keyfence.policy.patterns.patterns import ClassExpression, KeyPattern
from keyfence.policy.patterns.value_forms import Form
from keyfence.policy.rules import PARTS, RULES, Part, rules_with

DIGEST_BYTES = 5
# The rules on keys, by the part of the policy that decides. All rules of a part change together.
GROUPS: dict[str, tuple[str, ...]] = {part: rules_with(part) for part in PARTS if part != "reach"}
ON_KEYS = frozenset(rule for rules in GROUPS.values() for rule in rules)
# Rules about which the reach of a pattern, or of an unknown command, decides. A subscriber may be notified
# about keys.
ON_REACH = rules_with("reach")

Described = dict[str, Any]  # for JSON


class InForce(NamedTuple):
    """What decides now: a policy with its modes and waivers. Without a policy, nothing is known of it."""

    policy: CompiledPolicy | None = None
    modes: Modes | None = None

    @property
    def basis(self) -> str:
        """The name of this basis, as evidence has it."""
        return "" if self.policy is None or self.modes is None else basis_of(self.policy, self.modes)

    def waives_all(self, service: str, rule: str, entry: str, command: str, shape: str) -> bool:
        """Whether one waiver covers everything that a finding with these names can hold."""
        held = self.modes.waivers_of(service, rule) if self.modes is not None else ()
        found = as_waiver(service, rule, entry, command, shape, is_covered=not shape)
        keys = "" if found.script else keys_of_shape(shape)
        return any(one.covers(found) and one.keys in ("", keys) for one in held)


def described(policy: CompiledPolicy, modes: Modes) -> Described:
    """A basis in parts. `places` are in the order of the policy's targets; `meets` lists, for keys that
    several targets match, the numbers of these in the order in which they decide."""
    homes = [_of_home(home) for home in policy.homes]
    bindings = digest(policy.bindings)
    claims = [home.claims for home in policy.homes]
    places = [_place(policy, target, homes, bindings) for target in policy.targets]
    reach, channels = _of_all_services(policy)
    return {
        "services": list(policy.services),
        "places": places,
        "meets": sorted({tuple(members) for members in policy.classifier.automaton.sets}),
        "nowhere": digest((sorted(policy.should), sorted(policy.common.should), claims)),
        "scripts": digest((policy.scripts, policy.functions, _of_unregistered(policy), bindings)),
        "rules": _of_rules(policy),
        "of": {
            service: {
                "grants": digest(policy.grants.get(number, ())),
                "channels": digest((channels, _rights(policy.channels, number))),
                "reach": digest((reach, _rights(policy.targets, number))),
                **_of_modes(modes, number, service),
            }
            for number, service in enumerate(policy.services)
        },
    }


def _place(policy: CompiledPolicy, target: Target, homes: list[dict[str, Any]], bindings: str) -> Described:
    """A target: its name among the parts, for people, its keys, and for each group what decides."""
    home = homes[target.home] if target.kind not in ("keyspace", "keyevent") else _of_home(policy.common)
    entry = target.entry
    kind = target.kind
    types = (_required(entry, "type"), home["type_words"])
    content = _required(entry, "content")
    tenancy = target.tenancy and (target.tenancy.places, bindings)
    deciding: dict[str, object] = {
        "rights": (target.written_by, target.denied_before, target.successor, tenancy, target.has_lapsed),
        "form": (target.is_open, target.alike, target.bound, target.unclear, target.standard, home["names"]),
        "name": (home["names"], target.is_lower, target.hash_tag, _required(entry, "name")),
        "type": types,
        "content": (content, types),
        "size": (content, types, _required(entry, "size")),
        "ttl": _required(entry, "ttl"),
        "commands": _required(entry, "commands"),
        "slots": (home["cluster"], policy.cluster),
    }
    should = target.should | home["should"] | policy.should
    groups = {
        name: digest((kind, value, sorted(should & set(GROUPS[name])))) for name, value in deciding.items()
    }
    reading = target.tenancy.reading if target.tenancy is not None else (0,) * len(target.rights)
    rights = [list(one) for one in zip(target.rights, target.denied, reading, strict=False)]
    return {
        "place": place_of(target),
        "entry": target.name,
        "name": _shown(target),
        "keys": digest(target.pattern),
        "sure": not target.pattern.needs_verification,
        "groups": groups,
        "rights": rights,
    }


def _of_unregistered(policy: CompiledPolicy) -> tuple[object, ...]:
    """What decides about scripts that are not registered."""
    of_places = [
        (place_of(one), one.unregistered_scripts) for one in policy.targets if one.unregistered_scripts
    ]
    return [home.unregistered_scripts for home in policy.homes], policy.common.unregistered_scripts, of_places


def _shown(target: Target) -> str:
    """A target as part of a sentence."""
    if target.kind == "legacy":
        return f"the legacy form {target.text}"
    kind = "entry" if target.kind == "malformed" else target.kind
    return f"the {kind} {target.name or target.text}"


def _required(entry: Entry | None, part: Part) -> tuple[object, ...]:
    """What an entry requires in a part of the policy."""
    if entry is None:
        return ()
    rows = (one for one in REQUIREMENTS.values() if one.part == part)
    return tuple(getattr(entry, name) for one in rows for name in (one.item, *one.also))


def _of_home(home: Home) -> dict[str, Any]:
    return {
        "names": digest(home.names),
        "type_words": digest(home.type_words),
        "cluster": home.cluster,
        "should": home.should,
    }


def _of_rules(policy: CompiledPolicy) -> dict[str, str]:
    """By rule: what decides about every command, whatever it touches."""
    commands = (policy.forbid, policy.allow)
    of_rules: dict[str, object] = {
        "command.forbidden": commands,
        "command.unknown": commands,
        "script.keys": commands,
        "database.forbidden": policy.databases,
        "slot.cross": policy.cluster,
        "script.unregistered": _of_unregistered(policy),
    }
    return {rule: digest((of_rules.get(rule), rule in policy.should)) for rule in RULES}


def _of_all_services(policy: CompiledPolicy) -> tuple[str, str]:
    """What decides about the reach of any service's patterns, and about its channels, but for its rights."""
    channels = [
        (one.kind, one.pattern, one.home, one.tenancy, one.written_by, one.should) for one in policy.channels
    ]
    # A tracking service hears of all keys, if it may use the command.
    reach = [(one.kind, one.pattern, one.is_open, one.tenancy, one.written_by) for one in policy.targets]
    restrictions = [one.entry.commands for one in policy.targets if one.entry is not None]
    claims = [home.claims for home in policy.homes]
    return (
        digest((reach, restrictions, policy.bindings, claims)),
        digest((channels, policy.bindings, policy.forbid, policy.allow)),
    )


def _rights(targets: Iterable[Target], service: int) -> list[tuple[int, ...]]:
    """The rights of a service at each of these, and those that are denied to it."""
    return [tuple(one.rights[service] for one in targets), tuple(one.denied[service] for one in targets)]


def _of_modes(modes: Modes, number: int, service: str) -> Described:
    """What the configuration says about one service's commands."""
    waivers = {rule: [digest(one) for one in modes.waivers_of(service, rule)] for rule in RULES}
    return {
        "waivers": {rule: held for rule, held in waivers.items() if held},
        "disabled": [rule for rule in RULES if modes.mode(rule, number) == "disabled"],
        "kept_in": modes.keeps_in(service),
    }


def digest(value: object) -> str:
    """A short name of a value: equal values have equal names, in every process."""
    text = canonical(value).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()


def canonical(value: object) -> str:
    """A value of a compiled policy as text that is the same in every process. Only what decides about
    commands is in it, not what is for people."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = sorted((canonical(key), canonical(one)) for key, one in value.items())
        return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(map(canonical, value)))}}}"
    return f"{type(value).__name__}({', '.join(map(canonical, _inside(value)))})"


def _inside(value: object) -> Iterator[object]:
    """The parts of a value that decide."""
    if isinstance(value, KeyPattern):
        yield from value.parts
    elif isinstance(value, ClassExpression):
        yield value.node
    elif isinstance(value, Form):
        yield from (value.text, value.regular)
    elif isinstance(value, Names):
        for checks in (value.checks, value.of_forms.checks):
            yield [
                tuple(one for name, one in each._asdict().items() if name != "automaton") for each in checks
            ]
        yield value.limits
    elif isinstance(value, Template):
        yield from (value.text, value.types, value.ttl, value.runs)
    elif isinstance(value, Registration):
        yield from (getattr(value, name) for name in Registration.__dataclass_fields__)
    elif isinstance(value, Grant):
        yield from (value.selectors, value.legacy, value.texts, value.home, value.channels)
    elif dataclasses.is_dataclass(value):
        yield from (getattr(value, one.name) for one in dataclasses.fields(value) if one.compare)
    elif isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, Iterable):
        yield from sorted(map(canonical, value))
    else:
        raise TypeError(f"{type(value).__name__} has no canonical text")
