"""Compiles scopes and entries into targets; a family becomes one target for each member.

Rule: an entry has its own rights, or if it sets none, those of its scope. A scope's denials always apply.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence

from keyfence.commands.model import DELETE, GROUP, READ, WRITE
from keyfence.policy.compiled.policy import TOP, Entry, Target
from keyfence.policy.compiled.tenants import Tenancy
from keyfence.policy.diagnostics import did_you_mean
from keyfence.policy.patterns.patterns import KeyPattern
from keyfence.policy.patterns.regular import SEPARATOR
from keyfence.policy.records import replaced
from keyfence.policy.show import printable
from keyfence.policy.source.model import EntryModel

from .bindings import alike, bound_texts, escaped, held_by, holders, tenancy_of
from .context import SCOPE_HOLE, CompilerContext, Scope
from .prefixes import PrefixIndex, beginnings, length, lies_in, meeting, order
from .requirements import build_requirements, in_outer_scope, in_scope

ALL_RIGHTS = READ | WRITE | DELETE | GROUP


def build_scopes(context: CompilerContext) -> None:
    """Builds the scopes with their rights, in the context."""
    known: dict[KeyPattern, str] = {}
    _check_claims(context)
    for name, model in context.model.scopes.items():
        path = ("scopes", name)
        held, denied = context.rights(model, path)
        reading = context.reading(model)
        if not model.prefix and model.unregistered != "allow":
            message = (
                "an empty prefix covers every key; write the scope's prefix, or unregistered: allow, or take "
                "the scope out and write its rights (writers: …) at the policy's top"
            )
            context.error((*path, "prefix"), message)
        hash_tag, should = context.asked(model)
        scripts = named_scripts(context, model.written_by, (*path, "written_by"))
        asked = build_requirements(context, name, model.prefix + "…", model, path)
        for one in bound_texts(context, model.prefix, (*path, "prefix")):
            pattern = context.prefix(one.text, (*path, "prefix"))
            if pattern is None:
                break
            if pattern in known:
                if one.text:
                    context.error((*path, "prefix"), f"the scope {known[pattern]} has the same prefix")
            elif one.text and not is_claimed(context.claims, pattern):
                message = _not_claimed(context, one.text, pattern)
                context.error((*path, "prefix"), message, relies_on=[("claims",)])
            known.setdefault(pattern, name)
            whose = holders(context, one.values)
            rights, left = held_by(held, reading, whose), held_by(reading, reading, whose)
            tenancy = tenancy_of(context, pattern, left, (*path, "prefix"))
            rest = (one.values, tenancy, scripts, hash_tag, should, asked, model.unregistered_scripts)
            context.scopes.append(Scope(name, one.text, pattern, rights, left, tuple(denied), *rest))
    _find_places(context)
    _inherit_denials(context)


def _check_claims(context: CompilerContext) -> None:
    """Records claims that look like patterns, and delegated ones that are not inside the file's claims."""
    claims, delegated = context.model.claims, context.model.delegates
    for path, claim in [
        *((("claims", index), claim) for index, claim in enumerate(claims)),
        *((("delegates", index), claim) for index, claim in enumerate(delegated)),
    ]:
        if not claim:
            context.error(path, "an empty claim covers every key; write a prefix, or take claims out")
        hole = context.placeholder_in(claim)
        if hole:
            message = f"{claim!r}: a claim is plain text, so {hole} means just this text"
            remedy = f"write {claim.partition(hole)[0]!r}, or a claim for each value"
            context.error(path, f"{message}; {remedy}")
    for index, claim in enumerate(delegated):
        if claim in context.claims:
            message = f"this file claims {claim!r} itself; take it out of claims or of delegates"
            context.error(("delegates", index), message)
        elif not any(claim.startswith(one) for one in claims):
            listed = ", ".join(claims) or "none"
            message = f"{claim!r} is not inside this file's claims ({listed}); remove it"
            context.error(("delegates", index), message, relies_on=[("claims",)])


