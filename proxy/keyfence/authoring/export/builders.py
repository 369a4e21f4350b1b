"""What key builders are made of, for any language: one function for each entry that a service uses.

Rule: a key that a builder makes is always its entry's. Each value is checked against its placeholder's class,
and where more specific forms or other members of a family would take a key, the whole key is checked too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keyfence.commands.model import GROUP, READ, WRITE
from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.patterns.patterns import Hole, literal_class, parse_pattern
from keyfence.policy.patterns.regular import Node, either
from keyfence.policy.show import one_line
from keyfence.policy.units import duration_text


class Form(NamedTuple):
    """The form that a value, or a whole key, must have or must not have."""

    name: str  # of the value, as the policy writes it
    node: Node
    text: str  # the form for people
    excludes: bool = False


class Parameter(NamedTuple):
    """One value of a key."""

    name: str  # of the placeholder
    form: Form
    tells_members: bool = False  # it tells the members of a family apart


class Time(NamedTuple):
    """A time to live that the policy names for an entry."""

    name: str  # "", "min" or "max"
    milliseconds: int


class Builder(NamedTuple):
    """The function that makes the keys of one entry."""

    entry: str
    about: str
    key: str  # as the policy writes it
    facts: tuple[str, ...]  # type, who, time to live: each one line
    parts: tuple[str | Parameter, ...]
    key_forms: tuple[Form, ...]  # of the whole key
    longest: int | None  # bytes that the key may have, if it could have more
    times: tuple[Time, ...]
    fields: tuple[str, ...]  # by name

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(part for part in self.parts if isinstance(part, Parameter))


class Builders(NamedTuple):
    """A module of builders."""

    policy: str
    revision: str
    service: str  # "" for all services
    builders: tuple[Builder, ...]
    left_out: tuple[tuple[str, str], ...]  # (entry, why) of entries without a builder


def builders_of(policy: CompiledPolicy, service: str = "") -> Builders:
    """Returns the builders of all entries, or of those that a service may use. Raises ValueError for a
    service that the policy does not have."""
    services_in(policy, service)
    number = policy.number(service) if service else None
    members: dict[str, list[int]] = {}
    for index, target in enumerate(policy.targets):
        if target.kind == "entry" and (number is None or target.rights[number] & ~target.denied[number]):
            members.setdefault(target.name, []).append(index)
    made, left_out = [], []
    for name, indexes in sorted(members.items(), key=lambda one: place_of(policy.targets[one[1][0]])):
        try:
            made.append(_builder(policy, name, indexes))
        except UnicodeDecodeError:
            left_out.append((name, "its keys are not UTF-8 text"))
    return Builders(policy.name, policy.revision, service, tuple(made), tuple(left_out))


def services_in(policy: CompiledPolicy, service: str = "") -> Sequence[str]:
    """Returns the services of a policy, or one of them. Raises ValueError if it is none."""
    names = policy.services[:-1]
    if service and service not in names:
        raise ValueError(f"{service!r} is not a service of the policy: {', '.join(names)}")
    return [service] if service else names


def place_of(target: Target) -> tuple[int, int]:
    """Returns a sort key: the order of the entries in the policy's files."""
    return target.home, target.entry.number if target.entry is not None else 0


def _builder(policy: CompiledPolicy, name: str, indexes: Sequence[int]) -> Builder:
    targets = [policy.targets[index] for index in indexes]
    first = targets[0]
    entry = first.entry
    assert entry is not None
    parts, whole = _parts(targets)
    fields = entry.fields
    rule = entry.ttl
    return Builder(
        entry=name,
        about=one_line(entry.about),
        key=one_line(entry.written),
        facts=tuple(_facts(policy, targets)),
        parts=parts,
        key_forms=(*whole, *_not_others(policy, indexes)),
        longest=_longest(policy, targets),
        times=_times(rule),
        fields=tuple(one.decode() for one in fields.named) if fields is not None else (),
    )


