"""Orders the targets of one file: everything that a key can be, in the order in which it decides.

Rule: entries come first, then legacy forms. Then come keys that begin like an entry, and scopes, of which the
longest beginning decides; then claims. So one key has one answer. See docs/policy.md, "Which rule fires".
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable

from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.tenants import head
from keyfence.policy.patterns.patterns import KeyPattern, Literal, prefix_pattern, written

from .bindings import alike
from .context import CompilerContext, Scope, one_of
from .prefixes import PrefixIndex, begins, behind, fixed_parts, length, order


def build_targets(context: CompilerContext) -> list[Target]:
    """Returns all targets of a file in the order in which they decide."""
    entries = sorted(context.entries, key=lambda target: target.pattern.specificity)
    legacy = sorted(context.legacy, key=lambda target: target.pattern.specificity)
    strays = sorted(context.strays, key=lambda target: target.pattern.specificity)
    return [
        *entries,
        *legacy,
        *strays,
        *_by_beginning(context),
        *_claim_targets(context),
    ]


def _by_beginning(context: CompilerContext) -> list[Target]:
    """Returns targets for keys that begin like an entry but break its form, and for those in a scope. The
    longest beginning decides; of equally long ones, that of an entry."""
    both = [*_malformed(context), *((length(one.pattern), one) for one in _scope_targets(context))]
    return [target for _, target in sorted(both, key=lambda one: one[0], reverse=True)]


def _malformed(context: CompilerContext) -> list[tuple[tuple[int, int], Target]]:
    """Returns targets for keys that begin like an entry but break its form, each with the length of the
    beginning; the more specific one of equally long ones first."""
    begun = [
        (_beginning(target, home), target)
        for target, home in zip(context.entries, context.homes, strict=True)
    ]
    secrets: dict[KeyPattern, frozenset[str]] = {}
    for beginning, target in begun:
        secrets[beginning] = one_of(secrets.get(beginning, frozenset()) | target.secrets)
    targets = []
    seen: set[KeyPattern] = set()
    covers = _Covers(context, secrets)
    for beginning, target in sorted(begun, key=lambda one: order(one[0])):
        is_whole = len(fixed_parts(beginning)) == len(target.pattern.parts)
        if is_whole or beginning in seen or covers.a_scope(beginning):
            continue
        seen.add(beginning)
        broken = dataclasses.replace(
            target,
            kind="malformed",
            pattern=beginning,
            secrets=secrets[beginning],
            standard=target.pattern,
        )
        targets.append((length(beginning), broken))
        *before, last = fixed_parts(beginning)
        if isinstance(last, Literal) and last.text.endswith(b":"):  # a key without the id and its colon
            cut = [Literal(last.text[:-1])] if len(last.text) > 1 else []
            short = (*before, *cut)
            pattern = KeyPattern(written(short), short)
            targets.append((length(beginning), dataclasses.replace(broken, pattern=pattern)))
    return targets


def _beginning(target: Target, home: Scope | None) -> KeyPattern:
    """Returns the beginning of a target's keys: the scope's prefix and placeholders bound to the caller, up
    to the next placeholder."""
    own = head(target.pattern, target.tenancy)
    if home is None or home.pattern.is_prefix:
        return begins(own)
    around = behind(target.pattern, home.pattern)
    return begins(own if len(own) > len(around) else around)


class _Covers:
    """The beginnings that do not tell an entry, because a whole scope has them."""

    def __init__(self, context: CompilerContext, beginnings: Iterable[KeyPattern]) -> None:
        self._sorted = sorted(scope.pattern.literal_prefix for scope in context.scopes)
        families = PrefixIndex((one, one) for one in dict.fromkeys(beginnings) if not one.is_prefix)
        self._families = {one for scope in context.scopes for one in families.around(scope.pattern)}

    def a_scope(self, beginning: KeyPattern) -> bool:
        """Whether a beginning is empty, or all keys of a scope have it."""
        if not beginning.is_prefix:
            return beginning in self._families
        literal = beginning.literal_prefix
        at = bisect.bisect_left(self._sorted, literal)
        return not literal or (at < len(self._sorted) and self._sorted[at].startswith(literal))


def _scope_targets(context: CompilerContext) -> list[Target]:
    ordered = sorted(context.scopes, key=lambda scope: order(scope.pattern))
    return [
        Target(
            kind="scope",
            name=scope.name,
            pattern=scope.pattern,
            tenancy=scope.tenancy,
            rights=scope.rights,
            denied=scope.denied,
            entry=scope.asked,
            text=scope.prefix + "…",
            secrets=frozenset(),
            should=scope.should,
            hash_tag=scope.hash_tag,
            bound=scope.bound,
            alike=alike(context, scope.bound),
            written_by=scope.written_by,
            is_open=context.model.scopes[scope.name].unregistered == "allow",
            unregistered_scripts=scope.unregistered_scripts,
        )
        for scope in ordered
    ]


def _claim_targets(context: CompilerContext) -> list[Target]:
    nothing = (0,) * len(context.services)
    hash_tag, should = context.asked()
    return [
        Target(
            "claim",
            "",
            prefix_pattern(claim.encode()),
            nothing,
            nothing,
            None,
            claim + "…",
            frozenset(),
            should=should,
            hash_tag=hash_tag,
        )
        for claim in sorted(context.model.claims, key=len, reverse=True)
    ]


def secrets_behind(targets: Iterable[Target]) -> dict[bytes, frozenset[str]]:
    """Returns, by literal beginning, the secret placeholders of all patterns with that beginning. A key that
    breaks every form may be meant as any of them."""
    behind: dict[bytes, frozenset[str]] = {}
    for target in targets:
        prefix = target.pattern.literal_prefix
        behind[prefix] = behind.get(prefix, frozenset()) | target.secrets
    return behind
