"""Several policy files as one policy: each team's file speaks for its own part of the key space.

Rule: a key belongs to one file. Claims of two files never overlap; what no file claims belongs to the one
file without claims, if there is one. So no file can give or take rights on keys of another.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from keyfence.policy.compiled.policy import Home, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.services import UNKNOWN
from keyfence.policy.source.model import PolicyModel, UnregisteredScripts
from keyfence.policy.source.yaml import PathKey

from .context import CompilerContext
from .entries import is_bare
from .prefixes import beginnings

Key = TypeVar("Key")
Value = TypeVar("Value")
Scripts = Mapping[bytes, Registration]  # by the SHA-1s of their texts

# What must have one name over all files: it is what reports and waivers call it.
_NAMED = ("channels", "scripts", "functions")
# What may lie outside its file's claims, in the order in which it decides there.
_OUTSIDE = ("entry", "legacy", "stray")


def services_of(models: Iterable[PolicyModel]) -> tuple[str, ...]:
    """All services, in the order of the files; the one that nothing identifies is the last."""
    return (*dict.fromkeys(name for model in models for name in model.services), UNKNOWN)


def check_together(drafts: Sequence[CompilerContext], scripts: Sequence[Scripts]) -> None:
    """Notes what is wrong between files, each time in the later one, with the place in the earlier one.
    `scripts` are those that each file registers."""
    _check_claims(drafts)
    _check_scripts(drafts, scripts)
    for section in _NAMED:
        _check_names(drafts, section)
    _check_databases(drafts)
    _check_commands(drafts)


def home_of(context: CompilerContext, **more: Any) -> Home:
    """What a file says of all its keys."""
    model = context.model
    return Home(
        policy=model.policy,
        file=context.source.file,
        contact=model.owner.contact or model.owner.team,
        claims=tuple(model.claims),
        should=frozenset(model.should),
        cluster=model.cluster,
        **more,
    )


def common_home(homes: Sequence[Home]) -> Home:
    """What holds for keys, and for commands, that are no single file's: the catch-all's word where there is
    one; else the strictest of all files."""
    if len(homes) == 1:
        return homes[0]
    found = next((home for home in homes if not home.claims), None)
    if found is not None:
        return found
    contacts = dict.fromkeys(home.contact for home in homes if home.contact)
    return Home(
        policy="",
        file="",
        contact=" or ".join(contacts),
        claims=(),
        should=frozenset.intersection(*(home.should for home in homes)),
        cluster=any(home.cluster for home in homes),
    )


def in_order(parts: Sequence[tuple[Home, Sequence[Target]]]) -> list[Target]:
    """The targets of all files in the order in which they decide, each with its file's number.

    A legacy form that isn't under its file's claims speaks for keys that no file claims, and only there; so
    does an entry that is one key without a prefix.
    Entries of one name in several files, as `lock`, are told apart by their policy: `shop/lock`.
    """
    named = Counter(name for _, targets in parts for name in {one.name for one in targets if one.entry})
    stamped = [
        (home, [_at_home(target, number, home, named) for target in targets])
        for number, (home, targets) in enumerate(parts)
    ]
    if len(stamped) == 1:
        return stamped[0][1]
    claimed = [(home, targets) for home, targets in stamped if home.claims]
    rest = [targets for home, targets in stamped if not home.claims]
    inside = [[one for one in targets if not _is_outside(one, home)] for home, targets in claimed]
    outside = [one for home, targets in claimed for one in targets if _is_outside(one, home)]
    outside.sort(key=lambda one: (_OUTSIDE.index(one.kind), one.pattern.specificity))
    return list(itertools.chain(*inside, outside, *rest))


def merged(maps: Iterable[Mapping[Key, Value]]) -> dict[Key, Value]:
    """One map of several that share no key, or of which the first counts."""
    found: dict[Key, Value] = {}
    for one in maps:
        for key, value in one.items():
            found.setdefault(key, value)
    return found


def strictest(words: Iterable[UnregisteredScripts]) -> UnregisteredScripts:
    """What holds where each file says what a script may do that no registration covers."""
    return max(words, key=get_args(UnregisteredScripts).index)


def _at_home(target: Target, number: int, home: Home, named: Mapping[str, int]) -> Target:
    target = dataclasses.replace(target, home=number, should=target.should | home.should)
    if target.entry is None or named[target.name] < 2:
        return target
    name = f"{home.policy}/{target.name}"
    return dataclasses.replace(target, name=name, entry=dataclasses.replace(target.entry, name=name))


def _is_outside(target: Target, home: Home) -> bool:
    beginning = target.pattern.literal_prefix.decode("utf-8", "surrogateescape")
    return target.kind in _OUTSIDE and not beginning.startswith(home.claims)


def _check_claims(drafts: Sequence[CompilerContext]) -> None:
    catch_all: CompilerContext | None = None
    for context in drafts:
        if context.model.claims:
            continue
        if catch_all is not None:
            first = catch_all.source.place(("policy",))
            message = f"no claims: {first.file} has none either, and one file only can speak for the rest"
            context.error(("policy",), message)
        catch_all = catch_all or context
    _check_overlaps(drafts)
    _check_bare_keys(drafts)


def _check_bare_keys(drafts: Sequence[CompilerContext]) -> None:
    """Keys without a prefix that lie outside their file's claims, and belong to another file too."""
    claims = {claim: (context, path) for context in drafts for path, claim in _claims(context)}
    first: dict[bytes, tuple[CompilerContext, str]] = {}
    for context in drafts:
        for target in context.entries:
            if not is_bare(target.pattern):
                continue
            key = target.pattern.literal_prefix
            text, path = key.decode("utf-8", "surrogateescape"), ("keys", target.name, "key")
            claim = next(beginnings(text, claims), "")
            other, there = claims[claim] if claim else (context, path)
            if other is not context:
                place = other.source.place(there)
                told = f"{text!r} is in the claim {claim!r} of {place.file}:{place.line}"
                context.error(path, f"{told}; register it there")
            other, name = first.setdefault(key, (context, target.name))
            if other is not context:
                place = other.source.place(("keys", name, "key"))
                context.error(path, f"{text!r} is also an entry's key in {place.file}:{place.line}")


