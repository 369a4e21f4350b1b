"""The hint about a key of no entry: the entries behind a missing prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.compiled.policy import MAX_CONFIRMED, CompiledPolicy, Target
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.wording.instead import Instead, MissingPrefixes
from tests.policy.cases import POLICIES

TENANTS = """
policy: p
services: [a]
placeholders: {tenant: "[a-z]{1,8}", id: "[a-z0-9]{1,8}"}
bind: {tenant: {from: user}}
scopes: {s: {prefix: "s:", writers: [a]}, t: {prefix: "t:", writers: [a]}, u: {prefix: "u:v1:", writers: [a]}}
keys:
  own: {key: "s:own:<tenant>:<id>"}
  item: {key: "s:item:<id>"}
  other: {key: "t:item:<id>"}
  long: {key: "u:v1:<id...>"}
"""
CUBE = load_policy(POLICIES / "cubesandbox.yaml")
POLICY = {"cubesandbox": CUBE, "tenants": parse_policy(TENANTS)}
MISSING = {name: MissingPrefixes(policy) for name, policy in POLICY.items()}
WORDS = "node metric : : : n1 own item a a a1 instance meta lock x idemp sandbox proxy lifecycle state \u00e9"
PIECES = st.sampled_from(WORDS.split())
KEYS = st.lists(PIECES, max_size=7).map(lambda pieces: "".join(pieces).encode())


def the_obvious_way(policy: CompiledPolicy, key: bytes) -> list[tuple[bytes, Target]]:
    """Returns what `entries` does, from the policy's answer for each key."""
    prefixes = [one.pattern.literal_prefix for one in policy.targets if one.kind == "scope"]
    behind = [(prefix + key, policy.target(prefix + key)) for prefix in dict.fromkeys(prefixes)]
    return [
        (key, target)
        for key, target in behind
        if target is not None and target.kind == "entry" and target.tenancy is None
    ]


@given(st.sampled_from(sorted(POLICY)), KEYS)
def test_the_entries_behind_a_missing_prefix_are_those_of_the_policy(name: str, key: bytes) -> None:
    expected = the_obvious_way(POLICY[name], key)
    assert MISSING[name].entries(key) == expected
    hint = Instead(lambda _: "an entry", MISSING[name], "none").fill(key)
    assert hint in (b"an entry", b"none")
    assert hint == b"an entry" or not expected


def test_most_keys_need_no_words_to_find_that_no_prefix_is_missing() -> None:
    missing = MISSING["cubesandbox"]
    assert missing.entries(b"node:metric:n1") == [
        (b"cube:v1:master:node:metric:n1", CUBE.target(b"cube:v1:master:node:metric:n1"))
    ]
    assert missing.may_complete(b"node:metric:n1")
    assert [key for key in (b"bench:user:17", b"jwt:a", b"", b"cube:v1:x") if missing.may_complete(key)] == []


def test_an_entry_whose_keys_belong_to_single_callers_is_no_hint() -> None:
    assert POLICY["tenants"].target(b"s:own:a:1") is not None
    assert [key for key, _ in MISSING["tenants"].entries(b"own:a:1")] == [b"u:v1:own:a:1"]
    found = [key for key, _ in MISSING["tenants"].entries(b"item:1")]
    assert sorted(found) == [b"s:item:1", b"t:item:1", b"u:v1:item:1"]


def test_a_key_that_becomes_too_long_behind_a_prefix_has_the_target_that_the_policy_gives_it() -> None:
    for size in (MAX_CONFIRMED - 6, MAX_CONFIRMED - 1, MAX_CONFIRMED):
        key = b"a" * size
        for name, policy in POLICY.items():
            assert MISSING[name].entries(key) == the_obvious_way(policy, key)
    assert MISSING["tenants"].entries(b"a" * (MAX_CONFIRMED + 1)) == []
