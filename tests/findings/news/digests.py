"""Digests made by hand."""

from __future__ import annotations

from typing import Any

from keyfence.findings.finding import DAY
from tests.findings.rows import NOON


def found(one: str = "f-000000000001", **fields: Any) -> dict[str, Any]:
    """A finding as a digest has it."""
    values = {
        "id": one,
        "service": "web",
        "rule": "key.unregistered",
        "severity": "must",
        "command": "SET",
        "entry": "",
        "shape": "shop:crat:<n>",
        "owner": "",
        "state": "new",
        "why": "first seen",
        "at": NOON,
        "count": 7,
        "cause": "",
    }
    return values | fields


def waiver(**fields: Any) -> dict[str, Any]:
    """A waiver that ends a day after noon."""
    values = {
        "what": "waiver",
        "service": "web",
        "rule": "ttl.required",
        "owner": "",
        "reason": "known",
        "on": "cart",
        "until": NOON + DAY / 2,
    }
    return values | fields


def digest(**lists: Any) -> dict[str, Any]:
    """A digest of the day before noon, with these lists."""
    names = ("new", "reopened", "better", "lapsed", "ending", "enforced", "relaxed", "ready")
    empty: dict[str, Any] = {name: [] for name in names}
    return {"environment": "prod", "since": NOON - DAY, "until": NOON, "more": {}, **empty, **lists}
