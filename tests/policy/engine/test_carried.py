"""Content that a command moves or copies from one key to another.

Rule: the target may not show the content to more services than the source does, and the content must fulfil
the target's requirements.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shlex

import pytest

from keyfence.commands.extract import extract
from keyfence.commands.model import WRITE
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.tenants import Caller
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.verdict import Violation
from keyfence.policy.wording.command_log import as_line, from_line
from tests.commands.calls import carrying
from tests.policy.evaluations import admits, begun
from tests.policy.remedies_of import remedies

POLICY = """
policy: moves
services: [app, other, ops]
placeholders: {id: "[a-z0-9]{1,8}", token: {is: "[a-z]{1,9}", secret: true}}
scopes:
  mine: {prefix: "mine:", writers: app, unregistered: allow}
  shared: {prefix: "shared:", writers: app, readers: other, unregistered: allow}
keys:
  # one owner, with requirements on the content
  profile: {key: "mine:profile:<id>", type: hash, fields: {name: any, age: integer}}
  copy: {key: "mine:copy:<id>", type: hash, fields: {name: any, age: integer}}
  strict: {key: "mine:strict:<id>", type: hash, fields: {name: any}}
  count: {key: "mine:count:<id>", type: string, values: integer}
  queue: {key: "mine:queue:<id>", type: list, members: json}
  working: {key: "mine:working:<id>", type: list, members: json}
  free: {key: "mine:free:<id>", type: list}
  tags: {key: "mine:tags:<id>", type: set, members: [red, green]}
  board: {key: "mine:board:<id>", type: zset, members: "<id>", scores: "0..100"}
  narrow: {key: "mine:narrow:<id>", type: zset, members: "<id>", scores: "0..10"}
  either: {key: "mine:either:<id>", type: [hash, string]}
  public: {key: "shared:public:<id>", type: hash}
  token: {key: "mine:token:<token>"}
  news: {key: "shared:news:<id>", writers: [app, other], readers: ops}
