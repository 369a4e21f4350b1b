"""Claims and scopes: the prefixes of the keys, and whose they are.

Rule: each claim is literal text that all keys below it begin with. So is each scope's prefix, except for one
placeholder in a hash tag at its end. A scope has at least one writer, and every writer of its entries.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .kinds import Kind, Slot, literal, words_of
from .naming import TAG, unique
from .seen import ASKS, CONSUMES, READS, WRITES

# The share of kinds that are alone in their part of the keys, from which on the parts are words of the kinds
# and no scopes: shop:cart:<cart>, shop:order:<order>.
MANY_ALONE = 0.5
_BEHIND_TAG = "}:"


@dataclasses.dataclass(frozen=True)
class Rights:
    """Who may do what with keys of a kind."""

    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True)
class Scope:
    """A scope of the draft."""

    name: str
    prefix: str  # literal text
    rights: Rights
    kinds: list[Kind]
    tag: Slot | None = None  # the placeholder in a hash tag that follows the prefix, as in hb:{<tag>}:

    @property
    def pattern(self) -> str:
        """The prefix as a policy has it."""
        before = literal(self.prefix)
        return before if self.tag is None else f"{before}<{self.tag.name}>{_BEHIND_TAG}"

    @property
    def text(self) -> str:
        """The text with which that of its kinds begins."""
        return self.prefix if self.tag is None else " ".join((self.prefix, " ", _BEHIND_TAG))

    def holds(self, kind: Kind) -> bool:
        return kind.prefix.startswith(self.prefix) and (self.tag is None or _tag_of(kind) is self.tag)


def rights_of(kinds: Iterable[Kind]) -> Rights:
    """Returns the rights that the services need for what was seen of these kinds."""
    found: dict[str, int] = {}
    for kind in kinds:
        for service, use in kind.facts.uses.items():
            found[service] = found.get(service, 0) | use
    return Rights(
        tuple(sorted(name for name, use in found.items() if use & WRITES)),
        tuple(sorted(name for name, use in found.items() if use & (READS | ASKS) and use < CONSUMES)),
        tuple(sorted(name for name, use in found.items() if use & CONSUMES and not use & WRITES)),
    )


def claims_of(kinds: Sequence[Kind]) -> list[str]:
    """Returns the claims: the first part of all keys. Empty if some keys begin with a value."""
    found: set[str] = set()
    for kind in kinds:
        prefix = kind.prefix
        if ":" in prefix:
            found.add(prefix[: prefix.index(":") + 1])
        elif not kind.slots:
            continue  # a literal key without a colon may lie outside
        elif prefix:
            found.add(prefix)
        else:
            return []
    return sorted(one for one in found if not any(one != other and one.startswith(other) for other in found))


def scopes_of(kinds: Sequence[Kind], claims: Sequence[str]) -> list[Scope]:
    """Returns the scopes: one for each claim, or for each part below it if the parts have other writers; and
    one for the kinds that begin with the same hash tag. Without it, their keys begin alike up to the first
    placeholder, and each malformed key would count as one of the first entry."""
    found: dict[str, list[Kind]] = defaultdict(list)
    for claim in claims:
        inside = [kind for kind in kinds if kind.prefix.startswith(claim)]
        for prefix, group in _parts(claim, inside).items():
            found[prefix] += group
    places = [(prefix, group, None) for prefix, group in found.items()]
    scopes: list[Scope] = []
    for prefix, group, tag in sorted((*places, *_tagged(kinds)), key=lambda one: one[0]):
        rights = rights_of(group)
        if not rights.writers:
            continue
        words = [*words_of(prefix), *([TAG] if tag is not None else [])]
        name = unique("-".join(words[-1:]).lower() or "all", [one.name for one in scopes],
                      ["-".join(words).lower()])  # fmt: skip
        alike = {rights_of([kind]) for kind in group}
        common = rights if len(alike) == 1 else Rights(rights.writers)
        scopes.append(Scope(name, prefix, common, group, tag))
    return scopes


def _tagged(kinds: Iterable[Kind]) -> Iterator[tuple[str, list[Kind], Slot]]:
    """Yields the kinds that begin with one hash tag, with the text before its placeholder."""
    found: dict[int, list[Kind]] = defaultdict(list)
    for kind in kinds:
        found[id(_tag_of(kind))].append(kind)
    for group in found.values():
        tag = _tag_of(group[0])
        if tag is not None and len(group) > 1:
            yield group[0].prefix, group, tag


def _tag_of(kind: Kind) -> Slot | None:
    """Returns the placeholder of a kind that is all of a hash tag, and that only text comes before."""
    before, slot, behind = (*kind.parts[:3], "", "", "")[:3]
    is_tag = isinstance(before, str) and before.endswith("{")
    is_tag = is_tag and isinstance(behind, str) and behind.startswith(_BEHIND_TAG)
    return slot if is_tag and isinstance(slot, Slot) else None


def _parts(claim: str, kinds: list[Kind]) -> dict[str, list[Kind]]:
    first, last = min(kind.prefix for kind in kinds), max(kind.prefix for kind in kinds)
    same = itertools.takewhile(lambda two: two[0] == two[1], zip(first, last, strict=False))
    common = "".join(one for one, _ in same)
    base = common[: common.rfind(":") + 1] or claim
    parts: dict[str, list[Kind]] = defaultdict(list)
    for kind in kinds:
        rest = kind.prefix[len(base) :]
        parts[base + rest[: rest.find(":") + 1]].append(kind)
    if len(parts) < 2:
        return {claim: kinds}
    writers = {rights_of(group).writers for group in parts.values()} - {()}
    alone = sum(len(group) == 1 for group in parts.values())
    if len(writers) < 2 or alone >= MANY_ALONE * len(kinds):
        return {base: kinds}
    return parts


def scope_of(kind: Kind, scopes: Iterable[Scope]) -> Scope | None:
    """Returns the scope with the longest prefix around a kind."""
    around = [scope for scope in scopes if scope.holds(kind)]
    return max(around, key=lambda scope: len(scope.prefix), default=None)
