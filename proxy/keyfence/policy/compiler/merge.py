"""Merges several policy files into one policy: each team's file rules its own part of the key space.

Rule: a key belongs to one file: the one with the longest claim that the key begins with. A key that no file
claims belongs to the one file without claims, if there is one. So no file can give or take rights on keys of
another, and the order of the files does not matter.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from keyfence.policy.compiled.policy import Home, Target
from keyfence.policy.compiled.scripts import Registration
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.records import replaced
from keyfence.policy.services import UNKNOWN
from keyfence.policy.source.model import PolicyModel
from keyfence.policy.source.yaml import PathKey

from .context import CompilerContext, one_of
from .entries import is_bare, is_claimed, text_of
from .prefixes import beginnings

Key = TypeVar("Key")
Value = TypeVar("Value")
Name = TypeVar("Name", str, bytes)
Scripts = Mapping[bytes, Registration]  # by the SHA-1s of their texts

# Sections whose names must differ across all files, because reports and waivers use them.
_NAMED = ("channels", "scripts", "functions")
# Kinds of target that may lie outside their file's claims, in the order in which they decide there.
_OUTSIDE = ("entry", "legacy", "stray", "malformed", "scope")


class Region(NamedTuple):
    """A part of the key space that belongs to one file, around the parts in it that belong to others."""

    depth: int  # the number of other regions around it
    home: int  # the number of the file
    claim: str


class Claims:
    """Says which file owns a key: of all claims that the key begins with, the longest one decides."""

    def __init__(self, claims: Iterable[tuple[int, Sequence[str]]]) -> None:
        """Takes the claims of each file, with its number."""
        self._homes = {claim: home for home, listed in claims for claim in listed}

    def longest(self, text: str) -> str | None:
        """Returns the claim that decides about all keys with this beginning; None if there is none."""
        return next(beginnings(text, self._homes), None)

    def region(self, text: str) -> Region | None:
        """Returns the region that contains all keys with this beginning; None if no file claims them."""
        around = [(claim, self._homes[claim]) for claim in beginnings(text, self._homes)]
        # Claims of one file inside each other are one region, unless another file's claim is between them.
        regions = [
            (claim, home)
            for index, (claim, home) in enumerate(around)
            if index + 1 == len(around) or around[index + 1][1] != home
        ]
        return Region(len(regions) - 1, regions[0][1], regions[0][0]) if regions else None


def services_of(models: Iterable[PolicyModel]) -> tuple[str, ...]:
    """Returns all services in the order of the files; the one for unidentified clients is the last."""
    return (*dict.fromkeys(name for model in models for name in model.services), UNKNOWN)


def check_together(contexts: Sequence[CompilerContext], scripts: Sequence[Scripts]) -> None:
    """Records faults between files: each in the later file, with the place in the earlier one. `scripts` are
    those that each file registers."""
    _check_claims(contexts)
    _check_scripts(contexts, scripts)
    for section in _NAMED:
        _check_names(contexts, section)
    _check_databases(contexts)
    _check_commands(contexts)


def home_of(context: CompilerContext, **more: Any) -> Home:
    """Returns what a file says about all its keys."""
    model = context.model
    return Home(
        policy=model.policy,
        file=context.source.file,
        contact=model.owner.contact or model.owner.team,
        claims=tuple(model.claims),
        delegates=tuple(model.delegates),
        should=frozenset(model.should),
        cluster=model.cluster,
        owner=model.owner.team,
        docs=model.owner.docs,
        **more,
    )


def common_home(homes: Sequence[Home]) -> Home:
    """Returns what applies to keys and commands that belong to no single file: the settings of the file
    without claims, or if there is none, the strictest of all files."""
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
    """Returns the targets of all files in the order in which they decide, each with its file's number.

    A region inside another one decides first, so a key gets an answer of the file that owns it. An entry
    that is one key without a prefix, or a legacy form, may lie outside its file's claims. It covers only keys
    that no file claims. If several files have an entry of one name, such as `lock`, the policy's name is
    added: `shop/lock`.
    """
    named = Counter(name for _, targets in parts for name in {one.name for one in targets if one.entry})
    stamped = [
        [_at_home(target, number, home, named) for target in targets]
        for number, (home, targets) in enumerate(parts)
    ]
    if len(stamped) == 1:
        return stamped[0]
    claims = Claims((number, home.claims) for number, (home, _) in enumerate(parts))
    inside: dict[Region, list[Target]] = {}
    outside, rest = [], []
    for target in itertools.chain(*stamped):
        region = claims.region(_beginning(target))
        if not parts[target.home][0].claims:
            rest.append(target)
        elif region is not None and region.home == target.home:
            inside.setdefault(region, []).append(target)
        elif region is None or target.kind != "malformed":
            outside.append(target)
    outside.sort(key=lambda one: (_OUTSIDE.index(one.kind), one.pattern.specificity))
    ordered = sorted(inside, key=lambda region: -region.depth)
    return [*itertools.chain(*(inside[region] for region in ordered)), *outside, *rest]


def merged(maps: Iterable[Mapping[Key, Value]]) -> dict[Key, Value]:
    """Merges maps; where they share a key, the first one counts."""
    found: dict[Key, Value] = {}
    for one in maps:
        for key, value in one.items():
            found.setdefault(key, value)
    return found


def merged_scripts(parts: Iterable[Scripts]) -> dict[bytes, Registration]:
    """Merges the scripts of all files. The name in the first file counts, and the prefixes of all."""
    found: dict[bytes, Registration] = {}
    for scripts in parts:
        for sha1, one in scripts.items():
            found[sha1] = found.get(sha1, one).with_prefixes(one.prefixes)
    return found


def _at_home(target: Target, number: int, home: Home, named: Mapping[str, int]) -> Target:
    target = replaced(target, home=number, should=one_of(target.should | home.should))
    if target.entry is None or named[target.name] < 2:
        return target
    name = f"{home.policy}/{target.name}"
    return dataclasses.replace(target, name=name, entry=dataclasses.replace(target.entry, name=name))


def _beginning(target: Target) -> str:
    return text_of(target.pattern.literal_prefix)


def _check_claims(contexts: Sequence[CompilerContext]) -> None:
    catch_all: CompilerContext | None = None
    for context in contexts:
        if context.model.claims:
            continue
        if catch_all is not None:
            first = catch_all.source.place(("policy",))
            message = f"no claims, and {first.file} has none either: only one file can own the unclaimed keys"
            context.error(("policy",), message)
        catch_all = catch_all or context
    for context, path, same, there in _shared(contexts, _claims):
        message = f"{there} claims {same!r} too; each key belongs to one file"
        context.error(path, f"{message}, so claim a longer beginning, or take the claim out of one")
    claims = Claims((context.home, context.model.claims) for context in contexts)
    places = {claim: (context, path) for context in contexts for claim, path in _claims(context)}
    for context in contexts:
        for target, path in _placed(context):
            claim = claims.longest(target)
            other, its_path = places[claim] if claim is not None else (context, path)
            if other is not context:
                place = other.source.place(its_path)
                message = f"{target!r} is in the claim {claim!r} of {place.file}:{place.line}"
                context.error(path, f"{message}; register it there", of_key=path[0] in ("legacy", "instead"))
    for context, path, key, there in _shared(contexts, _bare_keys):
        context.error(path, f"{text_of(key)!r} is also an entry's key in {there}")


def _placed(context: CompilerContext) -> Iterator[tuple[str, PathKey]]:
    """Yields the beginnings of the file's keys that another file's claim must not contain, each with its
    place: of keys without a prefix, and of everything in the file's own claims."""
    found: dict[tuple[str, PathKey], None] = {}
    for target in context.entries:
        if is_bare(target.pattern) or _is_claimed(context, target.pattern):
            found[_beginning(target), ("keys", target.name, "key")] = None
    for scope in context.scopes:
        if _is_claimed(context, scope.pattern):
            found[text_of(scope.pattern.literal_prefix), ("scopes", scope.name, "prefix")] = None
    for target in context.legacy:
        if _is_claimed(context, target.pattern):
            found[_beginning(target), ("legacy", "keys", target.text)] = None
    yield from found


