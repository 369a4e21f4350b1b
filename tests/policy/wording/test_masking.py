"""No secret in any text, whatever is wrong with the name that holds it."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.verdict import Finding, Violation
from keyfence.policy.wording.masking import masked_by, shown_in
from keyfence.shapes.short_names import MAX_HEADS, SHORT

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
    for violation in Evaluator(POLICY).decide(1, argv).violations:
        assert "hush" not in (violation.shown + violation.message + violation.hint).lower()


BEHIND_A_WORD = parse_policy(
    """
    policy: behind
    claims: ["pc:"]
    services: [a]
    placeholders:
      env: "stg|dev"
      id: "[a-z]{1,8}"
      token: {is: "[a-zA-Z]{8,12}", secret: true}
    scopes: {all: {prefix: "pc:<env>:{<id>}:"}}
    keys:
      session: {key: "pc:<env>:{<id>}:session:<token>", writers: a}
      order: {key: "pc:<env>:{<id>}:order:<date>", writers: a}
    """
)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("GET pc:prod:fleet:7", "pc:prod:fleet:7"),
        ("GET pc:stg:{x}:other:7", "pc:stg:{x}:other:7"),
        ("SCAN 0 MATCH pc:stg:{x}:*", "pc:stg:{x}:*"),
        ("SUBSCRIBE pc:stg:{x}:news", "pc:stg:{x}:news"),
        ("GET pc:stg:{x}:session:hu_sh", "pc:stg:{x}:session:<masked>"),
        ("GET pc:prod:{x}:session:hush", "pc:prod:{x}:session:<masked>"),
        ("GET pc:prod:{x}:SESSION:a:hush", "pc:prod:{x}:SESSION:<masked>:<masked>"),
        ("GET pc:prod:session:{x}:hush", "pc:prod:session:{<masked>}:<masked>"),
        ("GET pc:stg:{x}:sess:hushhush", "pc:stg:{x}:sess:<masked>"),
        ("SCAN 0 MATCH pc:*:session:hu*", "pc:*:session:<masked>*"),
        ("SCAN 0 MATCH pc:*:hu*", "pc:*:<masked>*"),
        ("SUBSCRIBE __keyspace@0__:pc:prod:{x}:session:hush", "pc:prod:{x}:session:<masked>"),
    ],
)
def test_a_word_before_the_secret_leads_to_it_where_a_placeholder_comes_first(
    command: str, shown: str
) -> None:
    violations = Evaluator(BEHIND_A_WORD).decide(0, command.encode().split()).violations
    assert [one.shown for one in violations[:1]] == [shown]


MALFORMED = parse_policy(
    """
    policy: p
    services: [a]
    claims: ["pc:", "x:"]
    placeholders:
      env: "stg|dev"
      id: "[a-z]{1,8}"
      token: {is: "[a-zA-Z0-9]{16,40}", secret: true}
    keys:
      session: {key: "pc:<env>:session:<token>", writers: a}
      middle: {key: "x:<token>:meta", writers: a}
      glued: {key: "x:g:sess-<token>:<id>:z", writers: a}
      several: {key: "x:s:<id...>:tok:<token>", writers: a}
    """
)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        # T stands for a secret
        ("pc:STG:session:T", "pc:STG:session:<masked>"),
        ("pc:stg:session:T!", "pc:stg:session:<masked>"),
        ("pc:stg:session:T:T", "pc:stg:session:<masked>"),  # nor that it holds a colon
        ("pc::session:T", "pc::session:<masked>"),
        ("pc:stg:session:", "pc:stg:session:"),
        ("pc:stg:session", "pc:stg:session"),
        ("pc", "pc"),
        ("pc:T:session:stg", "pc:<masked>:session:<masked>"),  # in the wrong order
        ("pc:T", "pc:<masked>"),
        ("pc:abc", "pc:<masked>"),  # it may be a part of one
        ("pc:session:T", "pc:<masked>"),
        ("pc:stg:sesion:T", "pc:<masked>"),
        ("pc:stg}session:T", "pc:<masked>"),
        ("x:T!:meta", "x:<masked>:meta"),
        ("x:T!:mta", "x:<masked>"),
        ("x:T:T:meta", "x:<masked>"),
        ("x:T:meta:y", "x:<masked>"),
        ("x:g:sess-T!:ab:z", "x:g:sess-<masked>:z"),
        ("x:g:sess-T:AB:z", "x:g:sess-<masked>:z"),
        ("x:g:T:ab:z", "x:<masked>"),
        ("x:s:a:b:tok:T!", "x:s:<masked>"),
        ("pc:" + 80 * "T", "pc:<masked>"),
        ("pc:stg:session:" + 80 * "T", "pc:stg:session:<masked>"),
    ],
)
def test_a_malformed_key_shows_what_its_form_has_and_no_more(key: str, shown: str) -> None:
    name = key.replace("T", "S3cretS3cretS3cretXX").replace("SS3cretS3cretS3cretXXG", "STG").encode()
    assert shown_in(MALFORMED, name, MALFORMED.target(name)) == shown


def test_behind_a_secret_that_may_hold_a_colon_nothing_is_shown() -> None:
    text = (
        'policy: p\nservices: [a]\nplaceholders: {t: {is: "[a-z:]{4,}", secret: true}}\n'
        'keys: {k: {key: "x:<t>:meta", writers: a}}\n'
    )
    policy = parse_policy(text)
    assert shown_in(policy, b"x:HUSH:meta", policy.target(b"x:HUSH:meta")) == "x:<masked>"


@given(
    st.lists(st.sampled_from(["pc", "stg", "session", "x", "g", "meta", ":", "{", "!", "sess-"]), max_size=9)
)
def test_no_malformed_key_shows_a_part_of_a_secret(words: list[str]) -> None:
    secret = "hUsh0123456789hUsh"
    for at in range(len(words) + 1):
        key = ("".join(words[:at]) + secret + "".join(words[at:])).encode()
        for one in (key, b"pc:" + key, b"x:" + key, b"pc:stg:" + key, b"x:g:sess-" + key):
            target = MALFORMED.target(one)
            assert "hUsh" not in shown_in(MALFORMED, one, target)
            assert "0123" not in shown_in(MALFORMED, one, target)


def test_what_holds_no_secret_is_shown() -> None:
    evaluator = Evaluator(POLICY)

    def shown(*argv: bytes) -> str:
        return evaluator.decide(1, argv).violations[0].shown

    assert shown(b"GET", b"s:b:other") == "s:b:<masked>"
    assert shown(b"GET", b"s:b:tokens:17") == "s:b:tokens:17"
    assert shown(b"GET", b"s:elsewhere") == "s:<masked>"
    assert shown(b"GET", b"s:a:") == "s:a:"
    assert shown(b"SCAN", b"0", b"MATCH", b"s:a:*") == "s:a:*"


LONG_TEXT = """
    policy: p
    services: [a]
    placeholders: {token: {is: "[0-9a-f]{16,32}", secret: true}}
    scopes: {shop: {prefix: "shop:v1:", writers: [a]}}
    keys: {session: {key: "shop:v1:session:<token>"}, glued: {key: "shop:v1:web:sess-<token>"}}
    """
LONG_POLICY = parse_policy(LONG_TEXT)
LONG_TOKENS = LONG_POLICY.secrecy


@given(st.text("sa:{}*?[]\\btoken old LEVEL-.", max_size=40))
def test_the_quick_way_shows_what_the_long_one_does(name: str) -> None:
    for secrecy in (POLICY.secrecy, LONG_TOKENS):
        assert secrecy is not None
        assert secrecy.quick is not None
        at_length = dataclasses.replace(secrecy, quick=None)
        assert secrecy.shown(name.encode()) == at_length.shown(name.encode())


def test_the_brief_way_is_taken_and_holds_on_to_no_more_than_it_may() -> None:
    secrecy = parse_policy(LONG_TEXT).secrecy
    assert secrecy is not None
    assert secrecy.short is not None
    assert secrecy.shown_short(b"acme:cart:17") == "acme:cart:17"
    assert secrecy.shown_short(b"acme:cart:0123456789abcdef") == "acme:cart:<masked>"
    assert secrecy.shown_short(b"acme:0123456789abcdef:17") is None
    assert secrecy.shown_short(b"acme:session:17") is None
    assert secrecy.shown_short(b"x" * (SHORT + 1)) is None
    assert list(secrecy.short.heads) == [b"acme:cart:"]
    for number in range(3 * MAX_HEADS):
        assert secrecy.shown_short(b"acme:%d:17" % number) == f"acme:{number}:17"
        assert len(secrecy.short.heads) <= MAX_HEADS
    assert max(map(len, secrecy.short.heads)) <= SHORT


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("shop:v1:other:17", "shop:v1:other:17"),
        ("acme:0123456789abcdef", "acme:<masked>"),
        ("acme:0123456789ABCDEF-x:y", "acme:<masked>:y"),
        ("SESSION:17", "SESSION:<masked>"),
        ("acme:session:17:x", "acme:session:<masked>:<masked>"),
        ("*session:TOKEN", "*session:<masked>"),
        ("shop:*:session:TOKEN", "shop:*:session:<masked>"),
        ("[s]hop:v1:x", "<masked>:v1:x"),
        ("?hop:abc*", "?<masked>:<masked>*"),
        ("shop:v1:*", "shop:v1:*"),
        ("acme:sess-0123456789abcdef", "acme:sess-<masked>"),
        ("__keyspace@0__:acme:0123456789abcdef", "__keyspace@0__:acme:<masked>"),
        ("__key*__:session:TOKEN", "<masked>:session:<masked>"),
    ],
)
def test_a_name_of_no_form_shows_what_is_known_to_be_no_secret(name: str, shown: str) -> None:
    assert shown_in(LONG_POLICY, name.encode(), LONG_POLICY.target(name.encode())) == shown


def test_values_shorter_than_a_policy_says_keep_no_secret() -> None:
    text = """
