"""Large arguments of which keyfence keeps only the beginning.

Rule: the beginning is never taken for the whole argument.
"""

from __future__ import annotations

import hashlib

import pytest

from keyfence.commands.model import Streamed
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.pending import PendingTtls
from keyfence.policy.loading.load import parse_policy
from keyfence.resp.requests import HEAD

SIZE = 2_000_000
KEY = b"k:" + b"a" * (HEAD - 2)  # as long as the kept beginning of a large argument
TEXT = b"return redis.call('SET', KEYS[1], ARGV[1])".ljust(HEAD)
POLICY = parse_policy(
    f"""
policy: streamed
services: [own, all]
placeholders: {{name: "[a-z0-9]{{1,4000}}"}}
scopes:
  s: {{prefix: "k:", writers: [own], readers: [own]}}
  t: {{prefix: "t:", writers: [own], readers: [own]}}
grants: {{all: {{commands: [GET, SCAN, "@pubsub"], keys: ["*"]}}}}
keys:
  any: {{key: "k:<name>"}}
  timed: {{key: "t:<name>", ttl: {{max: 1h}}}}
  board: {{key: "k:board:<name>", type: zset, scores: "0..100"}}
channels: {{c: {{channel: "k:<name>", publishers: [own], subscribers: [own]}}}}
scripts:
  known: {{sha1: {hashlib.sha1(TEXT).hexdigest()}, keys: 1, declared: write}}
  made: {{sha1: {"ab" * 20}, keys: 1, declared: write, writes: ["k:<ARGV.1>"]}}
"""
)


def rules(service: str, *argv: bytes) -> list[str]:
    authorizer = Authorizer(POLICY, Modes((ModeRule("enforce"),), POLICY.services))
    return [
        violation.rule for violation, _ in authorizer.rule(Asker(authorizer.number(service)), argv).findings
    ]


def beginning(argument: bytes) -> Streamed:
    return Streamed(argument[:HEAD], SIZE)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([b"GET", KEY], []),
        ([b"GET", beginning(KEY)], ["key.unregistered"]),
        ([b"SCAN", b"0", b"MATCH", b"k:*"], []),
        ([b"SCAN", b"0", b"MATCH", beginning(b"k:*" + b"?" * HEAD)], ["scan.scope"]),
        ([b"PUBLISH", KEY, b"x"], []),
        ([b"PUBLISH", beginning(KEY), b"x"], ["channel.write"]),
        ([b"PSUBSCRIBE", b"k:a"], []),
        ([b"PSUBSCRIBE", beginning(KEY)], ["channel.read"]),
        ([b"ZADD", b"k:board:a", b"1.0", b"m"], []),
        ([b"ZADD", b"k:board:a", beginning(b"1." + b"0" * HEAD), b"m"], ["value.invalid"]),
        ([b"EVAL", TEXT, b"1", b"k:a"], []),
        ([b"EVALSHA", b"ab" * 20, b"1", b"k:a", b"b"], []),
        ([b"EVALSHA", b"ab" * 20, b"1", b"k:a", beginning(b"b" * HEAD)], ["script.keys"]),
    ],
)
def test_an_incomplete_name_matches_nothing_in_the_policy(argv: list[bytes], expected: list[str]) -> None:
    assert rules("own", *argv) == expected


def test_a_script_with_the_beginning_of_a_registered_one_is_unregistered() -> None:
    authorizer = Authorizer(POLICY, Modes((), POLICY.services))
    _, evaluation = authorizer.authorize(Asker(0), [b"EVAL", beginning(TEXT), b"1", b"k:a"])
    script = evaluation.touches.script
    assert script is not None
    assert POLICY.registration(script) is None


def test_removing_a_key_with_the_same_beginning_settles_nothing() -> None:
    pending = PendingTtls()
    authorizer = Authorizer(POLICY, Modes((), POLICY.services), pending=pending)
    key = b"t:" + KEY[2:]
    authorizer.authorize(Asker(0), [b"HSET", key, b"f", b"v"])
    assert len(pending) == 1
    authorizer.authorize(Asker(0), [b"DEL", beginning(key)])
    assert [one.key for one in pending] == [key]
    authorizer.authorize(Asker(0), [b"DEL", key])
    assert not pending
