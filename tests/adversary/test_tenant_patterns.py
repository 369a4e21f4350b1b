"""Searches for a pattern of KEYS that shows a tenant the name of another tenant's key.

The policies are random, and each admitted pattern is compared with every short key.
"""

from __future__ import annotations

import itertools
import random
import re

from keyfence.policy.compiled.tenants import Caller, Values
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from tests.adversary.conftest import Search

KEYS = [bytes(key) for size in range(1, 7) for key in itertools.product(b"ab:", repeat=size)]
TENANTS = (b"a", b"ab", b"b", b"c")
PATTERNS = (
    "a:<tenant>",
    "<x>:<tenant>:<y>",
    "<tenant>",
    "b<x>:<tenant>",
    "<tenant>:<x>",
    "<x>:<tenant>",
    "a:<tenant>:<x>",
    "a:<x...>",
    "a:<x>:<tenant>:<y>",
    "<author>:<x>",
    "b:<tenant>:<author>",
    "<x>:b:<tenant>",
)
SCOPES = ("", 'prefix: "a:<tenant>:"', 'prefix: "<x>:<tenant>:"', 'prefix: "a:"')
PIECES = (b"a", b"b", b"ab", b":", b":", b"*", b"?", b"[ab]", b"[a]")


def policy(rng: random.Random) -> str:
    value, name = (
        rng.choice(["[ab]{1,2}", "[ab]+", "a|b|ab"]),
        rng.choice(["[ab]{1,2}", "[ab]+", "[^:]{1,3}"]),
    )
    scope = rng.choice(SCOPES)
    entries = [
        f'  e{number}: {{key: "{rng.choice(PATTERNS)}", writers: app{rng.choice(["", ", readers: app"])}}}'
        for number in range(rng.randrange(1, 4))
    ]
    source = '{from: user, pattern: "t-(.*)"}'
    return "\n".join(
        [
            "policy: p",
            "services: [app]",
            f'placeholders: {{x: "{value}", y: "{value}", tenant: "{name}", author: "{name}"}}',
            f"bind: {{tenant: {source}, author: {{write: {source}}}}}",
            f"scopes: {{s: {{{scope}, writers: app, unregistered: allow}}}}" if scope else "",
            "keys:",
            *entries,
            'commands: {allow: "*"}',
        ]
    )


def as_expression(glob: bytes) -> re.Pattern[bytes]:
    """Returns the regular expression that is equivalent to a glob."""
    return re.compile(glob.replace(b"*", b".*").replace(b"?", b"."))


def may_see(evaluator: Evaluator, key: bytes, values: Values) -> bool:
    return all(one.rule != "scope.read" for one in evaluator.decide(0, [b"EXISTS", key], values).violations)


def test_no_pattern_shows_the_name_of_another_tenant_s_key(search: Search) -> None:
    admitted = 0
    for rng in search.attempts_of_at_least(60):
        text = policy(rng)
        try:
            loaded = parse_policy(text)
        except FileError:
            continue  # two entries for one key, or an ambiguous place
        evaluator = Evaluator(loaded)
        values = {tenant: loaded.values(Caller(b"t-" + tenant)) for tenant in TENANTS}
        for _ in range(30):
            glob = b"".join(rng.choices(PIECES, k=rng.randrange(1, 7)))
            tenant = rng.choice(TENANTS)
            if evaluator.decide(0, [b"KEYS", glob], values[tenant]).violations:
                continue
            admitted += 1
            for key in filter(as_expression(glob).fullmatch, KEYS):
                readers = {one for one in TENANTS if may_see(evaluator, key, values[one])}
                target = loaded.target(key)
                # For a malformed key without an owner, its place decides to whom its name may be shown.
                is_nobodys = not readers and target is not None and target.kind == "malformed"
                assert tenant in readers or is_nobodys, (text, tenant, glob, key)
    assert admitted
