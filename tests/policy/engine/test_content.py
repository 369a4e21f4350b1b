"""Requirements of entries and scopes on types, fields and values.

Rule: content that keyfence cannot check breaks a rule if the policy requires a form.
"""

from __future__ import annotations

import shlex

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.model import Streamed
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import ModeRule, Modes
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Violation
from tests.policy.evaluations import admits
from tests.policy.remedies_of import remedies

POLICY = """
policy: content
services: [app]
placeholders:
  id: "[a-z0-9]{1,8}"
  path: "[a-z0-9:]{1,20}"
  any: "[A-Za-z]{1,20}"
  port: "[0-9]{1,5}"
  token: {is: "[a-z]{1,9}", secret: true}
type_words: {list: list, hash: hash, zset: zset, set: set}
scopes:
  all: {prefix: "k:", writers: [app]}
  tmp: {prefix: "tmp:", writers: [app], unregistered: allow, ttl: {max: 1d}, type: string, values: json}
  open: {prefix: "open:", writers: [app], unregistered: allow}
  closed: {prefix: "closed:", writers: [app], ttl: {max: 1d}}
  case: {prefix: "case:", writers: [app], field_case: exact, should: [field.unknown]}
keys:
  route:
    key: "k:route:<id>"
    type: hash
    fields: {Host: ip, "<port>": "<port>", "_<id>": [on, off], "t-<token>": any}
  packed: {key: "k:packed:<id>", type: string, values: msgpack}
  text: {key: "k:text:<id>", values: any}
  board: {key: "k:board:<id>", type: zset, members: "<id>", scores: "0..100"}
  queue: {key: "k:queue:<id>", type: list, members: json}
  tags: {key: "k:tags:<id>", type: set, members: [red, green]}
  events: {key: "k:events", type: stream, fields: {op: [create, delete], ts: epoch}, maxlen: "~100"}
  chat: {key: "k:chat:list:<id>"}
  deep: {key: "k:deep:<path>"}
  named: {key: "tmp:named:<id>", ttl: any}
  inner: {key: "tmp:inner:<id>", type: hash}
  contract: {key: "case:<id>", type: hash, fields: {HostIP: ip, port: integer, "<port>": any}}
  loose: {key: "any:<id>", writers: app, fields: {HostIP: ip, "x-<id>": any, "<any>": any}}
  tight: {key: "only:<id>", writers: app, fields: {HostIP: ip, "<any>": any}, field_case: exact}
  strict: {key: "tmp:strict:<id>", ttl: {max: 1h, at: write}}
"""
EVALUATOR = Evaluator(parse_policy(POLICY))


def violations(argv: list[bytes]) -> tuple[Violation, ...]:
    touches = extract(argv)
    verdict = EVALUATOR.evaluate(Asker(0), argv, touches)
    if admits(EVALUATOR, 0, argv, touches):
        assert verdict.allowed
    return verdict.violations