def _find_places(context: CompilerContext) -> None:
    """Indexes the scopes by the beginning of their prefixes."""
    literal = [scope for scope in context.scopes if scope.pattern.is_prefix]
    context.by_prefix = {text_of(scope.pattern.literal_prefix): scope for scope in literal}
    context.families = PrefixIndex(
        (scope.pattern, scope) for scope in context.scopes if not scope.pattern.is_prefix
    )


def _inherit_denials(context: CompilerContext) -> None:
    """Applies a scope's denials to all keys with its prefix, those of inner scopes included."""
    context.restricting = PrefixIndex(
        (one.pattern, one) for one in context.scopes if any(one.denied) or _restricted(one.asked)
    )
    inherits = any(
        any(one.denied) or (one.asked is not None and one.asked.commands is not None)
        for one in context.scopes
    )
    for scope in context.scopes if inherits else ():
        scope.denied, scope.asked = within_scopes(context, scope.pattern, scope.denied, scope.asked)
        if not scope.pattern.is_prefix:
            rights, path = (scope.rights, scope.denied), ("scopes", scope.name, "prefix")
            check_partly_inside(context, scope.pattern, scope.prefix, rights, scope.asked, path)


def within_scopes(
    context: CompilerContext, pattern: KeyPattern, denied: tuple[int, ...], asked: Entry | None
) -> tuple[tuple[int, ...], Entry | None]:
    """Returns denials and requirements on the keys of a pattern, with those of the scopes around it that hold
    for all keys under their prefix."""
    for scope in scopes_around(context, pattern):
        denied = tuple(map(operator.or_, denied, scope.denied))
        if asked is not None and scope.asked is not None:
            asked = in_outer_scope(asked, scope.asked)
    return denied, asked


def _restricted(asked: Entry | None) -> frozenset[str]:
    """What no command may do on any key under a scope's prefix."""
    commands = asked.commands if asked is not None else None
    return commands.forbid | commands.never if commands is not None else frozenset()


def check_partly_inside(
    context: CompilerContext,
    pattern: KeyPattern,
    text: str,
    rights: tuple[Sequence[int], Sequence[int]],
    asked: Entry | None,
    path: tuple[str, ...],
) -> None:
    """Records a pattern of which only some keys are under the prefix of a scope that denies or restricts
    more. `rights` are those that the services have on the pattern, and those that they are denied."""
    admitted = [held & ~denied for held, denied in zip(*rights, strict=True)]
    for prefix, scope in context.restricting.near(pattern):
        denies = any(map(operator.and_, admitted, scope.denied))
        restricts = not _restricted(scope.asked) <= _restricted(asked)
        if not (denies or restricts) or prefix == pattern or lies_in(pattern, prefix):
            continue
        if path[0] == "scopes" and length(prefix) > length(pattern):
            continue  # its own target decides there
        key = meeting(pattern, prefix)
        if key is not None:
            under = f"are under the prefix of the scope {scope.name}"
            message = f"some keys of {text!r}, such as {printable(key)!r}, {under}"
            why, lists = "denies what this allows", "deny_write and deny_read"
            if not denies:
                why, lists = "restricts their commands", "forbid and never"
            context.error(
                path, f"{message}, which {why}; repeat its {lists} here, or use the same placeholder"
            )


def text_of(prefix: bytes) -> str:
    """Returns the beginning of a pattern as text."""
    return prefix.decode("utf-8", "surrogateescape")


def scopes_around(context: CompilerContext, pattern: KeyPattern) -> Iterator[Scope]:
    """Yields the scopes that contain all keys of a pattern."""
    literal = text_of(pattern.literal_prefix)
    yield from (context.by_prefix[prefix] for prefix in beginnings(literal, context.by_prefix))
    yield from context.families.around(pattern)


