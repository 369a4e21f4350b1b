"""What is tolerated for a while, and what is in use and wrong: legacy forms, strays, their end dates.

Rule: a legacy form allows at most what its entry's rights allow, and an end date refuses nothing unless
`on_expiry: refuse` says so.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator

from .bind import alike, bound_texts, tenancy_of
from .build_catalogue import beginnings, legacy_rights
from .compiled import Target
from .diagnostics import did_you_mean
from .draft import Draft
from .tenants import Tenancy


def end_of(day: datetime.date | None) -> float | None:
    """When a last day is over, in Unix seconds: midnight UTC, as `until` is read everywhere."""
    if day is None:
        return None
    midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    return midnight.timestamp() + 86_400


def build_legacy(draft: Draft) -> None:
    """The deprecated forms as targets, into the draft, with the rights that their exception leaves."""
    section, standards = draft.model.legacy, _Standards(draft)
    everybody = _services(draft, section.services, ("legacy", "services"))
    for text, model in draft.model.legacy.keys.items():
        path = ("legacy", "keys", text)
        granted = legacy_rights(section.allow if model.allow is None else model.allow)
        admitted = _services(draft, model.services, (*path, "services")) if model.services else everybody
        until = model.until or section.until
        refuses = (model.on_expiry or section.on_expiry) == "refuse"
        for one in standards.replaced(text, model.entry, path):
            rights = tuple(
                held & granted if number in admitted else 0 for number, held in enumerate(one.rights)
            )
            ends = end_of(until) if refuses else None
            tenancy = one.tenancy.limited_to(granted, admitted) if one.tenancy is not None else None
            draft.legacy.append(dataclasses.replace(one, rights=rights, tenancy=tenancy, ends=ends))


def build_strays(draft: Draft) -> None:
    """Forms that are in use and wrong, as targets into the draft: no exception, only a better hint."""
    standards = _Standards(draft)
    inside = {*draft.model.claims, *draft.by_prefix}
    for text, name in draft.model.instead.items():
        path = ("instead", text)
        for one in standards.replaced(text, name, path):
            beginning = one.pattern.literal_prefix.decode("utf-8", "surrogateescape")
            if next(beginnings(beginning, inside), None) is not None:
                message = f"{text!r} is inside the policy's own part of the key space; write it under legacy"
                draft.error(path, message, of_key=True)
                continue
            nothing = (0,) * len(draft.services)
            draft.strays.append(
                dataclasses.replace(
                    one, kind="stray", name="", rights=nothing, tenancy=None, denied=nothing, entry=None
                )
            )


def build_exceptions(draft: Draft) -> Iterable[tuple[str, datetime.date]]:
    """The end dates of what is only tolerated for a while: (legacy or grants, date)."""
    section = draft.model.legacy
    if section.until is not None:
        yield "legacy", section.until
    for model in section.keys.values():
        if model.until is not None:
            yield "legacy", model.until
    for grant in draft.model.grants.values():
        if grant.until is not None:
            yield "grants", grant.until


def _services(draft: Draft, names: list[str] | None, path: tuple[str | int, ...]) -> frozenset[int]:
    if names is None:
        return frozenset(range(len(draft.services)))
    return frozenset(draft.numbers(names, path))


def _missing(standard: Tenancy | None, own: Tenancy | None) -> str:
    """A placeholder that an entry is bound to the caller by, and a legacy form of it isn't; "" for none."""
    names = {place.name for place in own.places} if own is not None else set()
    places = standard.places if standard is not None else ()
    return next((place.name for place in places if place.name not in names), "")


class _Standards:
    """The entries that stand in the place of other forms."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.by_bound = {(target.name, target.bound): target for target in draft.entries}
        self.by_name = {target.name: target for target in draft.entries}

    def replaced(self, text: str, standard_name: str, path: tuple[str, ...]) -> Iterator[Target]:
        """The targets of a form that an entry replaces, with the entry's rights."""
        if standard_name not in self.by_name:
            known = did_you_mean(standard_name, self.by_name)
            self.draft.error((*path, "entry"), f"{standard_name!r} is no entry under keys{known}")
        for one in bound_texts(self.draft, text, path):
            pattern = self.draft.pattern(one.text, path)
            standard = self.by_bound.get((standard_name, one.values)) or self.by_name.get(standard_name)
            if pattern is None or standard is None:
                continue
            nothing = (0,) * len(self.draft.services)
            reading = standard.tenancy.reading if standard.tenancy is not None else nothing
            tenancy = tenancy_of(self.draft, pattern, reading, path)
            if path[0] == "legacy" and (missing := _missing(standard.tenancy, tenancy)):
                message = (
                    f"{text!r} doesn't show the <{missing}> that {standard_name} is bound by: anybody's "
                )
                message += f"key could be of this form; put <{missing}> into it, or grant its keys"
                self.draft.error(path, message, of_key=True)
            yield Target(
                kind="legacy",
                name=standard_name,
                pattern=pattern,
                rights=standard.rights,
                tenancy=tenancy,
                denied=standard.denied,
                entry=standard.entry,
                text=one.text,
                secrets=frozenset(self.draft.secrets.keys() & {hole.name for hole in pattern.holes}),
                standard=standard.pattern,
                bound=one.values,
                alike=alike(self.draft, one.values),
            )