def rules(command: str) -> list[str]:
    return [one.rule for one in violations([word.encode() for word in shlex.split(command)])]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        # fields by name, placeholder and pattern
        ("HSET k:route:a Host 10.0.0.1 8080 32000 _x on t-abc 1", []),
        ("HSET k:route:a Host nowhere", ["value.invalid"]),
        ("HSET k:route:a 8080 http", ["value.invalid"]),
        ("HSET k:route:a 808080 1", ["field.unknown"]),
        ("HSET k:route:a _x maybe", ["value.invalid"]),
        ("HSET k:route:a _ on", ["field.unknown"]),
        ("HSET k:route:a x_x on", ["field.unknown"]),
        ("HINCRBY k:route:a 8080 1", []),
        ("HINCRBY k:route:a hits 1", ["field.unknown"]),
        ("XADD k:events MAXLEN ~ 100 * op create ts 1732000000", []),
        ("XADD k:events MAXLEN ~ 100 * op created", ["value.invalid"]),
        ("XADD k:events MAXLEN ~ 100 * who me", ["field.unknown"]),
        ("XADD k:events MAXLEN ~ 101 * op create", ["stream.maxlen"]),
        # values
        ("SET k:packed:a true", ["value.invalid"]),
        ("SET k:packed:a 7", []),
        ("APPEND k:packed:a true", []),
        ("SETRANGE k:packed:a 0 true", []),
        # elements and scores
        ("ZADD k:board:a 0 x 100 y", []),
        ("ZADD k:board:a 0 x 101 y", ["value.invalid"]),
        ("ZADD k:board:a -inf x", ["value.invalid"]),
        ("ZADD k:board:a 0x1p10 x", ["value.invalid"]),  # 1024 to strtod
        ("ZADD k:board:a 0x.8P+1 x", []),
        ("ZADD k:board:a 0x1p99999 x", []),  # Redis refuses it
        ("ZADD k:board:a 1 X", ["value.invalid"]),
        ("ZADD k:board:a 1 X 2 Y 300 z 400 z", ["value.invalid", "value.invalid"]),
        ("ZADD k:board:a INCR 500 x", []),
        ("ZINCRBY k:board:a 500 x", []),
        ("ZINCRBY k:board:a 1 X", ["value.invalid"]),
        ("ZADD k:board:a what x", []),
        ("LPUSH k:queue:a 1 {} [", ["value.invalid"]),
        ("RPUSH k:queue:a 1 {}", []),
        ("LSET k:queue:a 0 [", ["value.invalid"]),
        ("LREM k:queue:a 0 [", []),
        ("SADD k:tags:a red green", []),
        ("SADD k:tags:a red blue", ["value.invalid"]),
        ("SMOVE k:tags:b k:tags:a blue", ["value.invalid"]),
        ("SREM k:tags:a blue", []),
        # names for types
        ("LPUSH k:chat:list:a 1", []),
        ("SADD k:chat:list:a 1", ["type.mismatch"]),
        ("DEL k:chat:list:a", []),
        ("SADD k:deep:x:set:y 1", []),
        ("GET k:deep:x:set:y", ["type.mismatch"]),
        ("GET k:deep:x:sets:y", []),
        ("ZADD open:a:zset:b 1 m", []),
        ("HSET open:a:zset:b f v", ["type.mismatch"]),
        ("GET open:a:b", []),
        # requirements of a scope, and entries that change them
        ("SET tmp:x {} EX 60", []),
        ("SET tmp:x {", ["value.invalid", "ttl.required"]),
        ("SET tmp:x {} EX 100000", ["ttl.range"]),
        ("LPUSH tmp:x 1", ["type.mismatch"]),
        ("SET closed:x v EX 60", ["key.unregistered"]),
        ("SET closed:x v", ["key.unregistered", "ttl.required"]),
        ("SET tmp:named:x {}", []),
        ("SET tmp:named:x {", ["value.invalid"]),
        ("HSET tmp:inner:x f {", []),
        ("PERSIST tmp:inner:x", ["ttl.required"]),
        ("SET tmp:strict:x {} EX 7200", ["ttl.range"]),
        ("APPEND tmp:strict:x {}", ["ttl.required"]),
    ],
)
def test_content_breaks_its_rule(command: str, expected: list[str]) -> None:
    assert rules(command) == expected


@pytest.mark.parametrize(
    ("command", "position"),
    [
        ("ZADD k:board:a NX 1 x 2 Y", 6),
        ("ZADD k:board:a NX 1 x 200 y", 5),
        ("LPUSH k:queue:a 1 [", 3),
        ("SMOVE k:tags:b k:tags:a blue", 3),
        ("HSET k:route:a _x on _y maybe", 5),
    ],
)
def test_a_violation_of_content_names_the_argument(command: str, position: int) -> None:
    (one,) = violations([word.encode() for word in shlex.split(command)])
    assert one.position == position


def test_a_violation_of_content_says_what_is_required() -> None:
    def texts(command: str) -> list[str]:
        return [f"{v.message}; {v.hint}" for v in violations([w.encode() for w in shlex.split(command)])]

    assert texts("ZADD k:board:a 101 x") == [
        "a score for k:board:a is not a number from 0 to 100; give a number from 0 to 100"
    ]
    assert texts("SADD k:tags:a blue") == [
        "an element for k:tags:a is not one of red, green; write one of red, green"
    ]
    assert texts("SADD k:chat:list:a 1") == [
        "SADD is for a set, but k:chat:list:a is a list; use the commands of a list"
    ]