def _is_claimed(context: CompilerContext, pattern: KeyPattern) -> bool:
    return bool(context.claims) and is_claimed(context.claims, pattern)


def _shared(
    contexts: Iterable[CompilerContext],
    names: Callable[[CompilerContext], Iterable[tuple[Name, PathKey]]],
    *,
    of_key: bool = False,
) -> Iterator[tuple[CompilerContext, PathKey, Name, str]]:
    """Yields each name of a file, with its path there, that an earlier file has, and the place in that one.
    `of_key`: the place is that of the key at the path."""
    first: dict[Name, tuple[CompilerContext, PathKey]] = {}
    for context in contexts:
        for name, path in names(context):
            other, there = first.setdefault(name, (context, path))
            if other is not context:
                place = other.source.place(there, of_key=of_key)
                yield context, path, name, f"{place.file}:{place.line}"


def _bare_keys(context: CompilerContext) -> Iterator[tuple[bytes, PathKey]]:
    for target in context.entries:
        if is_bare(target.pattern):
            yield target.pattern.literal_prefix, ("keys", target.name, "key")


def _claims(context: CompilerContext) -> Iterator[tuple[str, PathKey]]:
    for index, claim in enumerate(context.model.claims):
        yield claim, ("claims", index)


def _check_names(contexts: Sequence[CompilerContext], section: str) -> None:
    def names(context: CompilerContext) -> Iterator[tuple[str, PathKey]]:
        return ((name, (section, name)) for name in getattr(context.model, section))

    for context, path, name, there in _shared(contexts, names, of_key=True):
        message = f"{name} is also a name under {section} in {there}"
        context.error(path, f"{message}; reports could not tell them apart", of_key=True)


