"""The share of a digest that one target gets, and whether there is anything in it.

Rule: what belongs to an owner whom the configuration names goes to that owner's targets, and everything else
to those of `to`. Nothing is left out in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .digest import ENDS, LISTS, MODES_OF, Digest
from .plan import Target


def share_of(digest: Digest, target: Target, targets: Iterable[Target]) -> Digest:
    """What this one of the targets gets. `others` says how much went to which owner instead."""
    named = frozenset[str]().union(*(one.owners for one in targets))

    def is_its_own(row: Mapping[str, Any]) -> bool:
        return row["owner"] in target.owners or (target.gets_rest and row["owner"] not in named)

    found = {name: [row for row in digest[name] if is_its_own(row)] for name in (*LISTS, *ENDS)}
    rest = {name: digest[name] if target.gets_rest else [] for name in MODES_OF}
    away = [row["owner"] for name in LISTS for row in digest[name] if not is_its_own(row)]
    return {
        **{name: digest[name] for name in ("environment", "since", "until")},
        "owners": sorted(target.owners),
        **found,
        **rest,
        "ready": (digest["ready"] or []) if target.gets_rest else [],
        "knows_ready": digest["ready"] is not None,
        "more": digest["more"] if target.gets_rest else {},
        "others": dict(sorted(Counter(away).items())) if target.gets_rest else {},
    }


def only_of(digest: Digest, owner: str) -> Digest:
    """What an owner gets who has a target; "" for the whole digest."""
    target = Target(owners=frozenset({owner} if owner else ()), gets_rest=not owner)
    return share_of(digest, target, [target])


def is_quiet(share: Mapping[str, Any]) -> bool:
    """Whether a share has nothing in it that was not told before."""
    has_ready = any(one["new"] for one in share["ready"])
    return not has_ready and not any(share[name] for name in (*LISTS, *ENDS, *MODES_OF))


def causes_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Findings by their common cause, in their order; one without a common cause stands alone."""
    found: list[tuple[str, list[Mapping[str, Any]]]] = []
    for row in rows:
        if row["cause"] and found and found[-1][0] == row["cause"]:
            found[-1][1].append(row)
        else:
            found.append((row["cause"], [row]))
    return found
