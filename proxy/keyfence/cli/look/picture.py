"""What `keyfence look` has seen so far, for its page: written to a file that the keyfence before the Redis
reads.

Rule: it holds the facts that the terminal shows, in the same words, and computes none of its own. Lists are
bounded.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keyfence.cli.keyspace.report import size_text

from .shown import about, expiry, looked_at, totals
from .there import Kind, There
from .used import NO_KEY, Service, Use

MAX_KINDS = 200  # of keys, in each list


@dataclasses.dataclass(slots=True)
class Picture:
    """What was seen of one Redis."""

    redis: str  # its URL, as it may be shown
    address: str  # where clients connect in its place
    client: str  # a command that does
    draft: str = ""  # the command that drafts a policy of what was seen; "": there is nothing to draft from
    is_kept: bool = False  # whether what clients did is kept for it
    there: There | None = None  # None: not known yet, or …
    why_not: str = ""  # … why it cannot be known
    services: Sequence[Service] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "redis": self.redis,
            "address": self.address,
            "client": self.client,
            "draft": self.draft,
            "is_kept": self.is_kept,
            "why_not": self.why_not,
            "there": None if self.there is None else _there(self.there),
            "services": [_service(one) for one in self.services],
            "totals": totals(self.services),
        }

    def write(self, path: Path) -> None:
        """Put it in the place of what the file held before."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self.as_json()), encoding="utf-8")
        fresh.replace(path)


def _there(there: There) -> dict[str, Any]:
    return {
        "database": there.database,
        "looked_at": looked_at(there),
        "is_sample": there.is_sample,
        "kinds": [_kind(there, one) for one in there.kinds[:MAX_KINDS]],
        "more": max(len(there.kinds) - MAX_KINDS, 0),
        "others": {str(number): keys for number, keys in sorted(there.others.items())},
        "notes": there.notes,
    }


def _kind(there: There, one: Kind) -> dict[str, Any]:
    return {
        "name": one.name,
        "keys": there.estimate(one.keys),
        "share": one.keys / there.looked_at,
        "size": size_text(there.estimate(one.size)),
        "types": one.by_number,
        "expires": expiry(one),
    }


def _service(one: Service) -> dict[str, Any]:
    uses = one.ordered
    return {
        "name": one.name,
        "about": about(one),
        "uses": [_use(use) for use in uses[:MAX_KINDS]],
        "more": max(len(uses) - MAX_KINDS, 0),
    }


def _use(one: Use) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "is_named": one.kind != NO_KEY,
        "reads": one.reads,
        "writes": one.writes,
        "commands": one.names,
    }
