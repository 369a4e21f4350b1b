"""The parts of two policies that are compared as text, and the words for values and lists.

Rule: a setting without effect has an empty text. So two texts differ exactly if the two settings differ in
effect.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from keyfence.commands.model import READ, WRITE
from keyfence.policy.compiled.names import Check, Names
from keyfence.policy.compiled.policy import CompiledPolicy, Fields, Grant, Home
from keyfence.policy.compiled.scripts import Template
from keyfence.policy.compiled.ttl import TtlRule
from keyfence.policy.patterns.patterns import ClassExpression, KeyPattern
from keyfence.policy.patterns.value_forms import Form, NumberRange
from keyfence.policy.show import printable
from keyfence.policy.units import counted, duration_text

MAX_LISTED = 4

Pair = tuple[int, int]  # the indexes of the targets that decide in the old and in the new policy


class Change(NamedTuple):
    """One change from the old to the new policy."""

    section: str  # rights, catalogue, content, channels, commands, grants, scripts, policy
    sentence: str
    services: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    example: str = ""
    pairs: frozenset[Pair] = frozenset()  # of section `rights`: the pairs of targets that it holds for


def plain(value: Any) -> str:
    """Returns a value of an entry as text; "" for one without effect."""
    if value is None or value is False or value == ():
        return ""
    if isinstance(value, Form):
        return value.text if isinstance(value.regular, str) else _with_classes(value.text, value.regular)
    if isinstance(value, ClassExpression):
        return value.text
    if isinstance(value, Fields):
        named = (f"{name.decode(errors='replace')}: {plain(form)}" for name, form in value.named.items())
        patterned = (f"({plain(name)}): {plain(form)}" for name, form in value.patterned)
        return "; ".join((*named, *patterned))
    if isinstance(value, Names):
        checks = [f"{one.kind} {_check_text(one)} ({one.severity})" for one in value.checks]
        limits = [f"at most {one.limit.most} {one.limit.unit} ({one.severity})" for one in value.limits]
        return "; ".join([*checks, *limits])
    if isinstance(value, TtlRule):
        return _ttl_text(value)
    if isinstance(value, NumberRange):
        return f"{_number_text(value.low)}..{_number_text(value.high)}"
    if isinstance(value, bytes):
        return printable(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapping({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if hasattr(value, "_asdict"):
        return _mapping(value._asdict())
    if hasattr(value, "model_dump"):
        return _mapping(value.model_dump(exclude_defaults=True))
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, (set, frozenset)):
        return ", ".join(sorted(map(plain, value)))
    if isinstance(value, (tuple, list)):
        return ", ".join(map(plain, value))
    return "" if callable(value) else str(value)


def _with_classes(text: str, pattern: KeyPattern) -> str:
    """Returns a text with the classes of its placeholders, which may change while the text stays."""
    classes = [one.expression.text for one in pattern.holes if one.expression.text != pattern.text]
    return f"{text} ({', '.join(classes)})" if classes else text


def _check_text(check: Check) -> str:
    """Returns what a naming rule asks, in the words of the policy file."""
    if check.kind == "levels":
        return plain({"min": check.least or None, "max": check.most})
    return plain(check.level) or check.text or plain(dict(check.after)) or plain(dict(check.avoid))


def _number_text(number: float) -> str:
    """Returns an end of a range as a policy writes it; "" for no end."""
    if math.isinf(number):
        return ""
    return str(int(number)) if number.is_integer() else str(number)


def _ttl_text(rule: TtlRule) -> str:
    if rule.none:
        return "none"
    parts = ["required" if rule.required else "not required"]
    for word in ("min", "max", "default"):
        if getattr(rule, word) is not None:
            parts.append(f"{word} {duration_text(getattr(rule, word))}")
    parts += [f"at {rule.at}", *(["immediate"] if rule.immediate else [])]
    return ", ".join([*parts, f"grace {duration_text(rule.grace)}"])


def _mapping(values: Mapping[Any, Any]) -> str:
    texts = {key: plain(value) for key, value in values.items()}
    return ", ".join(f"{plain(key)}: {text}" for key, text in texts.items() if text)


def listed(texts: Sequence[str], limit: int = MAX_LISTED) -> str:
    shown = ", ".join(texts[:limit])
    return shown if len(texts) <= limit else f"{shown} and {len(texts) - limit} more"


def texts_change(section: str, what: str, gone: list[str], come: list[str], example: str = "") -> Change:
    shown = f", for example {example}" if example else ""
    if not gone:
        sentence = f"{what} is new: {listed(come)}{shown}"
    elif not come:
        sentence = f"{what} is gone: {listed(gone)}"
    else:
        sentence = f"{what} is {listed(come)}, was {listed(gone)}{shown}"
    return Change(section, sentence, (), ", ".join(gone), ", ".join(come), example)


def _sets(what: str, old: Iterable[str], new: Iterable[str]) -> Iterator[Change]:
    before, after = set(old), set(new)
    for how, words in (("no longer", before - after), ("now", after - before)):
        if words:
            yield Change("policy", f"{what} {how}: {_joined(words)}", (), _joined(before), _joined(after))


def _joined(words: Iterable[str]) -> str:
    return ", ".join(sorted(words))


def changes_of_policy(old: CompiledPolicy, new: CompiledPolicy) -> Iterator[Change]:
    """Yields changes of the policy as a whole and of each of its files."""
    yield from _sets("services", old.services, new.services)
    for what, was, now in (
        ("databases", _databases(old), _databases(new)),
        ("unregistered scripts", _unregistered(old), _unregistered(new)),
        ("placeholders bound to callers", _bindings(old), _bindings(new)),
        ("end dates", plain(dict(_ends(old))), plain(dict(_ends(new)))),
        ("legacy forms refused from", _refused_from(old), _refused_from(new)),
        ("secrets masked from", _masked_from(old), _masked_from(new)),
    ):
        if was != now:
            yield Change("policy", f"{what}: {now or 'none'}, was {was or 'none'}", (), was, now)
    before = {home.policy: home for home in old.homes}
    after = {home.policy: home for home in new.homes}
    if len(before) == len(after) == 1:  # one file, perhaps under another name
        yield from _changes_of_home("", old.homes[0], new.homes[0])
        return
    yield from _sets("policies", before, after)
    for name in before.keys() & after.keys():
        yield from _changes_of_home(f"{name}: ", before[name], after[name])


def _unregistered(policy: CompiledPolicy) -> str:
    defaults = dict.fromkeys(home.unregistered_scripts.default for home in policy.homes)
    return "; ".join((*defaults, *policy.unregistered_exceptions))


def _bindings(policy: CompiledPolicy) -> str:
    return "; ".join(sorted(one.described() for one in policy.bindings))


def _changes_of_home(whose: str, old: Home, new: Home) -> Iterator[Change]:
    yield from _sets(f"{whose}claims", old.claims, new.claims)
    yield from _sets(f"{whose}delegated claims", old.delegates, new.delegates)
    yield from _sets(f"{whose}only a should", old.should, new.should)
    for what, was, now in (
        ("keys of one command in one hash slot", _required(old.cluster), _required(new.cluster)),
        ("naming rules", plain(old.names), plain(new.names)),
        ("type words", plain(old.type_words), plain(new.type_words)),
        ("owner", old.owner, new.owner),
        ("contact", old.contact, new.contact),
        ("page", old.docs, new.docs),
    ):
        if was != now:
            yield Change("policy", f"{whose}{what}: {now or 'none'}, was {was or 'none'}", (), was, now)


def _databases(policy: CompiledPolicy) -> str:
    return "any" if policy.databases is None else ", ".join(map(str, sorted(policy.databases)))


def _required(flag: bool) -> str:
    return "required" if flag else "not required"


def _ends(policy: CompiledPolicy) -> Iterator[tuple[str, str]]:
    for number, (what, until) in enumerate(policy.exceptions):
        yield f"{what} {number + 1}", str(until)


def _refused_from(policy: CompiledPolicy) -> str:
    """Returns the days from which legacy forms with `on_expiry: refuse` are refused."""
    ends = {one.ends for one in policy.targets if one.kind == "legacy" and one.ends is not None}
    return ", ".join(map(_day_text, sorted(ends)))


def _day_text(seconds: float) -> str:
    return str(datetime.datetime.fromtimestamp(seconds, datetime.UTC).date())


def _masked_from(policy: CompiledPolicy) -> str:
    """Returns the lengths from which values of secret placeholders are masked."""
    secrets = () if policy.secrecy is None else policy.secrecy.secrets
    return ", ".join(counted(size, "byte") for size in sorted({one.shortest for one in secrets}))


def changes_of_grants(old: CompiledPolicy, new: CompiledPolicy) -> Iterator[Change]:
    """Yields changes of the keys on which grants hold.

    `Difference` compares the granted commands one by one.
    """
    for service in sorted({*_granted(old), *_granted(new)}):
        before, after = _granted(old).get(service, ""), _granted(new).get(service, "")
        if before != after:
            sentence = f"the grant to {service}: {after or 'none'}, was {before or 'none'}"
            yield Change("grants", sentence, (service,), before, after)


def _granted(policy: CompiledPolicy) -> dict[str, str]:
    return {
        policy.services[number]: "; ".join(map(_grant_text, grants))
        for number, grants in policy.grants.items()
    }


def _grant_text(grant: Grant) -> str:
    keys = [*map(printable, grant.texts), *(["legacy keys"] if grant.legacy else [])]
    channels = f" and the channels {', '.join(map(printable, grant.channels))}" if grant.channels else ""
    end = "" if grant.ends is None else f", refused from {_day_text(grant.ends)}"
    return f"{_joined(grant.selectors)} on {', '.join(keys) or 'no keys'}{channels}{end}"


def changes_of_scripts(old: CompiledPolicy, new: CompiledPolicy) -> Iterator[Change]:
    for what, left, right in (
        ("script", old.scripts, new.scripts),
        ("function", old.functions, new.functions),
    ):
        alike: dict[tuple[str, str], list[str]] = {}  # a library has hundreds of scripts
        for name in sorted({*left, *right}):
            before, after = left.get(name), right.get(name)
            was = "" if before is None else _registration_text(before)
            now = "" if after is None else _registration_text(after)
            if was != now:
                alike.setdefault((was, now), []).append(printable(name))
        for (was, now), names in alike.items():
            sentence = f"{what} {listed(names)}: {now or 'not registered'}, was {was or 'not registered'}"
            yield Change("scripts", sentence, (), was, now)


def _template_text(template: Template) -> str:
    ttl = "" if template.ttl is None else template.ttl.text
    parts = (("as", plain(template.types)), ("for", ttl), ("by", _joined(template.runs or ())))
    return " ".join([template.text, *(f"{word} {text}" for word, text in parts if text)])


def _registration_text(registration: Any) -> str:
    """Returns a registration in the words of the policy file."""
    values = {field.name: getattr(registration, field.name) for field in dataclasses.fields(registration)}
    for field in ("reads", "writes", "publishes"):
        values[field] = ", ".join(map(_template_text, values.get(field, ())))
    values["patterns"] = ", ".join(
        _with_classes(pattern.text, pattern) for pattern in values.get("patterns", ())
    )
    values["declared"] = _DECLARED[values["declared"]]
    del values["bound"]  # reported for the whole policy, as placeholders of callers
    runs = values.pop("runs")
    values["commands"] = "none" if runs == frozenset() else _joined(runs or ())
    return _mapping(values)


_DECLARED = {0: "none", READ: "read", WRITE: "write", READ | WRITE: "both"}
