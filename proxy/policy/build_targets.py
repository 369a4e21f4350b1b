"""All that a key can be, in the order in which it decides; see docs/policy.md, "Which rule fires".

Rule: entries, then legacy forms, then what begins as an entry does, then scopes, then claims: one key has
one answer.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from .bind import alike
from .compiled import Target
from .draft import Draft
from .patterns import Literal, Part, exactly, prefix_pattern, under
from .tenants import head, marked


def build_targets(draft: Draft) -> list[Target]:
    """All targets in the order in which they decide; see docs/policy.md, "Which rule fires"."""
    entries = sorted(draft.entries, key=lambda target: target.pattern.specificity)
    legacy = sorted(draft.legacy, key=lambda target: target.pattern.specificity)
    strays = sorted(draft.strays, key=lambda target: target.pattern.specificity)
    return [*entries, *legacy, *strays, *_malformed(draft), *_scope_targets(draft), *_claim_targets(draft)]


def _malformed(draft: Draft) -> list[Target]:
    """Keys that begin as an entry's do but break its form: the longest beginning decides."""
    targets = []
    prefixes = sorted(draft.by_prefix)
    for begins, broken in broken_forms(draft.entries):
        if _is_scope_prefix(prefixes, marked(begins)):
            continue
        targets.append(broken)
        last = begins[-1]
        if isinstance(last, Literal) and last.text.endswith(b":"):  # the id is missing with its colon
            rest = [Literal(last.text[:-1])] if last.text != b":" or len(begins) == 1 else []
            targets.append(dataclasses.replace(broken, pattern=exactly(*begins[:-1], *rest)))
    return targets


def broken_forms(targets: Sequence[Target]) -> Iterator[tuple[tuple[Part, ...], Target]]:
    """What keys begin with that a target's pattern is about, and what they are if they go on in another way:
    the longest beginnings first."""
    behind = secrets_behind(targets)
    seen: set[tuple[Part, ...]] = set()
    heads = {id(target): head(target.pattern, target.tenancy) for target in targets}

    def length(target: Target) -> tuple[int, int]:
        texts = [len(part.text) for part in heads[id(target)] if isinstance(part, Literal)]
        return len(target.pattern.literal_prefix), sum(texts)

    for target in sorted(targets, key=length, reverse=True):
        begins = heads[id(target)]
        if not begins or len(begins) == len(target.pattern.parts) or begins in seen:
            continue
        seen.add(begins)
        secrets = behind[target.pattern.literal_prefix]
        pattern = under(*begins)
        yield (
            begins,
            dataclasses.replace(
                target, kind="malformed", pattern=pattern, secrets=secrets, standard=target.pattern
            ),
        )


def _is_scope_prefix(prefixes: Sequence[str], text: str) -> bool:
    """Whether one of the prefixes, which are sorted, begins so."""
    at = bisect.bisect_left(prefixes, text)
    return at < len(prefixes) and prefixes[at].startswith(text)


def _scope_targets(draft: Draft) -> list[Target]:
    ordered = sorted(draft.scopes, key=lambda scope: len(scope.prefix), reverse=True)
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
