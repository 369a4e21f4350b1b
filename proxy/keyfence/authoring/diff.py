"""The difference between two policies: one sentence per change, with an example key.

Rule: rights on keys are compared over both policies' automata, so a change is reported exactly if some key
shows it. Everything else is compared as text. That includes naming rules and the keys of grants, which are
globs and may overlap anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from typing import Any

from keyfence.commands.extract import extract
from keyfence.commands.model import DELETE, GROUP, READ, WRITE, Access, Touches
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.names import Names
from keyfence.policy.compiled.policy import CompiledPolicy, Entry, Home, Target
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.patterns.product import NOTHING, Product
from keyfence.policy.rules import rules_with
from keyfence.policy.services import UNKNOWN
from keyfence.policy.show import printable
from keyfence.policy.units import size_text
from keyfence.policy.wording.masking import shown_in

from .diff_text import (
    Change,
    Pair,
    changes_of_grants,
    changes_of_policy,
    changes_of_scripts,
    listed,
    plain,
    texts_change,
)

_NO_COMMAND = b"\0"  # a name that no server has
# What a command can do to a key, by name.
NEEDS: dict[str, int] = {
    "read": READ,
    "write": WRITE,
    "delete": WRITE | DELETE,
    "consumer groups": WRITE | GROUP,
}
# The rules that depend only on the key, the service and the access. All others depend on further arguments.
ACCESS_RULES = frozenset((*rules_with("rights"), *rules_with("form")))


# The change of rights for each of NEEDS, and perhaps again for other callers; "" if nothing changes.
Clauses = tuple[str, ...]


class Difference:
    """All changes from `old` to `new`.

    Raises `set_operations.TooLarge` if the policies are too large to compare.
    """

    def __init__(self, old: CompiledPolicy, new: CompiledPolicy) -> None:
        self.old = old
        self.new = new
        known = [name for name in (*old.services, *new.services) if name != UNKNOWN]
        self.services = (*dict.fromkeys(known), UNKNOWN)
        self.changes = [
            *changes_of_policy(old, new),
            *self._catalogue(),
            *self._rights(),
            *self._content(),
            *self._channels(),
            *self._commands(),
            *changes_of_grants(old, new),
            *changes_of_scripts(old, new),
        ]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def covers(self, service: str, key: bytes) -> bool:
        """Returns whether some reported change of rights covers this service and this key."""
        pair = self.old.classifier.first(key), self.new.classifier.first(key)
        return any(
            service in change.services and pair in change.pairs
            for change in self.changes
            if change.section == "rights"
        )

    # -- keys

    @cached_property
    def _places(self) -> dict[Pair, bytes]:
        return differing_places(self.old, self.new)

    def _targets(self, pair: Pair) -> tuple[Target | None, Target | None]:
        one, other = pair
        return (
            None if one == NOTHING else self.old.targets[one],
            None if other == NOTHING else self.new.targets[other],
        )

    def _rights(self) -> Iterator[Change]:
        before, after = _AccessRules(self.old), _AccessRules(self.new)
        groups: dict[tuple[tuple[str, Clauses], ...], list[Pair]] = {}  # (service, clauses) … → where
        for pair, key in self._places.items():
            cells = tuple(
                (service, clauses)
                for service in self.services
                if any(clauses := self._clauses(before, after, service, pair, key))
            )
            if cells:
                groups.setdefault(cells, []).append(pair)
        changes: list[Change] = []
        for cells, pairs in groups.items():
            by_clauses: dict[Clauses, list[str]] = {}
            for service, clauses in cells:
                by_clauses.setdefault(clauses, []).append(service)
            for clauses, services in by_clauses.items():
                changes.append(self._change_of_rights(services, clauses, sorted(pairs, key=self._rank)))
        # Changes that neither give nor take a right, but break another rule, come last.
        yield from sorted(changes, key=lambda one: "loses" not in one.after and "gains" not in one.after)

    def _clauses(
        self, before: _AccessRules, after: _AccessRules, service: str, pair: Pair, key: bytes
    ) -> Clauses:
        """Returns the changes for the caller whose key it is, then those for other callers."""
        own = tuple(_clause(before, after, service, key, needs) for needs in NEEDS.values())
        if not any(one is not None and one.tenancy is not None for one in self._targets(pair)):
            return own
        others = tuple(_clause(before, after, service, key, needs, own=False) for needs in NEEDS.values())
        if any(own):  # which rule another caller breaks matters less than what it gains or loses
            others = tuple("" if one.startswith("breaks") else one for one in others)
        return (*own, *others)

    def _change_of_rights(self, services: list[str], clauses: Clauses, pairs: list[Pair]) -> Change:
        example, where = self._shown(pairs[0]), self._places_text(pairs)
        parts, after = [], []
        for at, place in ((0, where), (len(NEEDS), f"other callers' keys of {where}")):
            mine = dict(zip(NEEDS, clauses[at : at + len(NEEDS)], strict=False))
            for clause in dict.fromkeys(filter(None, mine.values())):
                verb, _, rest = clause.partition(" ")
                verb = verb if len(services) == 1 else verb.removesuffix("s")
                rights = _rights_text([name for name, one in mine.items() if one == clause])
                parts.append(
                    f"{verb} {rest} with {rights} on {place}" if rest else f"{verb} {rights} on {place}"
                )
            whose = " of other callers" if at else ""
            after += [f"{name}{whose}: {one}" for name, one in mine.items() if one]
        sentence = f"{listed(services, 8)} {'; '.join(parts)}"
        return Change(
            "rights",
            f"{sentence}, for example {example}",
            tuple(services),
            "",
            "; ".join(after),
            example,
            frozenset(pairs),
        )

    def _rank(self, pair: Pair) -> tuple[int, str]:
        """Returns a sort key that puts the most specific places first: entries before scopes and claims."""
        target = self._most_specific(pair)
        return (_KINDS.index(target.kind), target.text) if target is not None else (len(_KINDS), "")

    def _most_specific(self, pair: Pair) -> Target | None:
        """Returns the more specific of the two targets; None if there is none."""
        found = [target for target in reversed(self._targets(pair)) if target is not None]
        return min(found, key=lambda target: _KINDS.index(target.kind), default=None)

    def _places_text(self, pairs: Sequence[Pair]) -> str:
        entries = {
            target.name for pair in pairs if (target := self._most_specific(pair)) and target.kind == "entry"
        }
        texts = dict.fromkeys(
            _place_text(target)
            for pair in pairs
            if (target := self._most_specific(pair)) is None
            or target.kind != "malformed"
            or target.name not in entries
        )
        return listed(list(texts))

    def _shown(self, pair: Pair) -> str:
        key = self._places[pair]
        old, new = self._targets(pair)
        return shown_in(self.new, key, new) if new is not None else shown_in(self.old, key, old)

    def _catalogue(self) -> Iterator[Change]:
        """Yields entries and legacy forms that are new, gone, or have another key."""
        for kind, section in (("entry", "entry"), ("legacy", "legacy form")):
            old, new = _by_name(self.old, kind), _by_name(self.new, kind)
            for name in dict.fromkeys((*old, *new)):
                before, after = old.get(name, []), new.get(name, [])
                gone = [one.text for one in before if one.text not in {other.text for other in after}]
                come = [one.text for one in after if one.text not in {other.text for other in before}]
                if gone or come:
                    example = printable((after or before)[0].pattern.example())
                    yield texts_change("catalogue", f"{section} {name}", gone, come, example)
        before_forms, after_forms = _instead(self.old), _instead(self.new)
        for text in dict.fromkeys((*before_forms, *after_forms)):
            was, now = before_forms.get(text, []), after_forms.get(text, [])
            if was != now:
                yield texts_change("catalogue", f"the form to use instead of {text}", was, now)

    def _content(self) -> Iterator[Change]:
        """Yields changes of entries' requirements beyond rights and form."""
        reported: set[tuple[str, str, str, str]] = set()
        for pair, key in self._places.items():
            old, new = self._targets(pair)
            if old is None or new is None or old.kind != new.kind or old.kind not in ("entry", "scope"):
                continue
            for what, was, now, words in self._changes_between(old, new):
                name = new.name or old.name
                if (name, what, was, now) in reported:
                    continue
                reported.add((name, what, was, now))
                example = shown_in(self.new, key, new)
                yield Change("content", f"{name}: {words}, for example {example}", (), was, now, example)

    def _changes_between(self, old: Target, new: Target) -> Iterator[tuple[str, str, str, str]]:
        """Yields what is different between two targets beyond rights and form: (what, was, now, words)."""
        before, after = _requirements(old.entry), _requirements(new.entry)
        for what in dict.fromkeys((*before, *after)):
            was, now = before.get(what, ""), after.get(what, "")
            if was != now:
                yield what, was, now, f"{what.replace('_', ' ')} {_from_to(was, now)}"
        # A rule that becomes a should in the whole file is a change of the policy.
        of_file = self.old.home(old).should ^ self.new.home(new).should
        settings = _settings(new, self.new)
        for what, found in _settings(old, self.old).items():
            left, right = found - of_file, settings[what] - of_file
            if left != right:
                was, now = ", ".join(sorted(left)), ", ".join(sorted(right))
                yield what, was, now, f"{what}: {now or 'none'}, was {was or 'none'}"

    # -- channels and commands

    def _channels(self) -> Iterator[Change]:
        old, new = self.old, self.new
        left, right = (
            [_meaning(one, old) for one in old.channels],
            [_meaning(one, new) for one in new.channels],
        )
        walk = Product(old.channel_classifier, new.channel_classifier)
        for (one, other), name in walk.pairs(lambda i, j: left[i] == right[j]):
            before = None if one == NOTHING else old.channels[one]
            after = None if other == NOTHING else new.channels[other]
            target = after if after is not None and after.kind == "channel" else before
            if target is None or target.kind != "channel":
                continue
            for verb, right_bit in (("subscribe to", READ), ("publish to", WRITE)):
                had = {one for one in self.services if _may(before, old.number(one), right_bit)}
                has = {one for one in self.services if _may(after, new.number(one), right_bit)}
                for who, may in _changed(self.services, had, has):
                    example = printable(name)
                    sentence = f"{', '.join(who)} {may} {verb} {target.text}, for example {example}"
                    yield Change("channels", sentence, tuple(who), example=example)
            yield from self._publishing_scripts(before, after, printable(name))

    def _publishing_scripts(
        self, before: Target | None, after: Target | None, example: str
    ) -> Iterator[Change]:
        """Which scripts alone may publish on a channel that is in both policies."""
        if before is None or after is None or before.written_by == after.written_by:
            return
        was, now = (", ".join(sorted(one.written_by)) for one in (before, after))
        who = f"only {now} may publish" if now else "plain commands may publish"
        sentence = f"{who} to {after.text}, for example {example}"
        publishers = tuple(after.names_with(WRITE, self.new.services))
        yield Change("channels", sentence, publishers, was, now, example)

    def _commands(self) -> Iterator[Change]:
        """Which commands become open or closed to whom."""
        if _selectors(self.old) == _selectors(self.new):
            return
        old, new = Evaluator(self.old), Evaluator(self.new)
        rows = [row.command for one in COMMANDS.values() for row in (one, *one.subcommands.values())]
        every = [(one.name, [one.name.encode()], Touches(one)) for one in rows]
        every.insert(0, ("commands that keyfence does not know", [_NO_COMMAND], extract([_NO_COMMAND])))
        groups: dict[tuple[str, ...], list[str]] = {}
        for service in self.services:
            had, has = (
                {
                    name
                    for name, argv, touches in every
                    if one.evaluate(Asker(one.policy.number(service)), argv, touches).allowed
                }
                for one in (old, new)
            )
            for names, may in _changed([name for name, *_ in every], had, has):
                groups.setdefault((may, *names), []).append(service)
        for (may, *names), services in groups.items():
            sentence = f"{', '.join(services)} {may} use {listed(names, 12)}"
            yield Change("commands", sentence, tuple(services), after=", ".join(names))