def test_no_text_shows_a_secret_in_a_field_name() -> None:
    (one,) = violations([b"HSET", b"k:route:a", b"t-SECRET", b"1"])
    assert one.rule == "field.unknown"
    assert "SECRET" not in one.message + one.hint


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([b"SET", b"k:packed:a", Streamed(b"", 2_000_000)], ["value.invalid"]),
        ([b"SET", b"k:text:a", Streamed(b"", 2_000_000)], []),
        ([b"SET", b"k:deep:a", Streamed(b"", 2_000_000)], []),
        ([b"HSET", b"k:route:a", b"Host", Streamed(b"", 2_000_000)], ["value.invalid"]),
        ([b"HSET", b"k:route:a", b"t-abc", Streamed(b"", 2_000_000)], []),
        ([b"HSET", b"k:route:a", Streamed(b"", 2_000_000), b"x"], ["field.unknown"]),
        ([b"RPUSH", b"k:queue:a", b"1", Streamed(b"", 2_000_000)], ["value.invalid"]),
        ([b"SADD", b"open:a", Streamed(b"", 2_000_000)], []),
    ],
)
def test_an_incomplete_value_is_wrong_only_if_a_form_is_required(
    argv: list[bytes], expected: list[str]
) -> None:
    assert [one.rule for one in violations(argv)] == expected


def test_the_message_says_that_a_value_cannot_be_checked() -> None:
    (one,) = violations([b"SET", b"k:packed:a", Streamed(b"", 2_000_000)])
    assert one.message == "the value for k:packed:a cannot be checked: it is 2000000 bytes long"
    assert one.hint == "the policy requires well-formed MessagePack; write a shorter one"