def _parts(targets: Sequence[Target]) -> tuple[tuple[str | Parameter, ...], list[Form]]:
    """Returns the parts of the keys, and a form of the whole key if not all combinations of values are
    members."""
    entry = targets[0].entry
    assert entry is not None
    holes = {hole.name: hole for target in targets for hole in target.pattern.holes}
    families = [dict(target.family) for target in targets]
    choices = {name: list(dict.fromkeys(one[name] for one in families)) for name in families[0]}
    classes = {name: hole.expression for name, hole in holes.items()}
    classes |= {name: literal_class(values) for name, values in choices.items()}
    parts: list[str | Parameter] = []
    for part in parse_pattern(entry.written, classes).parts:
        values = choices.get(part.name) if isinstance(part, Hole) else None
        if isinstance(part, Hole) and (values is None or len(values) > 1):
            parts.append(_parameter(part, values))
            continue
        text = values[0] if values is not None else b"" if isinstance(part, Hole) else part.text
        if parts and isinstance(parts[-1], str):
            parts[-1] += text.decode()
        else:
            parts.append(text.decode())
    combinations = 1
    for values in choices.values():
        combinations *= len(values)
    if combinations == len({target.family for target in targets}):
        return tuple(parts), []
    members = " or ".join(one_line(target.text) for target in targets)
    return tuple(parts), [Form("key", either([target.pattern.node for target in targets]), members)]


def _parameter(hole: Hole, values: Sequence[bytes] | None) -> Parameter:
    text = hole.expression.text
    if values is not None:
        text = " or ".join(value.decode() for value in values)
    elif hole.variadic:
        text = f"{text}, one or more with : between"
    return Parameter(hole.name, Form(hole.name, hole.language.node, one_line(text)), values is not None)


def _not_others(policy: CompiledPolicy, indexes: Sequence[int]) -> list[Form]:
    """Returns the more specific patterns that take some keys of these targets."""
    mine = set(indexes)
    taken: dict[int, None] = {}
    for accepted in policy.classifier.automaton.sets:
        for index in indexes:
            if index in accepted:
                taken |= dict.fromkeys(one for one in accepted[: accepted.index(index)] if one not in mine)
    others = [policy.targets[index] for index in sorted(taken)]
    return [
        Form("key", other.pattern.node, f"{one_line(other.text)} ({other.name or other.kind})", excludes=True)
        for other in others
    ]


def _longest(policy: CompiledPolicy, targets: Sequence[Target]) -> int | None:
    """Returns the limit of the key's length. A limit in characters counts as one in bytes, which is
    stricter."""
    home = policy.home(targets[0])
    limits = [one.limit.most for one in home.names.limits if one.severity == "must"]
    entry = targets[0].entry
    if entry is not None and entry.max_length is not None:
        limits.append(entry.max_length.most)
    longest = max(target.pattern.longest for target in targets)
    return min(limits) if limits and longest > min(limits) else None


def _facts(policy: CompiledPolicy, targets: Sequence[Target]) -> Iterable[str]:
    entry = targets[0].entry
    assert entry is not None
    if entry.types:
        yield f"Type: {' or '.join(entry.types)}."
    for word, right in (("Writers", WRITE), ("Readers", READ), ("Consumers", GROUP)):
        names = dict.fromkeys(name for one in targets for name in one.names_with(right, policy.services))
        if right != WRITE:
            names = {one: None for one in names if one not in _with(policy, targets, WRITE)}
        if names and not (right == READ and set(names) <= set(_with(policy, targets, GROUP))):
            yield f"{word}: {', '.join(names)}."
    if entry.ttl is not None:
        yield f"Time to live: {ttl_words(entry.ttl)}."
    if entry.fields is not None and entry.fields.patterned:
        yield f"Fields: {entry.fields.text}."
    page = policy.home(targets[0]).page_of(targets[0].name)
    if page:
        yield f"See {page}"


def _with(policy: CompiledPolicy, targets: Sequence[Target], right: int) -> set[str]:
    return {name for one in targets for name in one.names_with(right, policy.services)}


def ttl_words(rule: TtlRule) -> str:
    """Returns a rule for the time to live in words: how it is set, and how long it is."""
    return ", ".join([how_long(rule), *times_words(rule)])


def how_long(rule: TtlRule) -> str:
    """Returns in words whether a key has a time to live, and what sets it."""
    if rule.none:
        return "none"
    if not rule.required:
        return "optional"
    return "set by each write" if rule.at == "write" else "set by a write or after it"


def times_words(rule: TtlRule) -> list[str]:
    """Returns the times of a rule in words."""
    named = (("usually", rule.default), ("at least", rule.min), ("at most", rule.max))
    return [f"{word} {duration_text(time)}" for word, time in named if time is not None]


def _times(rule: TtlRule | None) -> tuple[Time, ...]:
    if rule is None:
        return ()
    named = (("", rule.default), ("min", rule.min), ("max", rule.max))
    return tuple(Time(name, time) for name, time in named if time is not None)