legacy: {allow: [read, delete], keys: {"profile:<id>": profile, "news:<id>": news}}
grants: {ops: {commands: [COPY], keys: ["*"]}}
"""
EVALUATOR = Evaluator(parse_policy(POLICY))


def violations(command: str, service: str = "app", policy: Evaluator = EVALUATOR) -> tuple[Violation, ...]:
    argv = [word.encode() for word in shlex.split(command)]
    number = policy.policy.number(service)
    touches = extract(argv)
    found = policy.evaluate(Asker(number), argv, touches).violations
    for _ in range(2):
        assert admits(policy, number, argv, touches) == (not found) or not found
    return found


def rules(command: str, service: str = "app") -> list[str]:
    return [one.rule for one in violations(command, service)]


def test_an_entry_that_takes_anything_takes_the_content_of_any_key_after_a_reload_too() -> None:
    text = POLICY.replace(
        "  token: {key", '  any: {key: "mine:any:<id>", values: any, members: any}\n  token: {key'
    )
    loaded = parse_policy(text)
    reloaded = pickle.loads(pickle.dumps(loaded))  # as it comes from the process that loads it
    for policy in map(Evaluator, (loaded, reloaded)):
        assert violations("RENAME mine:free:a mine:any:a", policy=policy) == ()
        assert violations("SUNIONSTORE mine:any:a mine:tags:a mine:x", policy=policy) == ()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        # within one entry, or to an entry with the same requirements
        ("RENAME mine:profile:a mine:profile:b", []),
        ("COPY mine:profile:a mine:copy:a", []),
        ("RENAMENX mine:profile:a mine:copy:a", []),
        ("COPY mine:profile:a mine:profile:a DB 1", []),
        ("LMOVE mine:queue:a mine:working:a LEFT RIGHT", []),
        ("RPOPLPUSH mine:queue:a mine:free:a", []),
        ("RENAME mine:x mine:y", []),
        ("RENAME mine:profile:a mine:y", []),
        # another type
        ("RENAME mine:profile:a mine:count:a", ["type.mismatch"]),
        ("COPY mine:queue:a mine:count:a", ["type.mismatch"]),
        # perhaps another type, and other content of the right one: either rule may be only observed
        ("RENAME mine:either:a mine:count:a", ["type.mismatch", "value.invalid"]),
        ("COPY mine:x mine:count:a", ["type.mismatch", "value.invalid"]),
        ("COPY mine:x mine:profile:a", ["type.mismatch", "value.invalid"]),
        ("RENAME mine:count:a mine:either:a", []),
        ("RENAME mine:x mine:free:a", ["type.mismatch"]),
        # other content
        ("RENAME mine:profile:a mine:strict:a", ["value.invalid"]),
        ("RENAME mine:free:a mine:queue:a", ["value.invalid"]),
        ("LMOVE mine:free:a mine:queue:a LEFT LEFT", ["value.invalid"]),
        ("BRPOPLPUSH mine:free:a mine:queue:a 0", ["value.invalid"]),
        ("SORT mine:tags:a STORE mine:queue:a", ["value.invalid"]),
        ("SORT mine:queue:a STORE mine:working:a", []),
        ("SORT mine:tags:a", []),
        ("SUNIONSTORE mine:tags:a mine:tags:b mine:tags:c", []),
        ("SUNIONSTORE mine:tags:a mine:tags:b mine:set", ["value.invalid"]),
        ("ZRANGESTORE mine:board:a mine:board:b 0 -1", []),
        ("ZRANGESTORE mine:board:a mine:narrow:b 0 -1", []),
        ("ZRANGESTORE mine:narrow:a mine:board:b 0 -1", ["value.invalid"]),
        ("ZDIFFSTORE mine:board:a 2 mine:board:b mine:x", ["value.invalid"]),
        ("ZDIFFSTORE mine:board:a 2 mine:board:b mine:narrow:c", []),
        ("ZUNIONSTORE mine:board:a 1 mine:board:b", []),
        ("ZUNIONSTORE mine:board:a 2 mine:board:b mine:x", ["value.invalid"]),
        ("BITOP OR mine:count:a mine:count:b", []),
        ("BITOP OR mine:count:a mine:count:b mine:x", ["value.invalid"]),
        ("BITOP NOT mine:bits mine:count:b", []),
        ("PFMERGE mine:hll mine:hll2", []),
        ("GEOSEARCHSTORE mine:board:a mine:board:b FROMMEMBER x BYRADIUS 1 m", []),
        ("GEOSEARCHSTORE mine:board:a mine:geo FROMMEMBER x BYRADIUS 1 m", ["value.invalid"]),
        ("GEORADIUS mine:geo 1 1 1 m STORE mine:board:a", ["value.invalid"]),
        ("GEORADIUS mine:board:b 1 1 1 m STOREDIST mine:board:a", []),
        # a member in the command itself is checked directly
        ("SMOVE mine:set mine:tags:a red", []),
        ("SMOVE mine:set mine:tags:a blue", ["value.invalid"]),
        # to keys that more services may read
        ("RENAME mine:x shared:x", ["scope.read"]),
        ("COPY mine:profile:a shared:public:a", ["scope.read"]),
        ("COPY shared:x mine:x", []),
        ("COPY shared:public:a shared:x", []),
        ("SUNIONSTORE shared:all shared:a mine:b mine:c", ["scope.read", "scope.read"]),
        ("LMOVE mine:queue:a shared:list LEFT LEFT", ["scope.read"]),
        ("COPY shared:x shared:news:a", ["scope.read"]),
        ("COPY mine:profile:a shared:public:a:b", ["key.format", "scope.read"]),
        # from a legacy form to its replacement
        ("RENAME profile:a mine:profile:a", []),
        ("RENAME news:a shared:news:a", []),
        ("RENAME profile:a mine:strict:a", ["value.invalid"]),
        ("COPY profile:a shared:public:a", ["scope.read"]),
        ("COPY mine:profile:a news:a", ["key.legacy", "scope.read"]),
        # unregistered keys are reported as usual
        ("RENAME nowhere mine:y", ["key.unregistered"] * 1),
        ("RENAME mine:y nowhere", ["key.unregistered"]),
    ],
)
def test_content_is_evaluated_by_both_keys(command: str, expected: list[str]) -> None:
    assert rules(command) == expected


@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        (b"\x0d\x00", ["value.invalid"]),  # a hash: its fields cannot be read
        (b"\x01\x00", ["type.mismatch"]),  # a list
        (b"\xfa\x00", ["value.invalid"]),
        (b"", ["value.invalid"]),
    ],
)
def test_a_dump_has_a_type_and_unknown_content(dump: bytes, expected: list[str]) -> None:
    found = EVALUATOR.decide(0, [b"RESTORE", b"mine:profile:a", b"0", dump]).violations
    assert [one.rule for one in found] == expected
    assert EVALUATOR.decide(0, [b"RESTORE", b"shared:public:a", b"0", b"\x04"]).allowed
    assert EVALUATOR.decide(0, [b"RESTORE", b"mine:x", b"0", dump]).allowed


# Commands that carry no content between keys: it is in the command, leaves the server, or does not exist.
PLAIN = {"SMOVE", "MIGRATE", "TS.DELETERULE"}


def test_every_command_with_a_written_key_and_others_declares_what_it_carries() -> None:
    several = {
        row.command.name
        for row in COMMANDS.values()
        if len([one for one in row.specs if one.is_key]) > 1 and any(one.needs & WRITE for one in row.specs)
    }
    assert several - carrying() == PLAIN


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("LMOVEM mine:queue:a shared:list LEFT LEFT COUNT 2", ["scope.read"]),
        ("CMS.MERGE shared:sketch 1 mine:sketch", ["scope.read"]),
        ("TDIGEST.MERGE shared:digest 1 mine:digest", ["scope.read"]),
        ("TS.CREATERULE mine:series shared:series AGGREGATION avg 60", ["scope.read"]),
        ("TS.CREATERULE mine:series mine:hours AGGREGATION avg 60", []),
    ],
)
def test_newer_commands_and_modules_carry_content_too(command: str, expected: list[str]) -> None:
    assert rules(command) == expected


def test_a_violation_names_the_key_at_fault() -> None:
    (one,) = violations("COPY mine:profile:a shared:public:a")
    assert (one.position, one.key, one.entry) == (1, b"mine:profile:a", "profile")
    assert one.message == (
        "app may not COPY from mine:profile:a to shared:public:a: other may read the second and not the first"
    )
    (one,) = violations("RENAME mine:profile:a mine:strict:a")
    assert (one.position, one.key, one.entry) == (2, b"mine:strict:a", "strict")
    assert (
        one.message == "the content that RENAME takes from mine:profile:a to mine:strict:a cannot be checked"
    )
    assert one.hint == "mine:strict:a requires fields; require the same of the source, or write them directly"
    (one,) = violations("RENAME mine:profile:a mine:count:a")
    assert one.message == "mine:count:a is a string, but mine:profile:a is a hash"
    one, _ = violations("RENAME mine:either:a mine:count:a")
    assert one.message == "mine:count:a is a string, but mine:either:a may be a hash or string"


def test_no_text_shows_a_secret_or_a_hidden_service() -> None:
    (one,) = violations("COPY mine:token:abc shared:x")
    assert "abc" not in one.message + one.hint + one.shown
    hidden = Evaluator(dataclasses.replace(EVALUATOR.policy, name_services=False))
    (one,) = violations("COPY mine:profile:a shared:public:a", policy=hidden)
    assert "other" not in one.message + one.hint


def test_a_grant_on_the_source_allows_more_readers_and_one_on_the_target_any_content() -> None:
    assert rules("COPY mine:profile:a shared:public:a", "ops") == []
    assert rules("COPY mine:profile:a mine:strict:a", "ops") == []
    for keys, leak, content in (
        ('"shared:*"', ["scope.read"], ["value.invalid"]),
        ('"mine:profile:*"', [], ["value.invalid"]),
        ('"mine:strict:*"', ["scope.read"], []),
    ):
        text = POLICY.replace(
            'ops: {commands: [COPY], keys: ["*"]}', f"app: {{commands: [COPY], keys: [{keys}]}}"
        )
        policy = Evaluator(parse_policy(text))
        found = violations("COPY mine:profile:a shared:public:a", policy=policy)
        assert [one.rule for one in found] == leak
        found = violations("COPY mine:profile:a mine:strict:a", policy=policy)
        assert [one.rule for one in found] == content


@pytest.mark.parametrize("keys", ["*", "mine:*"])
def test_a_grant_to_one_service_changes_nothing_for_another(keys: str) -> None:
    grant = f'{{commands: "*", keys: "{keys}"}}'
    text = POLICY.replace("[app, other, ops]", "[ops, app, other]").replace(
        '{commands: [COPY], keys: ["*"]}', grant
    )
    policy = Evaluator(parse_policy(text))
    assert policy.policy.number("ops") == 0
    for command in ("COPY mine:profile:a shared:public:a", "COPY mine:profile:a mine:strict:a"):
        violations(command, "ops", policy)
        assert violations(command, "app", policy)


def test_a_tenants_content_may_move_only_to_keys_of_that_tenant() -> None:
    policy = parse_policy("""