def build_entries(context: CompilerContext) -> None:
    """Builds the entries as targets, in the context; a family becomes one target for each member."""
    common = context.rights(context.model, ())
    for place, (name, model) in enumerate(context.model.keys.items()):
        path = ("keys", name)
        requirements = build_requirements(context, name, model.key, model, path)
        requirements = replaced(requirements, about=model.about, written=model.key, number=place)
        own = context.rights(model, path)
        scripts = named_scripts(context, model.written_by, (*path, "written_by"))
        outside: list[tuple[str, Scope]] = []
        for text, scope in _expansions(context, model, path):
            for one in bound_texts(context, text, (*path, "key")):
                pattern = context.pattern(one.text, (*path, "key"))
                if pattern is None:
                    continue
                if not scope and not (is_claimed(context.claims, pattern) or is_bare(pattern)):
                    message = _not_claimed(context, one.text, pattern)
                    context.error((*path, "key"), message, relies_on=[("claims",), ("scopes",)])
                home = next((inside for inside in scope if lies_in(pattern, inside.pattern)), None)
                if scope and home is None:
                    outside.append((one.text, scope[0]))
                    continue
                home = home or _scope_of(context, pattern)
                tenancy = tenancy_of(context, pattern, (), (*path, "key"))
                held, denied = _entry_rights(context, model, own, home or common, path)
                if not _has_rights(model):
                    _check_whose(context, one.text, tenancy, home, (*path, "key"))
                reading = _reading(context, model, home)
                whose = holders(context, one.values)
                if tenancy is not None:
                    tenancy = tenancy._replace(reading=held_by(reading, reading, whose))
                asked = in_scope(context, requirements, one.text, pattern, home)
                check_partly_inside(context, pattern, one.text, (held, denied), asked, (*path, "key"))
                family = (*one.values, *(((SCOPE_HOLE, scope[0].name.encode()),) if scope else ()))
                hash_tag, should = context.asked(model, home)
                context.entries.append(
                    Target(
                        kind="entry",
                        name=name,
                        pattern=pattern,
                        rights=held_by(held, reading, whose),
                        tenancy=tenancy,
                        denied=denied,
                        entry=asked,
                        text=one.text,
                        secrets=context.secrets_in(pattern),
                        should=should,
                        hash_tag=hash_tag if is_claimed(context.claims, pattern) else model.hash_tag or "any",
                        bound=one.values,
                        alike=alike(context, one.values),
                        written_by=scripts or (home.written_by if home is not None else scripts),
                        rights_of="" if any(own[0]) else TOP if home is None else home.name,
                        family=family,
                        unregistered_scripts=home.unregistered_scripts if home is not None else None,
                    )
                )
                context.members.setdefault(name, []).append((family, len(context.homes)))
                context.homes.append(home)
        _report_outside(context, outside, path)


def named_scripts(context: CompilerContext, names: Sequence[str], path: tuple[str, ...]) -> frozenset[str]:
    """Returns the scripts and functions under `written_by`: only these may write."""
    for index, name in enumerate(names):
        if name not in context.model.scripts and name not in context.model.functions:
            known = (*context.model.scripts, *context.model.functions)
            near = did_you_mean(name, known)
            context.error((*path, index), f"{name!r} is registered under neither scripts nor functions{near}")
    return frozenset(names)


def is_claimed(claims: Container[str], pattern: KeyPattern) -> bool:
    """Whether the claims contain all keys of a pattern; without claims, they contain every key."""
    return not claims or next(beginnings(text_of(pattern.literal_prefix), claims), None) is not None


def _not_claimed(context: CompilerContext, text: str, pattern: KeyPattern) -> str:
    """Returns the message about a text outside the claims, with the claim to add."""
    before, colon, _ = pattern.literal_prefix.partition(b":")
    remedy = f"; list {printable(before + colon)!r} under claims too" if colon else ""
    return f"{text!r} is outside the policy's claims ({', '.join(context.model.claims)}){remedy}"


def is_bare(pattern: KeyPattern) -> bool:
    """Whether the pattern is one key without a prefix, such as Sidekiq's `queues`. It needs no claim."""
    return pattern.is_literal and SEPARATOR not in pattern.literal_prefix


