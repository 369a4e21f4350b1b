"""The fleet as one picture: the health of each instance, and what differs between instances and environments.

Rule: no I/O, and one picture for the command line, the page and programs. A line that tells of a fault has
`is_wrong`; that two environments differ is none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from keyfence.policy.rules import RULES
from keyfence.policy.units import clock_text, counted, named, plural

from .finding import ACTIVE, State
from .instances import EVERY_OTHER, Found, Instance
from .spans import span_text

SILENT_SECONDS = 30.0  # an instance reports each few seconds
_VERBS = {
    "enforce": ("enforces", "enforce"),
    "observe": ("observes", "observe"),
    "disabled": ("disables", "disable"),
}


class Line(NamedTuple):
    """A sentence about the fleet."""

    text: str
    is_wrong: bool = False


class Difference(NamedTuple):
    """A rule whose mode is not the same in all environments that run a policy."""

    policy: str
    rule: str
    service: str  # "*": all that have no row of their own
    modes: dict[str, str]  # by environment


class Known(NamedTuple):
    """What one findings store has: its instances, the number of its findings by state, and what instances say
    of the fleet's candidate."""

    instances: Sequence[Instance]
    states: Mapping[State, int]
    comparisons: Sequence[Found] = ()


def fleet_of(stores: Iterable[Known], now: float) -> dict[str, Any]:
    """The picture of all instances of some stores, as plain values for JSON."""
    stores = list(stores)
    every = [one for store in stores for one in store.instances]
    found = sorted(every, key=lambda one: (one.environment, one.name, one.started))
    alive = [one for one in found if not is_silent(one, now)]
    differences = _differences(alive)
    lines = [
        *_troubles(found, now),
        *_revisions(alive, now),
        *_between(alive, now),
        *_within(alive),
        *_by_mode(differences),
        *_findings(stores),
        *_versions(alive),
        *_glass(alive, now),
    ]
    return {
        "now": now,
        "healthy": not any(one.is_wrong for one in lines),
        "instances": [_shown(one, now) for one in found],
        "differences": [one._asdict() for one in differences],
        "stores": [
            {
                "environments": _environments(one),
                "states": {str(state): one.states.get(state, 0) for state in State},
            }
            for one in stores
        ],
        "lines": [one._asdict() for one in lines],
    }


def short_time(at: float, now: float) -> str:
    """A time in UTC: of today the hour, else the day too."""
    text = clock_text(at)
    return text[11:16] if text[:10] == clock_text(now)[:10] else text[:16]


def environment_name(name: str) -> str:
    return name or "the unnamed environment"


# -- instances


def is_silent(one: Instance, now: float) -> bool:
    return now - one.last > SILENT_SECONDS


def _health(one: Instance, now: float) -> str:
    if is_silent(one, now):
        return "silent"
    return "ok" if one.source == "fresh" else one.source


def _shown(one: Instance, now: float) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in Instance.__dataclass_fields__}
    modes = _modes(one)
    said = {
        "modes": modes["rules"],
        "break_glass": modes["glass"],
        "waivers": modes["waivers"],
        "modes_are_part": modes["is_part"],
    }
    return {**values, **said, "health": _health(one, now)}


def _modes(one: Instance) -> Mapping[str, Any]:
    """The modes of an instance, as `process.reporting` describes them."""
    return _parsed(one.modes)


@lru_cache(maxsize=64)
def _parsed(text: str) -> Mapping[str, Any]:
    return {"rules": {}, "glass": [], "waivers": 0, "is_part": False, **json.loads(text)}


def _troubles(found: Iterable[Instance], now: float) -> Iterable[Line]:
    for one in found:
        if is_silent(one, now):
            ago = span_text(now - one.last)
            yield Line(f"{one.name}{_of(one)} is silent: it was last heard of {ago} ago", is_wrong=True)
        elif one.reason:
            yield Line(f"{one.name}{_of(one)}: {one.reason}", is_wrong=True)


def _of(one: Instance) -> str:
    return f" ({one.environment})" if one.environment else ""


def _glass(alive: Iterable[Instance], now: float) -> Iterable[Line]:
    for one in alive:
        for glass in _modes(one)["glass"]:
            if glass["until"] > now:
                what = f"violations of {glass['rule'] or 'every rule'}"
                by = f" by {glass['service']}" if glass["service"] else ""
                until = short_time(glass["until"], now)
                yield Line(f"{one.name}{_of(one)}: break-glass is open until {until}: {what}{by} pass")


# -- what they run


def _grouped(alive: Iterable[Instance]) -> dict[tuple[str, str], list[Instance]]:
    """The instances with a policy, by policy and environment."""
    groups: dict[tuple[str, str], list[Instance]] = {}
    for one in alive:
        if one.policy:
            groups.setdefault((one.policy, one.environment), []).append(one)
    return dict(sorted(groups.items()))


def _revisions(alive: Iterable[Instance], now: float) -> Iterable[Line]:
    """Instances of one environment that run different revisions of a policy."""
    for (policy, environment), group in _grouped(alive).items():
        numbers = Counter(one.revision for one in group)
        if len(numbers) > 1:
            parts = [
                f"{number}{f' of {len(group)}' if not at else ''} {plural(number, 'runs', 'run')} "
                f"{_revision(group, revision)} since {short_time(_since(group, revision), now)}"
                for at, (revision, number) in enumerate(numbers.most_common())
            ]
            yield Line(f"{_in(environment)}policy {policy}: {', '.join(parts)}", is_wrong=True)


def _in(environment: str) -> str:
    return f"{environment}, " if environment else ""


