"""No secret in any text, whatever is wrong with the name that holds it."""

from __future__ import annotations

import pytest

from proxy.policy.decide import Decider
from proxy.policy.explain import explain
from proxy.policy.load import parse_policy

POLICY = parse_policy(
    """
    policy: secrets
    claims: ["s:"]
    services: [a, b]
    cluster: true
    names: {max_length: 30, charset: "[a-zA-Z0-9:]"}
    placeholders:
      id: "[a-z]{1,8}"
      token: {is: "[a-z]{1,12}", secret: true}
    scopes:
      a: {prefix: "s:a:", writers: [a]}
      b: {prefix: "s:b:", writers: [b]}
    keys:
      session: {key: "s:a:<token>"}        # its beginning is its scope's
      nested: {key: "s:a:set:<token>"}
      level: {key: "s:b:level:<id>"}
      tokens: {key: "s:a:tokens:<id>", type: hash, fields: {n: integer, "<token>": integer}}
    legacy: {allow: [read], keys: {"s:old:<token>": session, "old:<token>": session}}
    channels: {inbox: {channel: "inbox:<token>", publishers: [a], subscribers: [a]}}
    scripts:
      peek: {sha1: "ffffffffffffffffffffffffffffffffffffffff", reads: ["s:a:set:<ARGV.1>:*"], keys: 0}
    """
)


@pytest.mark.parametrize("form", ["hushhush", "HUSHHUSH", "hush_hush", "hush:hush", "hushhush" * 9])
@pytest.mark.parametrize(
    "command",
    [
        "GET s:a:{}",
        "GET s:a:set:{}",
        "GET s:old:{}",
        "GET old:{}",
        "MGET s:b:level:x s:a:{} s:old:{} old:{}",
        "PUBLISH __keyspace@0__:s:a:set:{} x",
        "PUBLISH __keyspace@0__:old:{} x",
        "PUBLISH inbox:{} x",
        "SUBSCRIBE __keyspace@0__:s:a:set:{}",
        "PSUBSCRIBE __keyspace@0__:s:a:set:{}",
        "PSUBSCRIBE __keyspace@*__:s:a:{}* inbox:{}*",
        "SCAN 0 MATCH s:a:set:{}*",
        "CLIENT TRACKING ON BCAST PREFIX s:old:{}",
        "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0 {}",
        "HSET s:a:tokens:x {} many",
    ],
)
def test_no_text_holds_a_secret(command: str, form: str) -> None:
    argv = [word.encode() for word in command.format(*[form] * 3).split()]
    told = explain(POLICY, "b", argv)
    assert told["verdict"] == "violation"
    assert "hush" not in str(told).lower()
    for violation in Decider(POLICY).decide(1, argv).violations:
        assert "hush" not in (violation.shown + violation.message + violation.hint).lower()


def test_what_holds_no_secret_is_shown() -> None:
    decider = Decider(POLICY)

    def shown(*argv: bytes) -> str:
        return decider.decide(1, argv).violations[0].shown

    assert shown(b"GET", b"s:b:other") == "s:b:<masked>"
    assert shown(b"GET", b"s:b:tokens:17") == "s:b:tokens:17"
    assert shown(b"GET", b"s:elsewhere") == "s:<masked>"
    assert shown(b"GET", b"s:a:") == "s:a:"
    assert shown(b"SCAN", b"0", b"MATCH", b"s:a:*") == "s:a:*"
