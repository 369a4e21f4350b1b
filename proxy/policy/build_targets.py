"""All that a key can be, in the order in which it decides; see docs/policy.md, "Which rule fires".

Rule: entries, then legacy forms, then what begins as an entry does, then scopes, then claims: one key has
one answer.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

from .bind import alike
from .compiled import Target
from .draft import Draft
from .patterns import exact_pattern, prefix_pattern


def build_targets(draft: Draft) -> list[Target]:
    """All targets in the order in which they decide; see docs/policy.md, "Which rule fires"."""
    entries = sorted(draft.entries, key=lambda target: target.pattern.specificity)
    legacy = sorted(draft.legacy, key=lambda target: target.pattern.specificity)
    strays = sorted(draft.strays, key=lambda target: target.pattern.specificity)
    return [*entries, *legacy, *strays, *_malformed(draft), *_scope_targets(draft), *_claim_targets(draft)]


def _malformed(draft: Draft) -> list[Target]:
    """Keys that begin as an entry's do but break its form: the longest beginning decides."""
    targets = []
    seen: set[bytes] = set()
    behind = secrets_behind(draft.entries)
    prefixes = sorted(draft.by_prefix)
    for target in sorted(draft.entries, key=lambda t: len(t.pattern.literal_prefix), reverse=True):
        prefix = target.pattern.literal_prefix
        if not prefix or target.pattern.is_literal or prefix in seen or _is_scope_prefix(prefixes, prefix):
            continue
        seen.add(prefix)
        broken = dataclasses.replace(
            target,
            kind="malformed",
            pattern=prefix_pattern(prefix),
            secrets=behind[prefix],
            standard=target.pattern,
        )
        targets.append(broken)
        if prefix.endswith(b":"):  # the id is missing together with its colon
            targets.append(dataclasses.replace(broken, pattern=exact_pattern(prefix[:-1])))
    return targets


def _is_scope_prefix(prefixes: Sequence[str], prefix: bytes) -> bool:
    """Whether one of the prefixes, which are sorted, begins so."""
    text = prefix.decode("utf-8", "surrogateescape")
    at = bisect.bisect_left(prefixes, text)
    return at < len(prefixes) and prefixes[at].startswith(text)


def _scope_targets(draft: Draft) -> list[Target]:
    ordered = sorted(draft.scopes, key=lambda scope: len(scope.prefix), reverse=True)
    return [
        Target(
            kind="scope",
            name=scope.name,
            pattern=prefix_pattern(scope.prefix.encode()),
            rights=scope.rights,
            denied=scope.denied,
            entry=scope.asked,
            text=scope.prefix + "…",
            secrets=frozenset(),
            should=scope.should,
            hash_tag=scope.hash_tag,
            bound=scope.bound,
            alike=alike(draft, scope.bound),
            written_by=scope.written_by,
            is_open=draft.model.scopes[scope.name].unregistered == "allow",
        )
        for scope in ordered
    ]


def _claim_targets(draft: Draft) -> list[Target]:
    nothing = (0,) * len(draft.services)
    hash_tag, should = draft.asked()
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
        for claim in sorted(draft.model.claims, key=len, reverse=True)
    ]


def secrets_behind(targets: Iterable[Target]) -> dict[bytes, frozenset[str]]:
    """By what patterns begin with: the secret placeholders of all that begin so. What is of no form may be
    meant as any of them."""
    behind: dict[bytes, frozenset[str]] = {}
    for target in targets:
        prefix = target.pattern.literal_prefix
        behind[prefix] = behind.get(prefix, frozenset()) | target.secrets
    return behind