def differing_places(old: CompiledPolicy, new: CompiledPolicy) -> dict[Pair, bytes]:
    """Returns each pair of targets that decide a common key but differ in meaning, with such a key. Raises
    `set_operations.TooLarge`."""
    left = [_meaning(target, old) for target in old.targets]
    right = [_meaning(target, new) for target in new.targets]
    walk = Product(old.classifier, new.classifier)
    return dict(walk.pairs(lambda one, other: left[one] == right[other]))


def _changed(of: Iterable[str], had: Set[str], has: Set[str]) -> Iterator[tuple[list[str], str]]:
    """Yields the names that lost something and those that gained it, in their order, with how to say so."""
    names = list(of)
    for changed, may in ((had - has, "may no longer"), (has - had, "may now")):
        if changed:
            yield [one for one in names if one in changed], may


class _AccessRules:
    """Finds which rules of ACCESS_RULES a plain command breaks on a key, apart from grants."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self.policy = policy
        homes = tuple(map(_bare, policy.homes))
        bare = dataclasses.replace(policy, grants={}, homes=homes, common=_bare(policy.common))
        self._evaluator = Evaluator(bare)

    def rules(self, service: str, key: bytes, needs: int, *, own: bool = True) -> tuple[str, ...]:
        """`own`: the key's values of bound placeholders are the caller's; else it has none of them."""
        touches = Touches(None, (Access(1, key, needs),))
        asker = Asker(self.policy.number(service), self.policy.owners_values([key]) if own else ())
        verdict = self._evaluator.evaluate(asker, [b"X", key], touches)
        return tuple(one.rule for one in verdict.violations if one.rule in ACCESS_RULES)


def _bare(home: Home) -> Home:
    """Returns a file's settings with only the checks that depend on the key, the service and the access."""
    return dataclasses.replace(home, cluster=False, names=Names(), type_words={})


