"""Keys are classified once. What is known of them holds only under the policy that has classified them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from keyfence.commands.model import Streamed
from keyfence.policy.compiled.key_targets import KeyTargets
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluation import Known
from keyfence.policy.loading.load import parse_policy

POLICY = """
policy: p
services: [app]
placeholders: {id: "[a-z]+"}
keys:
  new: {key: "new:<id>", writers: app, readers: app}
legacy: {until: 2030-01-01, on_expiry: refuse, allow: [read], keys: {"old:<id>": new}}
"""
GET = [b"GET", b"old:a"]


def test_a_key_is_classified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KeyTargets(parse_policy(POLICY))
    first = keys.target(b"new:a"), keys.target(b"stray")
    monkeypatch.setattr(CompiledPolicy, "target", None)
    assert (keys.target(b"new:a"), keys.target(b"stray")) == first
    assert [one and one.kind for one in first] == ["entry", None]


def test_the_beginning_of_a_streamed_key_is_another_key() -> None:
    policy = parse_policy(POLICY)
    keys = KeyTargets(policy)
    beginning = Streamed(b"new:a", 5_000)
    assert keys.target(beginning) is policy.target(beginning)
    assert keys.target(b"new:a") is policy.target(b"new:a") is not keys.target(beginning)


def test_keys_that_the_cache_has_classified_are_not_handed_on_across_a_lapse() -> None:
    """The right on the old form ends after the cache has looked at the key, and before it is evaluated."""
    policy = parse_policy(POLICY)
    now = [datetime(2029, 12, 31, tzinfo=UTC).timestamp()]
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services), clock=lambda: now[0])
    cache = authorizer.cache(0, frozenset({"GET"}))
    known = cache.known(cache.find(GET), GET)
    assert authorizer.authorize(Asker(0), GET, known)[0].refused_by is None
    now[0] = datetime(2030, 2, 1, tzinfo=UTC).timestamp()
    refused_by = authorizer.authorize(Asker(0), GET, known)[0].refused_by
    assert refused_by is not None
    assert refused_by.rule == "key.legacy"


def test_keys_of_another_policy_are_classified_anew() -> None:
    policy, other = parse_policy(POLICY), parse_policy(POLICY.replace("new:<", "other:<"))
    authorizer = Authorizer(policy, Modes([ModeRule("enforce")], policy.services))
    known = Known(None, KeyTargets(other, {b"stray": policy.target(b"new:a")}))
    refused_by = authorizer.authorize(Asker(0), [b"GET", b"stray"], known)[0].refused_by
    assert refused_by is not None
    assert refused_by.rule == "key.unregistered"
