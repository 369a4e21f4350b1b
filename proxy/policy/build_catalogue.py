"""The catalogue: scopes, entries (families expanded) and legacy forms as targets.

Rule: an entry's rights are its own or else its scope's, and a scope's denials always hold.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Container, Iterable, Iterator, Sequence

from ..commands.model import DELETE, GROUP, READ, WRITE
from .bind import bound_texts, held_by, holders
from .build_content import build_requirements, in_scope
from .compiled import Target
from .diagnostics import did_you_mean
from .draft import SCOPE_HOLE, Draft, Scope
from .model import EntryModel
from .patterns import KeyPattern

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
        asked = build_requirements(draft, name, model.prefix + "…", model, path)
        for one in bound_texts(draft, model.prefix, (*path, "prefix"), is_pattern=False):
            if one.text in by_prefix:
                draft.error((*path, "prefix"), f"the scope {by_prefix[one.text]} has the same prefix")
            elif draft.claims and next(beginnings(one.text, draft.claims), None) is None:
                claims = ", ".join(draft.model.claims)
                draft.error((*path, "prefix"), f"{one.text!r} is outside the policy's claims ({claims})")
            by_prefix[one.text] = name
            rights = held_by(held, holders(draft, one.values))
            draft.scopes.append(
                Scope(name, one.text, rights, tuple(denied), one.values, scripts, hash_tag, should, asked)
            )
    _inherit_denials(draft)


def _inherit_denials(draft: Draft) -> None:
    """A denial holds for all that a scope's prefix begins, the scopes inside included."""
    draft.by_prefix = {scope.prefix: scope for scope in draft.scopes}
    for scope in draft.scopes:
        for prefix in beginnings(scope.prefix, draft.by_prefix):
            theirs = draft.by_prefix[prefix].denied
            if any(theirs) and prefix != scope.prefix:
                scope.denied = tuple(map(operator.or_, scope.denied, theirs))


def beginnings(text: str, prefixes: Container[str]) -> Iterator[str]:
    """Those of the prefixes that a text begins with, the longest first."""
    return (text[:size] for size in range(len(text), -1, -1) if text[:size] in prefixes)


def build_entries(draft: Draft) -> None:
    """The catalogue's rows as targets, into the draft; a family makes one of each member."""
    for name, model in draft.model.keys.items():
        path = ("keys", name)
        requirements = build_requirements(draft, name, model.key, model, path)
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
                        entry=in_scope(draft, requirements, one.text, pattern, home),
                        text=one.text,
                        secrets=frozenset(draft.secrets.keys() & {hole.name for hole in pattern.holes}),
                        should=should,
                        hash_tag=hash_tag,
                        bound=one.values,
                        written_by=scripts or (home.written_by if home is not None else scripts),
                        rights_of=home.name if home is not None and not any(own[0]) else "",
                    )
                )
    _supersede(draft)


def _scripts(draft: Draft, names: Sequence[str], path: tuple[str, ...]) -> frozenset[str]:
    """The scripts and functions that alone may write."""
    for index, name in enumerate(names):
        if name not in draft.model.scripts and name not in draft.model.functions:
            known = (*draft.model.scripts, *draft.model.functions)
            near = did_you_mean(name, known)
            draft.error((*path, index), f"{name!r} is registered under neither scripts nor functions{near}")
    return frozenset(names)


def _supersede(draft: Draft) -> None:
    """Two versions side by side: of what another entry replaces, some rights are left."""
    numbers: dict[str, list[int]] = {}
    for index, target in enumerate(draft.entries):
        numbers.setdefault(target.name, []).append(index)
    for name, model in draft.model.keys.items():
        if not model.replaces:
            continue
        path = ("keys", name, "replaces")
        if model.replaces not in numbers or model.replaces == name:
            near = did_you_mean(model.replaces, numbers.keys() - {name})
            draft.error(path, f"{model.replaces!r} is no other entry under keys{near}")
        newer = {draft.entries[index].bound: draft.entries[index] for index in numbers.get(name, ())}
        gone = ALL_RIGHTS & ~legacy_rights(model.allow)
        for index in numbers.get(model.replaces, ()) if newer else ():
            old = draft.entries[index]
            if old.successor is not None:
                draft.error(path, f"{old.name} is replaced by another entry already")
            successor = newer.get(old.bound) or next(iter(newer.values()))
            draft.entries[index] = dataclasses.replace(
                old,
                successor=successor.pattern,
                denied=tuple(one | gone for one in old.denied),
                denied_before=old.denied,
            )


def _is_claimed(draft: Draft, pattern: KeyPattern) -> bool:
    beginning = pattern.literal_prefix.decode("utf-8", "surrogateescape")
    return not draft.claims or next(beginnings(beginning, draft.claims), None) is not None


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
    prefix = next(beginnings(literal, draft.by_prefix), None)
    return draft.by_prefix[prefix] if prefix is not None else None


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


def legacy_rights(allow: Sequence[str]) -> int:
    """The rights that are left on deprecated keys."""
    bits = {"read": READ, "delete": DELETE, "write": WRITE | DELETE | GROUP}
    return functools.reduce(operator.or_, (bits[word] for word in allow), 0)