def access_rules(policy: CompiledPolicy) -> Callable[[str, bytes, int], tuple[str, ...]]:
    """Returns a function (service, key, needs) → the broken ones of ACCESS_RULES. Tests use it."""
    return _AccessRules(policy).rules


def _clause(
    before: _AccessRules, after: _AccessRules, service: str, key: bytes, needs: int, *, own: bool = True
) -> str:
    """Describes the change of one kind of access: loses, gains, breaks … in place of …; "" for none."""
    was, now = (one.rules(service, key, needs, own=own) for one in (before, after))
    if was == now:
        return ""
    lost, found = set(was) - set(now), set(now) - set(was)
    if not was or (not lost and found <= _RIGHTS):
        return "loses"
    if not now or (not found and lost <= _RIGHTS):
        return "gains"
    return f"breaks {' and '.join(now)} in place of {' and '.join(was)}"


_RIGHTS = set(rules_with("rights")) - set(rules_with("form"))


def _rights_text(names: Sequence[str]) -> str:
    """Returns rights as text, `read and write`. Write includes deleting and consumer groups."""
    if "write" in names:
        names = [name for name in names if name in ("read", "write")]
    return " and ".join(names)


_KINDS = ("entry", "legacy", "stray", "malformed", "scope", "claim", "channel", "keyspace", "keyevent")


