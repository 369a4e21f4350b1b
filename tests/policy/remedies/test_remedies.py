"""Remedies for each rule, and the explanation of a sequence of commands.

Rule: every rule with remedies of its own has a case in `CASES`.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from keyfence.authoring.sequences import explain_sequence, read_sequence
from keyfence.commands.extract import extract
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.remedies.remedies import _PROPOSALS
from keyfence.policy.rules import RULES
from tests.policy.cases import POLICIES, steps_of
from tests.policy.remedies_of import remedies

SHA1_OF_RETURN_1 = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
TEXT = """policy: p
claims: ["a:"]
services: [one, two]
databases: [0]
placeholders: {id: "[a-z]{1,3}", t: {is: "[a-z]+", secret: true}}
names: {max_length: 30, charset: "[a-z:{}]"}
scopes:
  s: {prefix: "a:s:", writers: [one], readers: [two]}
  r: {prefix: "a:r:", writers: [one, two], deny_write: [two]}
keys:
  cart: {key: "a:s:cart:<id>", type: hash, fields: {colour: [red, blue], size: integer}, ttl: {max: 1h}}
  lock: {key: "a:s:lock:<id>", type: string, ttl: {default: 30s, max: 1m, at: write}}
  flag: {key: "a:s:flag:<id>", type: string, ttl: none, values: [on, off]}
  log: {key: "a:s:log", type: stream, maxlen: "~100"}
  tag: {key: "a:s:{<id>}", hash_tag: required}
  tok: {key: "a:s:tok:<t>"}
  sized: {key: "a:s:z:<id>", max_value: 4b, max_members: 2}