policy: tenants
services: [app]
placeholders: {id: "[a-z]{1,8}"}
bind:
  tenant: {from: user, pattern: "tenant-(.*)"}
  author: {write: {from: user, pattern: "tenant-(.*)"}}
scopes:
  tenant: {prefix: "t:<tenant>:", writers: app, unregistered: allow}
  common: {prefix: "common:", writers: app, unregistered: allow}
keys:
  cart: {key: "t:<tenant>:cart:<id>"}
  status: {key: "s:<author>:<id>", writers: app, readers: app}
""")
    evaluator, values = Evaluator(policy), policy.values(Caller(b"tenant-a"))
    for command, expected in (
        ("RENAME t:a:cart:x t:a:y", []),
        ("COPY common:x t:a:cart:x", []),
        ("COPY s:b:x t:a:cart:x", []),
        ("COPY s:b:x common:x", []),
        ("COPY t:a:cart:x common:x", ["scope.read"]),
        ("RENAME t:a:y s:a:x", ["scope.read"]),
        ("SUNIONSTORE common:all common:x t:a:y", ["scope.read"]),
    ):
        argv = command.encode().split()
        for _ in range(2):
            found = evaluator.decide(0, argv, values).violations
            assert [one.rule for one in found] == expected, command
        assert all("callers other than its tenant may read the second" in one.message for one in found)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            "COPY mine:profile:a shared:public:a",
            "give both the same readers, or use",
        ),
        ("RENAME mine:profile:a mine:count:a", "RENAME keeps the type; give both entries the same"),
        (
            "RENAME mine:profile:a mine:strict:a",
            "mine:strict:a requires fields; require the same of",
        ),
    ],
)
def test_the_remedy_concerns_both_keys(command: str, text: str) -> None:
    argv = [word.encode() for word in command.split()]
    (one,) = remedies(EVALUATOR.policy, 0, argv, extract(argv), violations(command))
    assert one.text.startswith(text)
    assert not one.command


def test_a_recorded_command_is_evaluated_as_before() -> None:
    for command in ("COPY mine:profile:a shared:public:a", "SUNIONSTORE mine:tags:a mine:tags:b mine:set"):
        argv = [word.encode() for word in command.split()]
        line = json.loads(json.dumps(as_line(EVALUATOR.policy, "app", argv, extract(argv), 1)))
        recorded = from_line(line)
        assert not recorded.has_values
        assert EVALUATOR.evaluate(Asker(0), argv, recorded.touches) == EVALUATOR.decide(0, argv)


def test_many_sources_are_evaluated_in_steps() -> None:
    argv = [b"SUNIONSTORE", b"shared:all", *(b"mine:%d" % number for number in range(5000))]
    turns = found = 0
    for one in EVALUATOR.checks.violations(begun(EVALUATOR, 0, argv)):
        turns += one is None
        found += one is not None
    assert found == 5000
    assert turns > 5


MOVES = """
policy: p
services: [app]
bind: {tenant: {from: user}, author: {write: {from: user}}}
keys:
  own: {key: "own:<tenant>:<date>", writers: app}
  also-own: {key: "also:<tenant>:<date>", writers: app}
  signed: {key: "signed:<author>:<date>", writers: app, readers: app}
  noted: {key: "noted:<author>:<date>", writers: app}
  open: {key: "open:<date>", writers: app}