def _check_overlaps(drafts: Sequence[CompilerContext]) -> None:
    """Claims of two files of which one begins as the other does. In order, what begins with a claim stands
    right behind it, so that each is compared with few others."""
    ordered = sorted(
        (claim, number, path) for number, context in enumerate(drafts) for path, claim in _claims(context)
    )
    open_ones: list[tuple[str, int, PathKey]] = []  # each begins as the one before it
    for one in ordered:
        while open_ones and not one[0].startswith(open_ones[-1][0]):
            open_ones.pop()
        for other in open_ones:
            if one[1] != other[1]:
                (mine, number, left), (theirs, later, right) = sorted((one, other), key=lambda each: each[1])
                place = drafts[number].source.place(left)
                message = f"the claim {theirs!r} overlaps {mine!r} of {place.file}:{place.line}; divide them"
                drafts[later].error(right, f"{message}, so that each key is one file's")
        open_ones.append(one)


def _claims(context: CompilerContext) -> Iterator[tuple[PathKey, str]]:
    for index, claim in enumerate(context.model.claims):
        yield ("claims", index), claim


def _check_names(drafts: Sequence[CompilerContext], section: str) -> None:
    seen: dict[str, CompilerContext] = {}
    for context in drafts:
        for name in getattr(context.model, section):
            first = seen.setdefault(name, context)
            if first is not context:
                place = first.source.place((section, name), of_key=True)
                message = f"{name} is also the name of one of {section} in {place.file}:{place.line}"
                context.error((section, name), f"{message}; reports couldn't tell them apart", of_key=True)


def _check_scripts(drafts: Sequence[CompilerContext], scripts: Sequence[Scripts]) -> None:
    """One script, such as the release of a lock, may be in several files where they say the same of it: it
    touches nothing but the keys that it declares, and goes by the first file's name."""
    first: dict[bytes, tuple[CompilerContext, Registration]] = {}
    for context, known in zip(drafts, scripts, strict=True):
        for sha1, mine in known.items():
            other, theirs = first.setdefault(sha1, (context, mine))
            if dataclasses.replace(theirs, name=mine.name) != mine:
                told, remedy = "says something else of its keys", "let both say the same"
            elif mine.name != theirs.name and mine.name in _writers_by_script(context):
                told, remedy = "stands under written_by", "register it in one file"
            else:
                continue
            place = other.source.place(("scripts", theirs.name), of_key=True)
            message = (
                f"{mine.name} has the same SHA-1 as {theirs.name} in {place.file}:{place.line}, and {told}"
            )
            context.error(("scripts", mine.name), f"{message}; {remedy}", of_key=True)


def _writers_by_script(context: CompilerContext) -> set[str]:
    model = context.model
    scopes = (name for one in model.scopes.values() for name in one.written_by)
    return {*scopes, *(name for one in model.keys.values() for name in one.written_by)}


def _check_databases(drafts: Sequence[CompilerContext]) -> None:
    given = [context for context in drafts if context.model.databases is not None]
    for context in given[1:]:
        if set(context.model.databases or ()) != set(given[0].model.databases or ()):
            place = given[0].source.place(("databases",))
            message = f"the databases are others in {place.file}:{place.line}; the files are about one Redis"
            context.error(("databases",), message)


def _check_commands(drafts: Sequence[CompilerContext]) -> None:
    _against(drafts, lambda context: context.model.commands.allow, "allow", "forbid")
    _against(drafts, lambda context: context.model.commands.forbid, "forbid", "allow")


def _against(
    drafts: Sequence[CompilerContext],
    names: Callable[[CompilerContext], Sequence[str]],
    word: str,
    opposite: str,
) -> None:
    """What an earlier file allows and a later one forbids, or the other way."""
    for one, other in itertools.combinations(drafts, 2):
        mine = {name.upper(): index for index, name in enumerate(names(one))}
        for index, name in enumerate(getattr(other.model.commands, opposite)):
            if name.upper() in mine:
                place = one.source.place(("commands", word, mine[name.upper()]))
                message = f"{name} is under commands.{word} in {place.file}:{place.line}; it can't be both"
                other.error(("commands", opposite, index), message)
