"""The catalogue: scopes, entries (families expanded) and legacy forms as targets.

Rule: an entry's rights are its own or else its scope's, and a scope's denials always hold.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable, Sequence

from ..commands.model import DELETE, GROUP, READ, WRITE
from .bind import bound_texts, held_by, holders
from .compiled import Entry, Fields, Target
from .diagnostics import did_you_mean
from .draft import SCOPE_HOLE, Draft, Scope
from .model import EntryModel, TtlModel
from .patterns import KeyPattern
from .values import Form

ALL_RIGHTS = READ | WRITE | DELETE | GROUP


def build_scopes(draft: Draft) -> None:
    """The scopes with their rights, into the draft."""
    by_prefix: dict[str, str] = {}
    for name, model in draft.model.scopes.items():
        path = ("scopes", name)
        held, denied = draft.rights(model, path)
        if not model.prefix and model.unregistered != "allow":
            message = "an empty prefix covers every key; write the scope's prefix, or unregistered: allow"
            draft.error((*path, "prefix"), message)
        hash_tag, should = draft.asked(model)
        scripts = _scripts(draft, model.written_by, (*path, "written_by"))
        for one in bound_texts(draft, model.prefix, (*path, "prefix"), is_pattern=False):
            if one.text in by_prefix:
                draft.error((*path, "prefix"), f"the scope {by_prefix[one.text]} has the same prefix")
            elif draft.model.claims and not one.text.startswith(tuple(draft.model.claims)):
                claims = ", ".join(draft.model.claims)
                draft.error((*path, "prefix"), f"{one.text!r} is outside the policy's claims ({claims})")
            by_prefix[one.text] = name
            rights = held_by(held, holders(draft, one.values))
            draft.scopes.append(
                Scope(name, one.text, rights, tuple(denied), one.values, scripts, hash_tag, should)
            )
    _inherit_denials(draft)


def _inherit_denials(draft: Draft) -> None:
    """A denial holds for all that a scope's prefix begins, the scopes inside included."""
    for scope in draft.scopes:
        for other in draft.scopes:
            if other is not scope and scope.prefix.startswith(other.prefix):
                scope.denied = tuple(
                    mine | theirs for mine, theirs in zip(scope.denied, other.denied, strict=True)
                )


def build_entries(draft: Draft) -> None:
    """The catalogue's rows as targets, into the draft; a family makes one of each member."""
    for name, model in draft.model.keys.items():
        path = ("keys", name)
        requirements = _requirements(draft, name, model, path)
        own = draft.rights(model, path)
        scripts = _scripts(draft, model.written_by, (*path, "written_by"))
        for text, scope in _expansions(draft, model, path):
            for one in bound_texts(draft, text, (*path, "key")):
                pattern = draft.pattern(one.text, (*path, "key"))
                if pattern is None:
                    continue
                if scope is None and not _is_claimed(draft, pattern):
                    claims = ", ".join(draft.model.claims)
                    message = f"{one.text!r} is outside the policy's claims ({claims})"
                    draft.error((*path, "key"), message)
                home = scope or _scope_of(draft, pattern)
                held, denied = _entry_rights(draft, model, own, home, path)
                hash_tag, should = draft.asked(model, home)
                draft.entries.append(
                    Target(
                        kind="entry",
                        name=name,
                        pattern=pattern,
                        rights=held_by(held, holders(draft, one.values)),
                        denied=denied,
                        entry=dataclasses.replace(requirements, text=one.text),
                        text=one.text,
                        secrets=frozenset(draft.secrets & {hole.name for hole in pattern.holes}),
                        should=should,
                        hash_tag=hash_tag,
                        bound=one.values,
                        written_by=scripts or (home.written_by if home is not None else scripts),
                    )
                )
    _supersede(draft)


def _scripts(draft: Draft, names: Sequence[str], path: tuple[str, ...]) -> frozenset[str]:
    """The scripts and functions that alone may write."""
    known = {**draft.model.scripts, **draft.model.functions}
    for index, name in enumerate(names):
        if name not in known:
            near = did_you_mean(name, known)
            draft.error((*path, index), f"{name!r} is registered under neither scripts nor functions{near}")
    return frozenset(names)


def _supersede(draft: Draft) -> None:
    """Two versions side by side: of what another entry replaces, some rights are left."""
    names = {target.name for target in draft.entries}
    for name, model in draft.model.keys.items():
        if not model.replaces:
            continue
        path = ("keys", name, "replaces")
        if model.replaces not in names or model.replaces == name:
            near = did_you_mean(model.replaces, names - {name})
            draft.error(path, f"{model.replaces!r} is no other entry under keys{near}")
        newer = {target.bound: target for target in draft.entries if target.name == name}
        gone = ALL_RIGHTS & ~legacy_rights(model.allow)
        for index, old in enumerate(draft.entries):
            if old.name != model.replaces or not newer:
                continue
            if old.successor is not None:
                draft.error(path, f"{old.name} is replaced by another entry already")
            successor = newer.get(old.bound) or next(iter(newer.values()))
            draft.entries[index] = dataclasses.replace(
                old, successor=successor.pattern, denied=tuple(one | gone for one in old.denied)
            )


def _is_claimed(draft: Draft, pattern: KeyPattern) -> bool:
    beginning = pattern.literal_prefix
    return not draft.model.claims or beginning.startswith(tuple(one.encode() for one in draft.model.claims))