def _place_text(target: Target | None) -> str:
    if target is None:
        return "keys that no claim covers"
    return {
        "entry": f"{target.name} ({target.text})",
        "legacy": f"the legacy form {target.text}",
        "malformed": f"malformed keys of {target.name}",
        "claim": f"keys of {target.text} in no scope",
    }.get(target.kind, target.text)


def _meaning(target: Target, policy: CompiledPolicy) -> Any:
    """Returns everything that decides about a target's keys, so that equal meanings are equal values."""
    rights = dict(zip(policy.services, zip(target.rights, target.denied, strict=True), strict=False))
    forms = (target.standard, dict(zip(policy.services, target.own_forms, strict=False)))
    tenancy = target.tenancy
    whose = tenancy and (
        sorted(policy.bindings[place.binding].described() for place in tenancy.places),
        dict(zip(policy.services, tenancy.reading, strict=False)),
    )
    bound = (target.bound, target.alike, whose)
    others = (_settings(target, policy), *bound, *forms)
    return (
        target.kind,
        target.name,
        target.pattern,
        rights,
        target.is_open,
        *others,
        _requirements(target.entry),
    )


def _settings(target: Target, policy: CompiledPolicy) -> dict[str, frozenset[str]]:
    """Returns the settings of a target beside rights, form and requirements, in the words of a change."""
    hash_tag = frozenset() if target.hash_tag == "any" else frozenset({target.hash_tag})
    return {
        "rules that only report": target.should,
        "only these scripts write": target.written_by,
        "hash tag": hash_tag,
        "secret placeholders": target.secrets,
        "no grant gives": frozenset(_denied_despite_grants(target, policy)),
    }


def _denied_despite_grants(target: Target, policy: CompiledPolicy) -> Iterator[str]:
    for number in policy.grants:
        for name, right in (("read", READ), ("write", WRITE)):
            if target.denied[number] & right:
                yield f"{name} to {policy.services[number]}"


def _requirements(entry: Entry | None) -> dict[str, str]:
    """Returns an entry's requirements beyond rights and form: attribute → text, without empty ones."""
    if entry is None:
        return {}
    skipped = {"name", "text", "is_plain", "maxlen_exact"}
    names = [one.name for one in dataclasses.fields(entry) if one.compare and one.name not in skipped]
    found = {name: text for name in names if (text := plain(getattr(entry, name)))}
    if entry.max_value is not None:
        found["max_value"] = size_text(entry.max_value)
    if entry.maxlen is not None:
        found["maxlen"] = f"{'' if entry.maxlen_exact else '~'}{entry.maxlen}"
    return found


def _from_to(was: str, now: str) -> str:
    if not was:
        return f"is required now ({now})"
    return f"is {now}, was {was}" if now else f"is no longer required (was {was})"


def _may(target: Target | None, service: int, right: int) -> bool:
    return target is not None and target.kind == "channel" and bool(target.rights[service] & right)


def _selectors(policy: CompiledPolicy) -> Any:
    """Returns everything that decides which service may use which command."""
    grants = {
        policy.services[number]: [grant.selectors for grant in grants]
        for number, grants in policy.grants.items()
    }
    return policy.forbid, policy.allow, grants


def _by_name(policy: CompiledPolicy, kind: str) -> dict[str, list[Target]]:
    found: dict[str, list[Target]] = {}
    for target in policy.targets:
        if target.kind == kind:
            found.setdefault(target.name, []).append(target)
    return found


def _instead(policy: CompiledPolicy) -> dict[str, list[str]]:
    """Returns the forms under `instead`: text → the form to use."""
    found: dict[str, list[str]] = {}
    for target in policy.targets:
        if target.kind == "stray" and target.standard is not None:
            found.setdefault(target.text, []).append(target.standard.text)
    return found
