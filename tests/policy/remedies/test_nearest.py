from __future__ import annotations

import pytest

from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.remedies.nearest import Slip, nearest_entry, slip

POLICY = parse_policy("""
policy: shop
services: [shop, pricing]
placeholders: {id: "[a-z0-9]+"}
keys:
  session: {key: "hb:session:<id>", writers: [shop]}
  price: {key: "hb:price:<id>", writers: [shop]}
""")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("bh:session:7", Slip("bh:", "hb:")),
        ("hb:sesion:7", Slip("hb:sesion:", "hb:session:")),
        ("hbb:price:<int>", Slip("hbb:", "hb:")),
        ("hb:price", None),
        ("hb:price:7:8", None),
        ("metrics:cpu:7", None),
        ("x", None),
    ],
)
def test_a_key_near_to_an_entry_shows_where_it_differs(key: str, expected: Slip | None) -> None:
    found = nearest_entry(POLICY, 0, key.encode())
    assert (slip(found, key.encode()) if found is not None else None) == expected


def test_explain_asks_the_same_question() -> None:
    told = explain(POLICY, "shop", [b"GET", b"bh:session:7"])["remedies"]
    assert told[0]["text"] == "did you mean hb:? the nearest entry is session: hb:session:<id>"
    assert told[0]["command"] == "GET hb:session:7"