def _revision(group: Iterable[Instance], revision: str) -> str:
    sequence = max(one.sequence for one in group if one.revision == revision)
    return f"{revision} (sequence {sequence})" if sequence else revision


def _since(group: Iterable[Instance], revision: str) -> float:
    return min(one.loaded for one in group if one.revision == revision)


def _between(alive: Iterable[Instance], now: float) -> Iterable[Line]:
    """Environments that run different revisions of a policy."""
    by_policy: dict[str, dict[str, list[Instance]]] = {}
    for (policy, environment), group in _grouped(alive).items():
        by_policy.setdefault(policy, {})[environment] = group
    for policy, groups in by_policy.items():
        most = {name: Counter(one.revision for one in group) for name, group in groups.items()}
        revisions = {name: numbers.most_common(1)[0][0] for name, numbers in most.items()}
        if len(set(revisions.values())) > 1:
            parts = [
                f"{environment_name(name)} runs {_revision(groups[name], revision)} since "
                f"{short_time(_since(groups[name], revision), now)}"
                for name, revision in revisions.items()
            ]
            yield Line(f"policy {policy}: {', '.join(parts)}")


def _environments(store: Known) -> list[str]:
    return sorted({one.environment for one in store.instances})


def _findings(stores: Sequence[Known]) -> Iterable[Line]:
    """What is found in each environment. Findings are the store's, so of several stores each is told."""
    for store in stores:
        if active := sum(number for state, number in store.states.items() if state in ACTIVE):
            names = [environment_name(one) for one in _environments(store) if one or len(stores) > 1]
            of = f"{named(names)}: " if names else ""
            fresh = store.states.get(State.NEW, 0) + store.states.get(State.REOPENED, 0)
            text = f"{of}{counted(active, 'finding')} {plural(active, 'is', 'are')} active"
            yield Line(f"{text}, {fresh} of them new or reopened" if fresh else text)


def _versions(alive: Iterable[Instance]) -> Iterable[Line]:
    numbers = Counter(one.version for one in alive)
    if len(numbers) > 1:
        parts = [
            f"{counted(number, 'instance')} {plural(number, 'is', 'are')} keyfence {version}"
            for version, number in numbers.most_common()
        ]
        yield Line(", ".join(parts))


# -- modes


def _differences(alive: Iterable[Instance]) -> list[Difference]:
    """The rules whose modes differ between environments. Of an environment, the mode of most instances."""
    by_policy: dict[str, dict[str, list[Mapping[str, Mapping[str, str]]]]] = {}
    for (policy, environment), group in _grouped(alive).items():
        by_policy.setdefault(policy, {})[environment] = [_modes(one)["rules"] for one in group]
    found: list[Difference] = []
    for policy, environments in by_policy.items():
        every = [rules for group in environments.values() for rules in group]
        for rule in dict.fromkeys(name for rules in every for name in rules):
            for service in dict.fromkeys([EVERY_OTHER, *(one for r in every for one in r.get(rule, {}))]):
                modes = {name: _most(group, rule, service) for name, group in environments.items()}
                if len(set(modes.values())) > 1:
                    found.append(Difference(policy, rule, service, modes))
    return found


def _mode(rules: Mapping[str, Mapping[str, str]], rule: str, service: str) -> str:
    by_service = rules.get(rule, {})
    return by_service.get(service, by_service.get(EVERY_OTHER, "not known"))


def _most(group: Iterable[Mapping[str, Mapping[str, str]]], rule: str, service: str) -> str:
    return Counter(_mode(rules, rule, service) for rules in group).most_common(1)[0][0]


def _by_mode(differences: Iterable[Difference]) -> Iterable[Line]:
    """One sentence for the rules and services that differ in the same way."""
    services: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for one in differences:
        services.setdefault((one.rule, tuple(one.modes.items())), []).append(one.service)
    rules: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], list[str]] = {}
    for (rule, modes), found in services.items():
        rules.setdefault((tuple(dict.fromkeys(found)), modes), []).append(rule)
    for (of, modes), names in rules.items():
        whose = "" if EVERY_OTHER in of else f", for {named(of)}"
        yield Line(_compared(dict(modes), names) + whose)


def _compared(modes: Mapping[str, str], rules: Sequence[str]) -> str:
    """What environments do with some rules: `staging enforces a and b, prod observes them`."""
    environments: dict[str, list[str]] = {}
    for name, mode in modes.items():
        environments.setdefault(mode, []).append(environment_name(name))
    parts: list[str] = []
    for mode in sorted(environments, key=lambda one: (one not in _VERBS, one != "enforce", one)):
        names = environments[mode]
        verb = plural(len(names), *_VERBS.get(mode, ("does not know", "do not know")))
        all_of_them = "every rule" if set(rules) >= RULES.keys() else named(rules)
        what = plural(len(rules), "it", "them") if parts else all_of_them
        parts.append(f"{named(names)} {verb} {what}")
    return ", ".join(parts)


def _within(alive: Iterable[Instance]) -> Iterable[Line]:
    """Instances of one environment with different modes."""
    for (_, environment), group in _grouped(alive).items():
        texts = Counter(json.dumps(_modes(one)["rules"], sort_keys=True) for one in group)
        if len(texts) == 1:
            continue
        most = json.loads(texts.most_common(1)[0][0])
        others = {one.name: _modes(one)["rules"] for one in group if _modes(one)["rules"] != most}
        rules = sorted({rule for modes in others.values() for rule in modes if modes[rule] != most.get(rule)})
        has = f"{named(list(others))} {plural(len(others), 'has', 'have')}"
        yield Line(f"{_in(environment)}{has} other modes than most, of {named(rules)}")
