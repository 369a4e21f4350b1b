"""Compiles legacy forms, older versions of entries (`replaces`) and wrong forms that are in use (`instead`).

Rule: a legacy form allows at most what its entry's rights allow, and what the scopes around the form itself
do not deny. An end date refuses nothing unless `on_expiry: refuse` is set.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.tenants import Tenancy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.patterns.patterns import KeyPattern

from .bindings import alike, tenancy_of
from .context import CompilerContext
from .entries import ALL_RIGHTS, check_partly_inside, scopes_around, text_of, within_scopes
from .families import read_member, standard_of, texts_of_family
from .prefixes import beginnings


def end_of(day: datetime.date | None) -> float | None:
    """Returns when a last day ends, in Unix seconds: at midnight UTC, as for every `until`."""
    if day is None:
        return None
    midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    return midnight.timestamp() + 86_400


def build_legacy(context: CompilerContext) -> None:
    """Builds the legacy forms as targets, in the context, with the rights that they leave."""
    section = context.model.legacy
    everybody = _services(context, section.services, ("legacy", "services"))
    for text, model in context.model.legacy.keys.items():
        path = ("legacy", "keys", text)
        granted = legacy_rights(section.allow if model.allow is None else model.allow)
        admitted = everybody
        if model.services is not None:
            admitted = _services(context, model.services, (*path, "services"))
        until = model.until or section.until
        refuses = (model.on_expiry or section.on_expiry) == "refuse"
        for one in _replaced(context, text, model.entry, path, model.member):
            rights = tuple(
                held & granted if number in admitted else 0 for number, held in enumerate(one.rights)
            )
            ends = end_of(until) if refuses else None
            tenancy = one.tenancy.limited_to(granted, admitted) if one.tenancy is not None else None
            check_partly_inside(context, one.pattern, one.text, (rights, one.denied), one.entry, path)
            context.legacy.append(dataclasses.replace(one, rights=rights, tenancy=tenancy, ends=ends))


def build_strays(context: CompilerContext) -> None:
    """Builds the forms under `instead` as targets, in the context. They allow nothing and give better
    hints."""
    for text, name in context.model.instead.items():
        path = ("instead", text)
        for one in _replaced(context, text, name, path):
            beginning = text_of(one.pattern.literal_prefix)
            is_claimed = next(beginnings(beginning, context.claims), None) is not None
            if is_claimed or any(scopes_around(context, one.pattern)):
                message = f"{text!r} is in the policy's own part of the key space; write it under legacy"
                context.error(path, message, of_key=True, relies_on=[("claims",), ("scopes",)])
                continue
            nothing = (0,) * len(context.services)
            context.strays.append(
                dataclasses.replace(
                    one, kind="stray", name="", rights=nothing, tenancy=None, denied=nothing, entry=None
                )
            )


def build_exceptions(context: CompilerContext) -> Iterable[tuple[str, datetime.date]]:
    """Yields the end dates of legacy forms and grants: ("legacy" or "grants", date)."""
    section = context.model.legacy
    if section.until is not None:
        yield "legacy", section.until
    for model in section.keys.values():
        if model.until is not None:
            yield "legacy", model.until
    for grant in context.model.grants.values():
        if grant.until is not None:
            yield "grants", grant.until


def _services(
    context: CompilerContext, names: list[str] | None, path: tuple[str | int, ...]
) -> frozenset[int]:
    if names is None:
        return frozenset(range(len(context.services)))
    return frozenset(context.numbers(names, path))


def _unshown(standard: Tenancy | None, pattern: KeyPattern) -> Tenancy | None:
    """Returns which of an entry's rights depend on a value of the caller that one of its forms does not show.
    A key of that form may have any value."""
    if standard is None:
        return None
    names = {hole.name for hole in pattern.holes}
    return standard._replace(places=tuple(one for one in standard.places if one.name not in names))


def _left(rights: Sequence[int], unshown: Tenancy | None) -> tuple[int, ...]:
    """Returns the rights by service that are left if a key may have any value: those on the keys of all
    values."""
    if unshown is None or not unshown.places:
        return tuple(rights)
    return tuple(unshown.held(number, rights, ()) for number in range(len(rights)))


def _replaced(
    context: CompilerContext,
    text: str,
    entry: str,
    path: tuple[str, ...],
    member: Mapping[str, str] | None = None,
) -> Iterator[Target]:
    """Yields the targets of a form that an entry replaces, with the entry's rights."""
    if entry not in context.model.keys:
        known = did_you_mean(entry, context.model.keys)
        context.error((*path, "entry"), f"{entry!r} is not an entry under keys{known}")
    chosen = read_member(context, entry, member or {}, (*path, "member"))
    for one, values, bound in texts_of_family(context, text, path):
        pattern = context.pattern(one, path)
        if pattern is None:
            continue
        standard = standard_of(context, entry, {**chosen, **dict(values)}, pattern)
        if standard is None:
            continue
        whose = standard.target.tenancy
        unshown = _unshown(whose, pattern)
        reading = whose.reading if whose is not None else (0,) * len(context.services)
        tenancy = tenancy_of(context, pattern, _left(reading, unshown), path)
        denied, asked = within_scopes(context, pattern, standard.denied, standard.target.entry)
        yield Target(
            kind="legacy",
            name=entry,
            pattern=pattern,
            rights=_left(standard.rights, unshown),
            tenancy=tenancy,
            denied=denied,
            entry=asked,
            text=one,
            secrets=context.secrets_in(pattern),
            standard=standard.pattern,
            own_forms=standard.own,
            unclear=standard.unclear,
            bound=bound.values,
            alike=alike(context, bound.values),
        )


def build_versions(context: CompilerContext) -> None:
    """Takes rights from entries that another entry replaces: only those under its `allow` are left."""
    for name, model in context.model.keys.items():
        if not model.replaces:
            continue
        path = ("keys", name, "replaces")
        if model.replaces not in context.model.keys or model.replaces == name:
            near = did_you_mean(model.replaces, context.model.keys.keys() - {name})
            context.error(path, f"{model.replaces!r} is not another entry under keys{near}")
            continue
        gone = ALL_RIGHTS & ~legacy_rights(model.allow)
        for values, index in context.members.get(model.replaces, ()):
            old = context.entries[index]
            if old.successor is not None:
                context.error(path, f"another entry replaces {old.name} already")
            newer = standard_of(context, name, dict(values), old.pattern)
            if newer is None:
                continue
            context.entries[index] = dataclasses.replace(
                old,
                successor=newer.pattern,
                own_forms=newer.own,
                denied=tuple(one | gone for one in old.denied),
                denied_before=old.denied,
            )


def legacy_rights(allow: Sequence[str]) -> int:
    """Returns the rights that an `allow` leaves."""
    bits = {"read": READ, "delete": DELETE, "write": WRITE | DELETE | GROUP}
    return functools.reduce(operator.or_, (bits[word] for word in allow), 0)
