from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.findings.batch import Batch
from keyfence.findings.database import Database
from keyfence.findings.finding import DAY
from keyfence.findings.queries import Reader
from keyfence.findings.store import Store
from keyfence.findings.unused import UnusedRight, unused_rights
from keyfence.policy.loading.load import load_policy
from tests.findings.rows import NOON

POLICY = """
policy: shop
claims: ["shop:"]
services: [orders, billing]
placeholders: {id: "[a-z0-9]+"}
scopes: {shop: {prefix: "shop:", writers: [orders]}}
keys:
  order: {key: "shop:order:<id>", writers: [orders], readers: [billing]}
legacy:
  allow: [read]
  keys: {"old:<id>": order}
grants: {billing: {commands: [DEL, UNLINK], keys: ["shop:order:*"]}}
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/findings.db"


def test_rights_that_nobody_used_are_listed_with_their_last_use(
    store: Store, database: Database, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    policy = load_policy(tmp_path / "policy.yaml")
    made = Batch()
    made.add_uses([("orders", "write", "order", 1), ("orders", "legacy", "old:<id>", 1)], NOON)
    made.add_uses([("orders", "read", "order", 1)], NOON - 40 * DAY)
    store.write(made)
    found = unused_rights(policy, Reader(database), NOON - 30 * DAY)
    assert UnusedRight("orders", "read", "order", NOON - 40 * DAY) in found
    assert {one[:3] for one in found} == {
        ("orders", "read", "order"),
        ("billing", "read", "order"),
        ("orders", "read", "shop"),
        ("orders", "write", "shop"),
        ("billing", "legacy", "old:<id>"),
        ("billing", "grant", "DEL, UNLINK"),
    }