def _expansions(draft: Draft, model: EntryModel, path: tuple[str, ...]) -> Iterable[tuple[str, Scope | None]]:
    hole = f"<{SCOPE_HOLE}>"
    if hole not in model.key:
        return [(model.key, None)]
    if not draft.scopes:
        draft.error((*path, "key"), "<scope> expands over the policy's scopes, and there are none")
    expanded = [(model.key.replace(hole, scope.name), scope) for scope in draft.scopes]
    for text, scope in expanded:
        if not text.startswith(scope.prefix):
            draft.error(
                (*path, "key"),
                f"<scope> makes {text!r}, which is outside the scope's prefix {scope.prefix!r}",
            )
    return expanded


def _scope_of(draft: Draft, pattern: KeyPattern) -> Scope | None:
    literal = pattern.literal_prefix.decode("utf-8", "surrogateescape")
    inside = [scope for scope in draft.scopes if literal.startswith(scope.prefix)]
    return max(inside, key=lambda scope: len(scope.prefix), default=None)


def _entry_rights(
    draft: Draft,
    model: EntryModel,
    own: tuple[list[int], list[int]],
    home: Scope | None,
    path: tuple[str, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """An entry's rights replace its scope's; a scope's denials stay."""
    held, denied = own
    if not (model.writers or model.readers or model.consumers):
        if home is None:
            draft.error(path, "in no scope and without writers or readers: nobody could use it", of_key=True)
            return tuple(held), tuple(denied)
        held = list(home.rights)
    if home is not None:
        denied = [mine | theirs for mine, theirs in zip(denied, home.denied, strict=True)]
    return tuple(held), tuple(denied)


def _requirements(draft: Draft, name: str, model: EntryModel, path: tuple[str, ...]) -> Entry:
    """All that an entry asks beyond rights and form."""
    if model.fields is not None and model.type and not {"hash", "stream"} & set(model.type):
        draft.error(
            (*path, "fields"), f"a {' or '.join(model.type)} has no fields; those are for hash and stream"
        )
    if model.values is not None and model.type and "string" not in model.type:
        draft.error((*path, "values"), "values are for the type string")
    if model.maxlen is not None and model.type and "stream" not in model.type:
        draft.error((*path, "maxlen"), "maxlen is for the type stream")
    _check_ttl(draft, model.ttl, (*path, "ttl"))
    looks_into_values = any(one is not None for one in (model.fields, model.values, model.maxlen))
    plain = not (looks_into_values or model.type or model.ttl)
    return Entry(
        name=name,
        text=model.key,
        types=tuple(model.type),
        ttl=model.ttl,
        fields=_fields(draft, model, path),
        values=None if model.values is None else draft.form(model.values, (*path, "values")),
        maxlen=None if model.maxlen is None else int(model.maxlen.lstrip("~")),
        maxlen_exact=model.maxlen is not None and not model.maxlen.startswith("~"),
        max_length=model.max_length,
        is_plain=plain,
        looks_into_values=looks_into_values,
    )


def _check_ttl(draft: Draft, ttl: TtlModel | None, path: tuple[str, ...]) -> None:
    if ttl is None:
        return
    if ttl.none and (ttl.min is not None or ttl.max is not None or ttl.default is not None):
        draft.error(path, "none excludes min, max and default")
    if ttl.min is not None and ttl.max is not None and ttl.min > ttl.max:
        draft.error(path, "min is above max: no time to live would do")
    if ttl.default is not None and not (ttl.min or 0) <= ttl.default <= (ttl.max or ttl.default):
        draft.error(path, "default is outside min and max")


def _fields(draft: Draft, model: EntryModel, path: tuple[str, ...]) -> Fields | None:
    if model.fields is None:
        return None
    named: dict[bytes, Form] = {}
    patterned: list[tuple[Form, Form]] = []
    for field, spec in model.fields.items():
        form = draft.form(spec, (*path, "fields", field))
        if field.startswith("<") and field.endswith(">"):
            of_name = draft.form(field, (*path, "fields", field), of_key=True)
            if form and of_name:
                patterned.append((of_name, form))
        elif form:
            named[field.encode()] = form
    hides_names = any(f"<{name}>" in model.fields for name in draft.secrets)
    return Fields(named, tuple(patterned), ", ".join(model.fields), hides_names)


def build_legacy(draft: Draft) -> None:
    """The deprecated forms as targets, into the draft, with the rights that their exception leaves."""
    granted = legacy_rights(draft.model.legacy.allow)
    names = {target.name for target in draft.entries}
    by_name = {(target.name, target.bound): target for target in draft.entries}
    any_of = {target.name: target for target in draft.entries}
    for text, standard_name in draft.model.legacy.keys.items():
        path = ("legacy", "keys", text)
        if standard_name not in names:
            known = did_you_mean(standard_name, names)
            draft.error(path, f"{standard_name!r} is no entry under keys{known}")
        for one in bound_texts(draft, text, path):
            pattern = draft.pattern(one.text, path)
            standard = by_name.get((standard_name, one.values)) or any_of.get(standard_name)
            if pattern is None or standard is None:
                continue
            draft.legacy.append(
                Target(
                    kind="legacy",
                    name=standard_name,
                    pattern=pattern,
                    rights=tuple(held & granted for held in standard.rights),
                    denied=standard.denied,
                    entry=standard.entry,
                    text=one.text,
                    secrets=frozenset(draft.secrets & {hole.name for hole in pattern.holes}),
                    standard=standard.pattern,
                    bound=one.values,
                )
            )


def legacy_rights(allow: Sequence[str]) -> int:
    """The rights that are left on deprecated keys."""
    bits = {"read": READ, "delete": DELETE, "write": WRITE | DELETE | GROUP}
    return functools.reduce(operator.or_, (bits[word] for word in allow), 0)