policy: p
claims: ["shop:"]
services: [app]
placeholders: {token: {is: "[a-z0-9]{1,64}", secret: true, secret_from: 8}}
scopes: {all: {prefix: "shop:", writers: [app]}}
keys: {session: {key: "shop:session:<token>"}}
"""
    policy = parse_policy(text)
    assert shown_in(policy, b"short:words:pass", None) == "short:words:pass"
    assert shown_in(policy, b"short:0123456789abcdef", None) == "short:<masked>"
    assert shown_in(policy, b"session:abc", None) == "session:<masked>"  # where a form has its secret
    explicit = parse_policy(text.replace(", secret_from: 8", ""))
    assert shown_in(explicit, b"short:words", None) == "<masked>:<masked>"


# -- masked by the other policy

LOGINS = """policy: p
services: [a]
placeholders: {{token: {{is: "[a-z0-9]+", secret: {secret}}}}}
keys: {{login: {{key: "p:login:<token>", type: string, writers: [a]}}}}
"""
WITHOUT_SECRETS = parse_policy(LOGINS.format(secret="false"))
WITH_SECRETS = parse_policy(LOGINS.format(secret="true"))


def made(key: bytes | None, shown: str, rule: str = "scope.write", shape: str = "") -> Finding:
    one = Violation(rule, "must", 1, key, shown, "login", shape, f"says {shown}", f"use {shown}")
    return Finding(one, "observed")


def test_a_policy_without_secrets_masks_nothing() -> None:
    one = made(b"p:login:topsecret", "p:login:topsecret")
    assert masked_by(WITHOUT_SECRETS, one) is one


def test_a_key_that_is_masked_shows_neither_itself_nor_a_hint() -> None:
    masked = masked_by(WITH_SECRETS, made(b"p:login:topsecret", "p:login:topsecret")).violation
    assert masked.shown == "p:login:<token>"
    assert "topsecret" not in repr(masked)


def test_a_key_that_the_policy_shows_too_stays_as_it_is() -> None:
    one = made(b"p:login", "p:login")
    assert masked_by(WITH_SECRETS, one) == one
    alike = made(b"p:login:topsecret", "p:login:<token>")
    assert masked_by(WITH_SECRETS, alike) == alike


def test_a_key_that_the_two_mask_differently_shows_nothing() -> None:
    masked = masked_by(WITH_SECRETS, made(b"p:login:topsecret", "p:<x>:topsecret")).violation
    assert masked.shown == "<masked>"
    assert "topsecret" not in repr(masked)


def test_the_first_line_of_a_script_is_masked_too() -> None:
    one = made(None, "return 'topsecret123'", rule="script.unregistered", shape="a" * 40)
    assert "topsecret" not in masked_by(WITH_SECRETS, one).violation.shown
