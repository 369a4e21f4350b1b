from __future__ import annotations

import pytest

from keyfence.audit.judge import Facts, Judge
from keyfence.audit.renames import Rename, rename_of
from keyfence.policy.loading.load import parse_policy
from tests.audit.shop import facts, judge

MINUTE = 60_000
FAMILY = """
policy: p
services: [web, jobs]
placeholders: {id: "[a-z0-9]+"}
bind: {who: {web: web, jobs: jobs}}
keys: {task: {key: "<who>:task:<id>", type: string, writers: [web, jobs]}}
legacy: {keys: {"task-<id>": task, "web-task-<id>": {entry: task, member: {who: web}}}}
"""


def rename(key: str, found: Facts, by: Judge | None = None) -> Rename | None:
    by = by or judge()
    return rename_of(by, key.encode(), by.look(key.encode()), found, 0)


def test_a_legacy_key_goes_to_its_standard_form() -> None:
    found = rename("order-7", facts())
    assert found == Rename(b"order-7", "order-7", 0, "order", "hash", b"shop:main:order:7", None)


def test_a_replaced_entry_s_key_goes_to_the_newer_form() -> None:
    found = rename("shop:main:stock:7", facts("string"))
    assert found is not None
    assert found.new == b"shop:main:stock:v2:7"


@pytest.mark.parametrize("key", ["shop:main:order:7", "user:7", "shop:free:x", "shop:main:lost:7"])
def test_other_keys_stay(key: str) -> None:
    assert rename(key, facts()) is None


def test_a_time_to_live_is_kept() -> None:
    found = rename("cart-7", facts(ttl=5 * MINUTE))
    assert found is not None
    assert (found.ttl, found.sets_ttl, found.why) == (5 * MINUTE, False, "")


def test_a_missing_time_to_live_is_the_policy_s_own() -> None:
    found = rename("cart-7", facts())
    assert found is not None
    assert (found.new, found.ttl, found.sets_ttl) == (b"shop:main:cart:7", 10 * MINUTE, True)


@pytest.mark.parametrize(
    ("key", "found", "why"),
    [
        ("order-7", facts("string"), "it is a string, and order is a hash"),
        (
            "order-7",
            facts(ttl=MINUTE),
            "it has a time to live, and order must have none; PERSIST it or let it expire",
        ),
        (
            "cart-7",
            facts(ttl=90 * MINUTE),
            "its time to live is too long for cart: at most 1h; shorten it",
        ),
        (
            "note-7",
            facts("string"),
            "shop:main:note:<id>:<tag> has <tag>, which the old key does not show",
        ),
    ],
)
def test_what_cannot_be_derived_has_a_reason(key: str, found: Facts, why: str) -> None:
    one = rename(key, found)
    assert one is not None
    assert (one.new, one.why) == (None, why)


def test_a_family_s_member_is_only_known_if_the_form_names_it() -> None:
    by = Judge(parse_policy(FAMILY))
    named = rename("web-task-7", facts("string"), by)
    assert named is not None
    assert named.new == b"web:task:7"
    unclear = rename("task-7", facts("string"), by)
    assert unclear is not None
    assert unclear.new is None
    assert "<who>, which the old key does not show" in unclear.why


def test_a_new_key_that_would_break_a_rule_is_not_derived() -> None:
    text = """
policy: p
services: [a]
names: {max_length: 12}
placeholders: {id: "[a-z0-9]+"}
keys: {task: {key: "long:task:<id>", type: string, writers: [a]}}
legacy: {keys: {"t-<id>": task}}
"""
    by = Judge(parse_policy(text))
    fine, long = rename("t-7", facts("string"), by), rename("t-1234567", facts("string"), by)
    assert fine is not None
    assert long is not None
    assert fine.new == b"long:task:7"
    assert (long.new, long.why) == (None, "the new key would break key.length")


def test_a_secret_is_whole_in_the_rename_and_masked_for_people() -> None:
    found = rename("session-abcdefgh1234", facts("string"))
    assert found is not None
    assert found.new == b"shop:main:session:abcdefgh1234"
    assert found.shown == "session-<token>"