"""
DAY = b"20270630"


def moved(source: bytes, target: bytes) -> list[str]:
    """Returns the rules that a COPY breaks, and asserts that a second evaluation finds the same."""
    evaluator = Evaluator(parse_policy(MOVES))
    argv = [b"COPY", source + DAY, target + DAY]
    touches = extract(argv)
    number, values = evaluator.policy.number("app"), evaluator.policy.values(Caller(b"acme"))
    found: list[list[str]] = []
    for _ in range(2):
        admitted = admits(evaluator, number, argv, touches, values)
        found.append(
            [one.rule for one in evaluator.evaluate(Asker(number, values), argv, touches).violations]
        )
        assert not (admitted and found[-1])
    assert found[0] == found[1]
    return found[0]


def test_content_of_one_tenant_moves_to_no_key_that_others_may_read() -> None:
    assert moved(b"own:acme:", b"also:acme:") == []
    assert moved(b"open:", b"own:acme:") == []
    assert moved(b"own:acme:", b"open:") == ["scope.read"]
    assert moved(b"own:acme:", b"signed:acme:") == ["scope.read"]
    assert moved(b"signed:acme:", b"open:") == []
    assert moved(b"noted:acme:", b"open:") == [
        "scope.read"
    ]  # without readers, each author reads only its own