HEAD = 'policy: p\nservices: [a]\nplaceholders: {id: "[a-z]+"}\nscopes: {s: {prefix: "k:", writers: a}}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'keys: {e: {key: "k:<id>", type: hash, members: any}}',
            "members are for the type set or list or zset",
        ),
        ('keys: {e: {key: "k:<id>", type: set, scores: "0..1"}}', "scores are for the type zset"),
        ('keys: {e: {key: "k:<id>", type: set, maxlen: "5"}}', "maxlen is for the type stream"),
        (
            'keys: {e: {key: "k:<id>", scores: "5"}}',
            "'5' is not a range; write both ends, as in 0..100, or one",
        ),
        ('keys: {e: {key: "k:<id>", scores: ".."}}', "'..' is not a range"),
        ('keys: {e: {key: "k:<id>", scores: "5..1"}}', "'5..1' contains no number"),
        ('keys: {e: {key: "k:<id>", fields: {"x<idd>": any}}}', "placeholder <idd> is not declared"),
        (
            'type_words: {list: list}\nkeys: {e: {key: "k:list:<id>", type: set}}',
            "by type_words the key is a list, but its type is set",
        ),
        ('type_words: {"a:b": list}', "'a:b' is not one segment; write the word between two colons"),
        ("type_words: {list: []}", "no type; name one, such as list"),
        ("type_words: {list: heap}", "'heap' is not admitted here"),
        ('keys: {e: {key: "k:<id>", ttl: {none: yes, or_none: yes}}}', "none excludes or_none"),
        ('keys: {e: {key: "k:<id>", ttl: {or_none: yes, at: write}}}', "at: write needs a time to live"),
        (
            'keys: {e: {key: "k:<id>", ttl: {immediate: yes, grace: 1s}}}',
            "immediate and grace exclude each other",
        ),
        ('keys: {e: {key: "k:<id>", ttl: {grace: 11m}}}', "grace must be above 0 and at most 10m"),
        ('keys: {e: {key: "k:<id>", ttl: {grace: 0s}}}', "grace must be above 0 and at most 10m"),
        (
            'keys: {e: {key: "k:<id>", ttl: sometimes}}',
            "'sometimes': write none, required, any, or a mapping",
        ),
    ],
)
def test_an_error_in_a_content_requirement_is_reported(text: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(HEAD + text)
    assert message in "\n".join(one.message for one in caught.value.diagnostics)


@pytest.mark.parametrize("word", ["none", "any", "required", "{}", "{or_none: yes, min: 7d}"])
def test_a_time_to_live_may_be_given_in_short_form(word: str) -> None:
    evaluator = Evaluator(parse_policy(f'{HEAD}keys: {{e: {{key: "k:<id>", ttl: {word}}}}}'))

    def broken(command: str) -> list[str]:
        argv = command.encode().split()
        return [one.rule for one in evaluator.evaluate(Asker(0), argv, extract(argv)).violations]

    bare, short = broken("SET k:a v"), broken("SET k:a v EX 60")
    assert (bare, short) == {
        "none": ([], ["ttl.forbidden"]),
        "any": ([], []),
        "required": (["ttl.required"], []),
        "{}": (["ttl.required"], []),
        "{or_none: yes, min: 7d}": ([], ["ttl.range"]),
    }[word]


@pytest.mark.parametrize(
    ("command", "severity", "message", "hint"),
    [
        # The exact case is a must here, although field.unknown is only a should.
        (
            "HSET case:a hostip 10.0.0.1",
            "must",
            "case:a has no field hostip, which differs from HostIP only in case",
            "write HostIP",
        ),
        (
            "HINCRBY case:a PORT 1",
            "must",
            "case:a has no field PORT, which differs from port only",
            "",
        ),
        # Any other unknown field is a should.
        (
            "HSET case:a host 10.0.0.1",
            "should",
            "case:a has no field host",
            "its fields: HostIP, port",
        ),
        # A pattern does not admit it if the case is exact.
        ("HSET only:a hostip x", "must", "only:a has no field hostip, which differs from HostIP only in", ""),
        (
            "HSET any:a X-A 1",
            "must",
            "any:a has no field X-A, which differs from x-a only in case",
            "write x-a",
        ),
        (
            "HSET k:route:a HOST 1",
            "must",
            "k:route:a has no field <masked>, which differs from Host",
            "",
        ),
    ],
)
def test_a_field_that_differs_only_in_case_is_reported_with_the_listed_one(
    command: str, severity: str, message: str, hint: str
) -> None:
    (found,) = violations([word.encode() for word in command.split()])
    assert (found.rule, found.severity) == ("field.unknown", severity)
    assert found.message.startswith(message)
    assert hint in found.hint


@pytest.mark.parametrize(
    "command", ["HSET any:a hostip nowhere", "HSET only:a HostIP 10.0.0.1 other x", "HSET case:a 8080 x"]
)
def test_fields_that_a_pattern_admits_pass(command: str) -> None:
    assert rules(command) == []


def test_a_wrong_case_is_refused_and_an_unknown_field_observed() -> None:
    authorizer = Authorizer(EVALUATOR.policy, Modes([ModeRule("enforce")], EVALUATOR.policy.services))
    service, cache = 0, authorizer.cache(0, frozenset({"HSET"}))
    for _ in range(3):
        argv = [b"HSET", b"case:a", b"hostip", b"10.0.0.1", b"more", b"1"]
        ruling = authorizer.rule(Asker(service), argv)
        assert [(one.severity, action) for one, action in ruling.findings] == [
            ("must", "refused"),
            ("should", "observed"),
        ]
        lookup = cache.find(argv)
        assert not lookup.is_admitted
        assert not cache.may_count(lookup, argv)


def test_field_case_needs_listed_fields() -> None:
    text = "policy: p\nservices: [a]\nkeys: {k: {key: k, writers: a, type: hash, field_case: exact}}\n"
    with pytest.raises(FileError, match="no fields are listed; list them under fields"):
        parse_policy(text)


def test_the_remedy_for_a_wrong_case_is_the_listed_field() -> None:
    argv = [b"HSET", b"case:a", b"hostip", b"10.0.0.1"]
    (first, *_) = remedies(EVALUATOR.policy, 0, argv, extract(argv), violations(argv))
    assert first.text == "the nearest field is HostIP"
    assert first.command == [b"HSET", b"case:a", b"HostIP", b"10.0.0.1"]