legacy: {allow: [read], keys: {"cart:<id>": cart}}
channels: {news: {channel: "n:<id>", publishers: one, subscribers: one}}
scripts: {f: {sha1: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa], keys: 1}}
unregistered_scripts: forbid
cluster: true
grants: {one: {commands: [DBSIZE], keys: []}}
"""
POLICY = parse_policy(TEXT)

# (service, command, rule, expected remedies: text, command to send instead)
CASES: list[tuple[str, str, str, list[tuple[str, str | None]]]] = [
    ("one", "SET a:s:z:x 12345", "value.size", [("at most 4 bytes; or raise the limit of sized", None)]),
    ("one", "RPUSH a:s:z:x 1 2 3", "key.members", [("at most 2; or raise the limit of sized", None)]),
    (
        "two",
        "HSET a:s:cart:x colour red",
        "scope.write",
        [("one may write it; or list two under writers of the scope s, whose rights cart has", None)],
    ),
    (
        "unknown",
        "HGETALL a:s:cart:x",
        "scope.read",
        [
            (
                "one, two may read it; or list unknown under readers of the scope s, whose rights cart has",
                None,
            )
        ],
    ),
    (
        "two",
        "SET a:r:x v",
        "scope.write",
        [("deny_write denies it to two, on the scope r or on a scope around it", None)],
    ),
    (
        "one",
        "HSET cart:x colour red",
        "key.legacy",
        [
            ("use the standard key a:s:cart:x", "HSET a:s:cart:x colour red"),
            ("allow says which of the rights on the entry cart this form keeps", None),
        ],
    ),
    (
        "one",
        "HSET a:s:cart:x:y colour red",
        "key.format",
        [
            (
                "the key goes on at offset 10, where <id> ends, which admits [a-z]{1,3}; "
                "the form is a:s:cart:<id>",
                None,
            )
        ],
    ),
    (
        "one",
        "HSET a:s:cart:abcd colour red",
        "key.format",
        [
            (
                "the key goes on at offset 12, where <id> ends, which admits [a-z]{1,3}; "
                "the form is a:s:cart:<id>",
                None,
            )
        ],
    ),
    (
        "one",
        "HSET a:s:cart:_ colour red",
        "key.format",
        [
            (
                "'_' at offset 9, in segment 4, does not fit <id>, which admits [a-z]{1,3}; "
                "the form is a:s:cart:<id>",
                None,
            )
        ],
    ),
    (
        "one",
        "HSET a:s:cart: colour red",
        "key.format",
        [("the key ends where <id> should come, which admits [a-z]{1,3}; the form is a:s:cart:<id>", None)],
    ),
    (
        "one",
        "HSET b:s:cart:x colour red",
        "key.unregistered",
        [
            ("the nearest entry is cart: a:s:cart:<id>", "HSET a:s:cart:x colour red"),
            ("or register the key: its beginning under claims, and an entry of its own under keys", None),
        ],
    ),
    (
        "one",
        "SET a:s:lock:x v",
        "ttl.required",
        [("set the time to live in the same command, 30s for example", "SET a:s:lock:x v EX 30")],
    ),
    (
        "one",
        "SET a:s:lock:x v PX 90000",
        "ttl.range",
        [("a time to live of 30s, for example", "SET a:s:lock:x v PX 30000")],
    ),
    ("one", "SET a:s:flag:x on EX 5", "ttl.forbidden", [("leave the time to live out", "SET a:s:flag:x on")]),
    ("one", "SET a:s:flag:x maybe", "value.invalid", [("write one of on, off", None)]),
    (
        "one",
        "HSET a:s:cart:x color red",
        "field.unknown",
        [
            ("the nearest field is colour", "HSET a:s:cart:x colour red"),
            ("its fields: colour, size; or list this one under fields of cart", None),
        ],
    ),
    (
        "one",
        "HSET a:s:cart:x Colour red",
        "field.unknown",
        [("the nearest field is colour", "HSET a:s:cart:x colour red")],
    ),
    (
        "one",
        "XADD a:s:log MAXLEN ~ 900 * f v",
        "stream.maxlen",
        [("use MAXLEN ~ 100", "XADD a:s:log MAXLEN '~' 100 '*' f v")],
    ),
    (
        "one",
        "LPUSH a:s:flag:x on",
        "type.mismatch",
        [("use the commands of a string", None), ("or let flag be of type list too", None)],
    ),
    (
        "two",
        "DBSIZE",
        "command.forbidden",
        [("one may use it", None), ("grant it", None)],
    ),
    (
        "one",
        "HGETAL a:s:cart:x",
        "command.unknown",
        [
            ("did you mean HGETALL?", "HGETALL a:s:cart:x"),
            ("use a command that keyfence knows; or the policy allows this one by its name", None),
        ],
    ),
    (
        "one",
        "SELECT 3",
        "database.forbidden",
        [("use database 0", "SELECT 0"), ("or list 3 under databases", None)],
    ),
    ("two", "PUBLISH n:x v", "channel.write", [("list two under publishers of the channel news", None)]),
    (
        "one",
        "SUBSCRIBE elsewhere",
        "channel.read",
        [
            ("known: n:<id>", None),
            ("no channel of the policy matches it; register it under channels", None),
        ],
    ),
    (
        "one",
        "EVAL 'return 1' 0",
        "script.unregistered",
        [
            (f"register it under scripts: {{NAME: {{sha1: {SHA1_OF_RETURN_1}, keys: 0}}}}", None),
            ("registered scripts: f", None),
        ],
    ),
    (
        "one",
        f"EVALSHA {'a' * 40} 2 a:s:log a:s:log",
        "script.keys",
        [("exactly 1", None), ("registered scripts: f", None)],
    ),
    (
        "one",
        "DEL a:s:cart:x a:s:cart:y",
        "slot.cross",
        [("give the keys one hash tag, as {tag}; forms without one: a:s:cart:<id>", None)],
    ),
    (
        "unknown",
        "SCAN 0 MATCH a:s:*",
        "scan.scope",
        [("it needs the right to read every key that matches a:s:*; or grant it", None)],
    ),
]


@pytest.mark.parametrize(
    ("service", "command", "rule", "expected"), CASES, ids=[f"{c[2]}-{c[1]}" for c in CASES]
)
def test_each_rule_has_its_remedies(
    service: str, command: str, rule: str, expected: list[tuple[str, str | None]]
) -> None:
    result = explain(POLICY, service, [word.encode() for word in shlex.split(command)])
    assert rule in [violation["rule"] for violation in result["violations"]]
    found = [(one["text"], one["command"]) for one in result["remedies"] if one["rule"] == rule]
    assert found == expected


def test_every_rule_with_remedies_of_its_own_has_a_case() -> None:
    assert set(_PROPOSALS) <= RULES.keys()
    tested = {rule for _, _, rule, _ in CASES}
    assert set(_PROPOSALS) - tested == {"key.charset"}


@pytest.mark.parametrize(
    ("command", "rule", "text"),
    [
        ("GET a:s:cart:AB", "key.charset", ""),
        (f"GET a:r:{'x' * 40}", "key.length", ""),
    ],
)
def test_violations_of_naming_rules_have_a_remedy(command: str, rule: str, text: str) -> None:
    result = explain(POLICY, "one", command.encode().split())
    assert [one["text"] for one in result["remedies"] if one["rule"] == rule] != []
    assert text in str(result["remedies"])


def test_no_remedy_shows_a_secret() -> None:
    for command in ("GET a:s:tok:hunter:x", "GET a:s:tok:Hunter", "GET b:s:tok:hunter"):
        result = explain(POLICY, "unknown", command.encode().split())
        assert "unter" not in str(result["remedies"]).replace("b:s:tok:hunter", ""), result["remedies"]


@pytest.mark.parametrize("file", sorted(POLICIES.glob("*.test.yaml")), ids=lambda file: file.name)
def test_every_violation_of_a_shipped_policy_has_a_remedy_that_works(file: Path) -> None:
    path, steps = steps_of(file)
    policy = load_policy(path)
    evaluator = Evaluator(policy)
    for step in steps:
        service, touches = policy.number(step.service), extract(step.argv)
        verdict = evaluator.evaluate(Asker(service), step.argv, touches)
        found = remedies(policy, service, step.argv, touches, verdict.violations)
        for violation in verdict.violations:
            mine = [one for one in found if one.rule == violation.rule]
            assert mine or not violation.hint, (step.argv, violation)
        for one in found:
            if one.command:
                after = evaluator.decide(service, one.command)
                assert one.rule not in [violation.rule for violation in after.violations]


# -- sequences


def test_a_sequence_is_read_line_by_line() -> None:
    steps = read_sequence("# comment\n\nSET k 'a b'\n@two\n+6s\nGET k\n", "one")
    assert [step[:4] for step in steps] == [
        (3, "one", [b"SET", b"k", b"a b"], 0),
        (5, "two", [], 6000),
        (6, "two", [b"GET", b"k"], 0),
    ]


def test_a_reset_ends_the_login_of_a_sequence() -> None:
    steps = read_sequence("@one user=ann\nPING\nRESET now\nRESET\nPING\n", "one")
    assert [step.caller.user for step in steps] == [b"ann", b"ann", b"ann", None]


def test_only_a_line_feed_ends_a_line_of_a_sequence() -> None:
    steps = read_sequence("SET k 'a\u2028b\x0cc'\r\nGET k\r\n", "one")
    assert [(step.line, step.argv) for step in steps] == [
        (1, [b"SET", b"k", "a\u2028b\x0cc".encode()]),
        (2, [b"GET", b"k"]),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PING\nSET 'a", "line 2: no closing quotation"),
        ("+soon", "line 1: 'soon' is not a duration"),
    ],
)
def test_an_error_in_a_sequence_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_sequence(text, "one")


def test_a_sequence_runs_on_one_connection() -> None:
    steps = read_sequence("MULTI\nHSET a:s:cart:x colour red\nSET a:s:lock:x v\nEXEC\n", "one")
    result = explain_sequence(POLICY, steps, now=0)
    assert [one["verdict"] for one in result] == ["allow", "allow", "violation", "allow"]
    assert [one["aborted"] for one in result] == [False, False, False, True]


def test_a_sequence_reports_late_findings_and_the_resulting_times_to_live() -> None:
    result = explain_sequence(
        POLICY, read_sequence("HSET a:s:cart:x size 1\n+6s\nGET a:s:lock:x\n", "one"), now=0
    )
    assert result[0]["ttl"] == {"a:s:cart:x": "none"}
    assert [one["rule"] for one in result[1]["late"]] == ["ttl.required"]
    result = explain_sequence(
        POLICY, read_sequence("HSET a:s:cart:x size 1\nEXPIRE a:s:cart:x 9", "one"), now=0
    )
    assert result[1]["ttl"] == {"a:s:cart:x": "9s"}
    assert len(result) == 2


def test_the_end_of_a_sequence_reports_keys_still_pending() -> None:
    result = explain_sequence(POLICY, read_sequence("HSET a:s:cart:x size 1", "one"), now=0)
    assert [one["rule"] for one in result[-1]["late"]] == ["ttl.required"]


def test_an_unknown_service_in_a_sequence_is_an_error() -> None:
    with pytest.raises(ValueError, match="did you mean one"):
        explain_sequence(POLICY, read_sequence("@onee\nPING", "one"), now=0)


def test_the_proposed_type_suits_every_key_of_the_scope() -> None:
    text = "policy: p\nservices: [one]\nscopes:\n"
    text += "  s: {prefix: '', writers: [one], readers: [one], type: string, unregistered: allow}\nkeys: {}\n"
    policy, argv = parse_policy(text), [b"ZUNIONSTORE", b"a", b"1", b"b"]
    touches = extract(argv)
    found = Evaluator(policy).evaluate(Asker(0), argv, touches).violations
    added = [dict(one.add) for one in remedies(policy, 0, argv, touches, found) if one.add]
    assert added == [{"scopes": {"s": {"type": ["string", "zset"]}}}]