def _expansions(
    context: CompilerContext, model: EntryModel, path: tuple[str, ...]
) -> Iterable[tuple[str, list[Scope]]]:
    """Returns what a key stands for, each with the scopes of which one must contain it; none: any scope
    may."""
    hole = f"<{SCOPE_HOLE}>"
    if hole not in model.key:
        return [(model.key, [])]
    if not context.model.scopes:
        message = "<scope> stands for the policy's scopes, and there are none"
        context.error((*path, "key"), message, relies_on=[("scopes",)])
    named: dict[str, list[Scope]] = {}
    for scope in context.scopes:
        named.setdefault(scope.name, []).append(scope)
    return [(model.key.replace(hole, escaped(name)), scopes) for name, scopes in named.items()]


def _report_outside(
    context: CompilerContext, outside: Sequence[tuple[str, Scope]], path: tuple[str, ...]
) -> None:
    """Records keys with <scope> that are outside that scope: one fault, however many there are."""
    if not outside:
        return
    text, scope = outside[0]
    prefix = context.model.scopes[scope.name].prefix
    message = f"<scope> makes {text!r}, which is outside the scope's prefix {prefix!r}"
    more = f" (and {len(outside) - 1} more like this)" if len(outside) > 1 else ""
    context.error((*path, "key"), message + more, relies_on=[("scopes",), ("bind",)])


def _scope_of(context: CompilerContext, pattern: KeyPattern) -> Scope | None:
    """Returns the scope of a pattern's keys: of all scopes around it, the one with the longest prefix."""
    return min(scopes_around(context, pattern), key=lambda scope: order(scope.pattern), default=None)


_HOLDING = frozenset({"writers", "readers", "consumers"})


def _has_rights(model: EntryModel) -> bool:
    """Whether an entry sets its own rights, which replace those around it."""
    return any(getattr(model, field) for field in _HOLDING)


def _reading(context: CompilerContext, model: EntryModel, home: Scope | None) -> Sequence[int]:
    """Returns the part of an entry's rights that comes from `readers` and `consumers`."""
    if _has_rights(model):
        return context.reading(model)
    return home.reading if home is not None else context.reading(context.model)


def _check_whose(
    context: CompilerContext, text: str, tenancy: Tenancy | None, home: Scope | None, path: tuple[str, ...]
) -> None:
    """Records an entry that has its scope's rights but not the placeholders that show who owns a key."""
    names = {place.name for place in tenancy.places} if tenancy is not None else set()
    places = home.tenancy.places if home is not None and home.tenancy is not None else ()
    missing = next((place.name for place in places if place.name not in names), "")
    if home is not None and missing:
        message = f"{text!r} is in the scope {home.name}, where each <{missing}> has its own part"
        context.error(path, f"{message}; write <{missing}> here too, or give the entry rights of its own")


def _entry_rights(
    context: CompilerContext,
    model: EntryModel,
    own: tuple[list[int], list[int]],
    home: Scope | tuple[list[int], list[int]],
    path: tuple[str, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns an entry's rights and denials. Its rights replace those of its scope, or for an entry in no
    scope those at the policy's top. Denials add up."""
    held, denied = own
    around, denied_around = (home.rights, home.denied) if isinstance(home, Scope) else home
    if not _has_rights(model):
        for field in sorted(_HOLDING & model.model_fields_set):
            message = "an entry that lists no service has the rights around it, those of its scope"
            remedy = "list services, or deny_write and deny_read, or take the empty list out"
            context.error((*path, field), f"{message}; {remedy}")
        if not isinstance(home, Scope) and not any(around):
            message = (
                "in no scope and without writers or readers, so no service could use it; write them here, or"
            )
            context.error(
                path,
                f"{message} at the policy's top for all such entries",
                of_key=True,
                relies_on=[("scopes",), ("writers",), ("readers",), ("consumers",)],
            )
        held = list(around)
    return tuple(held), tuple(map(operator.or_, denied, denied_around))