def _check_scripts(contexts: Sequence[CompilerContext], scripts: Sequence[Scripts]) -> None:
    """Records scripts that two files register differently. A script, such as one that releases a lock, may be
    in several files if they say the same about it; the name in the first file counts."""
    first: dict[bytes, tuple[CompilerContext, Registration]] = {}
    reported: set[tuple[str, str]] = set()  # a library has hundreds of scripts
    for context, known in zip(contexts, scripts, strict=True):
        for sha1, mine in known.items():
            other, theirs = first.setdefault(sha1, (context, mine))
            if (theirs.name, mine.name) in reported:
                continue
            if dataclasses.replace(theirs, name=mine.name, prefixes=mine.prefixes) != mine:
                fault, remedy = "says something else about its keys", "write the same in both"
            elif mine.name != theirs.name and mine.name in _writers_by_script(context):
                fault, remedy = "is under written_by", "register it in one file"
            else:
                continue
            reported.add((theirs.name, mine.name))
            place = other.source.place(("scripts", theirs.name), of_key=True)
            message = (
                f"{mine.name} has the same SHA-1 as {theirs.name} in {place.file}:{place.line}, and {fault}"
            )
            context.error(("scripts", mine.name), f"{message}; {remedy}", of_key=True)


def _writers_by_script(context: CompilerContext) -> set[str]:
    model = context.model
    scopes = (name for one in model.scopes.values() for name in one.written_by)
    return {*scopes, *(name for one in model.keys.values() for name in one.written_by)}


def _check_databases(contexts: Sequence[CompilerContext]) -> None:
    given = [context for context in contexts if context.model.databases is not None]
    for context in given:
        if not context.model.databases:
            context.error(("databases",), "no database is listed; list those that may be used")
    for context in given[1:]:
        if set(context.model.databases or ()) != set(given[0].model.databases or ()):
            place = given[0].source.place(("databases",))
            message = f"{place.file}:{place.line} lists other databases; all files are for one Redis"
            context.error(("databases",), message)


def _check_commands(contexts: Sequence[CompilerContext]) -> None:
    _report_contradictions(contexts, lambda context: context.model.commands.allow, "allow", "forbid")
    _report_contradictions(contexts, lambda context: context.model.commands.forbid, "forbid", "allow")


def _report_contradictions(
    contexts: Sequence[CompilerContext],
    names: Callable[[CompilerContext], Sequence[str]],
    word: str,
    opposite: str,
) -> None:
    """Records commands that one file allows and another one forbids."""
    for one, other in itertools.combinations(contexts, 2):
        mine = {name.upper(): index for index, name in enumerate(names(one))}
        for index, name in enumerate(getattr(other.model.commands, opposite)):
            if name.upper() in mine:
                place = one.source.place(("commands", word, mine[name.upper()]))
                message = f"{name} is under commands.{word} in {place.file}:{place.line}; it cannot be both"
                other.error(("commands", opposite, index), message)
