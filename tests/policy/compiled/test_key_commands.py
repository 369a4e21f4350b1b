"""Restrictions of commands on the keys of an entry or scope, by name, category or effect."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from keyfence.authoring.coverage import Coverage
from keyfence.authoring.diff import Difference
from keyfence.commands.extract import extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.key_commands import UNNAMED
from keyfence.policy.diagnostics import FileError
from keyfence.policy.enforcement.modes import ModeRule, Modes, Waiver
from keyfence.policy.engine.asker import Asker, Transaction
from keyfence.policy.engine.authorizer import Authorizer
from keyfence.policy.engine.decision_cache import DecisionCache
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.verdict import Violation
from tests.policy.evaluations import admits
from tests.policy.remedies_of import remedies

PLAIN = "a" * 40
NAMED = "b" * 40
TOUCHED = "c" * 40
WIDE = "d" * 40
READER = "e" * 40
POLICY = f"""
policy: bank
claims: ["bank:"]
services: [app, ops]
placeholders: {{id: "[a-z0-9]{{1,8}}"}}
scopes:
  all:
    prefix: "bank:"
    writers: [app, ops]
    unregistered: allow
    commands: {{forbid: [SORT]}}
  archive: {{prefix: "bank:archive:", writers: [app, ops], commands: {{never: [delete, replace, remove]}}}}
  old: {{prefix: "bank:archive:old:", writers: [app], unregistered: allow}}
keys:
  payment: {{key: "bank:payment:<id>", commands: {{never: delete}}}}
  meta: {{key: "bank:meta:<id>", type: hash, commands: {{forbid: [DEL, RENAME]}}}}
  flag: {{key: "bank:flag:<id>", type: string, commands: {{allow: [GET, SET]}}}}
  log: {{key: "bank:archive:log:<id>"}}
  view: {{key: "bank:view:<id>", commands: {{forbid: ["@write"]}}}}
  books: {{key: "bank:books:<id>", type: stream, commands: {{forbid: [XGROUP]}}}}
  plain: {{key: "bank:plain:<id>"}}
legacy: {{allow: [read, write, delete], keys: {{"pay:<id>": payment}}}}
scripts:
  plain: {{sha1: {PLAIN}, keys: 1}}
  named: {{sha1: {NAMED}, keys: 1, commands: [HSET, HINCRBY, GET]}}
  touched:
    sha1: {TOUCHED}
    declared: none
    writes:
      - {{key: "bank:payment:<ARGV.1>", commands: [HSET]}}
      - {{key: "bank:plain:<ARGV.1>"}}
    commands: [DEL]
  wide: {{sha1: {WIDE}, declared: none, writes: [{{key: "bank:payment:*", commands: [UNLINK]}}]}}
  reader: {{sha1: {READER}, keys: 1, declared: read}}
grants: {{ops: {{commands: [DEL, EVALSHA], keys: ["bank:payment:g*"]}}}}
"""
EVALUATOR = Evaluator(parse_policy(POLICY), clock=lambda: 1_800_000_000)
CACHES = [
    DecisionCache(EVALUATOR, service, frozenset(row.command.name for row in COMMANDS.values()))
    for service in (0, 1)
]


def violations(command: str, service: str = "app") -> tuple[Violation, ...]:
    argv = [word.encode() for word in shlex.split(command)]
    number = EVALUATOR.policy.number(service)
    found = EVALUATOR.decide(number, argv).violations
    for _ in range(2):
        assert not found or not CACHES[number].find(argv).is_admitted
        assert not found or not admits(EVALUATOR, number, argv)
    return found


def rules(command: str, service: str = "app") -> list[str]:
    return [one.rule for one in violations(command, service)]


def with_key(command: str, key: str) -> str:
    return " ".join(key if word == "K" else word for word in command.split())


FORBIDDEN = ["command.forbidden"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        # by name: exactly this command, and no other that does the same
        ("DEL bank:meta:a", FORBIDDEN),
        ("del bank:meta:a", FORBIDDEN),
        ("UNLINK bank:meta:a", []),
        ("DEL bank:plain:a bank:meta:a", FORBIDDEN),
        ("RENAME bank:meta:a bank:meta:b", FORBIDDEN * 2),
        ("RENAMENX bank:meta:a bank:meta:b", []),
        ("HSET bank:meta:a f v", []),
        # only these
        ("GET bank:flag:a", []),
        ("SET bank:flag:a 1", []),
        ("EXISTS bank:flag:a", FORBIDDEN),
        ("MGET bank:flag:a", FORBIDDEN),
        ("APPEND bank:flag:a x", FORBIDDEN),
        ("SUBSCRIBE __keyspace@0__:bank:flag:a", []),
        # by category, by container
        ("SET bank:view:a 1", FORBIDDEN),
        ("GET bank:view:a", []),
        ("XGROUP CREATE bank:books:a g 0", FORBIDDEN),
        ("XADD bank:books:a * f v", []),
        # a scope's restrictions apply to its entries, and to keys of no entry
        ("SORT bank:plain:a", FORBIDDEN),
        ("SORT bank:payment:a", FORBIDDEN),
        ("SORT bank:other", FORBIDDEN),
        ("SORT bank:archive:old:x", FORBIDDEN),
        # a key of no entry, or of another entry
        ("DEL elsewhere", ["key.unregistered"]),
        ("DEL bank:plain:a", []),
    ],
)
def test_commands_are_forbidden_and_allowed_on_keys(command: str, expected: list[str]) -> None:
    assert rules(command) == expected


@pytest.mark.parametrize(
    "command",
    [
        "DEL K",
        "UNLINK K",
        "GETDEL K",
        "RENAME K bank:plain:a",
        "RENAMENX K bank:plain:a",
        "RENAME bank:plain:a K",
        "COPY bank:plain:a K REPLACE",
        "MOVE K 1",
        "RESTORE K 0 x REPLACE",
        "EXPIRE K 0",
        "EXPIRE K -1 NX",
        "PEXPIRE K 0",
        f"PEXPIRE K {-(2**63)}",
        f"PEXPIREAT K {-(2**63)}",
        f"EXPIRE K {-(2**63 // 1000)}",
        "EXPIREAT K 1700000000",
        "GETEX K EXAT 1700000000",
        "SET K v PXAT 1700000000000",
        "SETEX K 0 v",
        "SUNIONSTORE K bank:plain:a",
        "SDIFFSTORE K bank:plain:a",
        "ZRANGESTORE K bank:plain:a 0 -1",
        "BITOP AND K bank:plain:a",
        "GEOSEARCHSTORE K bank:plain:a FROMMEMBER x BYRADIUS 1 m",
    ],
)
def test_no_command_deletes_a_key_that_is_never_deleted(command: str) -> None:
    assert FORBIDDEN[0] in rules(with_key(command, "bank:payment:a"))


@pytest.mark.parametrize(
    "command",
    [
        "SET K v",
        "SET K v EX 60",
        "HDEL K f",
        "LPOP K",
        "RENAMENX bank:plain:a K",
        "COPY bank:plain:a K",
        "COPY K bank:plain:a REPLACE",
        "RESTORE K 0 x",
        "SUNIONSTORE bank:plain:a K",
        "EXPIRE K 60",
        "EXPIREAT K 1900000000",
        "EXPIRE K x",
        "PERSIST K",
        "PFMERGE K bank:plain:a",
    ],
)
def test_a_key_that_is_never_deleted_may_be_written(command: str) -> None:
    assert rules(with_key(command, "bank:payment:a")) == []


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("SET K v", "is never replaced"),
        ("GETSET K v", "is never replaced"),
        ("MSET K v", "is never replaced"),
        ("SET K v XX", "is never replaced"),
        ("SET K v NX", ""),
        ("SETNX K v", ""),
        ("MSETNX K v", ""),
        ("SUNIONSTORE K bank:plain:a", "is never deleted"),
        ("HDEL K f", "never loses an element"),
        ("LPOP K", "never loses an element"),
        ("LTRIM K 0 1", "never loses an element"),
        ("LSET K 0 x", "never loses an element"),
        ("LMOVE K bank:plain:a LEFT LEFT", "never loses an element"),
        ("LMOVE bank:plain:a K LEFT LEFT", ""),
        ("ZREMRANGEBYRANK K 0 1", "never loses an element"),
        ("XTRIM K MAXLEN 1", "never loses an element"),
        ("HEXPIRE K 1 FIELDS 1 f", "never loses an element"),
        ("HSETEX K EX 1 FIELDS 1 f v", "never loses an element"),
        ("JSON.DEL K", "is never deleted"),
        ("JSON.SET K $ 1", "is never replaced"),
        ("JSON.MERGE K $ {}", "is never replaced"),
        ("JSON.ARRPOP K", "never loses an element"),
        ("JSON.NUMINCRBY K $ 1", ""),
        ("VREM K m", "never loses an element"),
        ("TS.DEL K 0 1", "never loses an element"),
        ("CF.DEL K m", "never loses an element"),
        ("CMS.MERGE K 1 bank:plain:a", "is never deleted"),
        ("CMS.MERGE bank:plain:a 1 K", ""),
        ("XACK K g 1-1", ""),
        ("XADD K MAXLEN 5 * f v", ""),
        ("RPUSH K v", ""),
    ],
)
def test_never_forbids_every_command_with_the_effect(command: str, told: str) -> None:
    found = violations(with_key(command, "bank:archive:log:a"))
    assert [one.message.partition(": ")[2] for one in found] == ([f"the entry log {told}"] if told else [])


def test_a_violation_names_the_entry() -> None:
    (one,) = violations("DEL bank:payment:a")
    assert (one.rule, one.entry, one.key) == ("command.forbidden", "payment", b"bank:payment:a")
    assert one.message == "app may not DEL bank:payment:a: the entry payment is never deleted"
    assert one.hint == "use another key; or ask the owner of the entry payment to change its commands"
    (one,) = violations("APPEND bank:flag:a x")
    assert one.message == "app may not APPEND bank:flag:a: the entry flag admits GET and SET only"
    assert one.hint.startswith(
        "use one of these commands, or another key; or ask the owner of the entry flag"
    )
    (one,) = violations("SORT bank:other")
    assert one.message == "app may not SORT bank:other: the scope all forbids SORT"
    assert one.hint == "use another key; or ask the owner of the scope all to change its commands"
    (one,) = violations("SET bank:archive:log:a v")
    assert one.hint.startswith("write only where nothing is yet (NX), or use another key; or ask the owner")


def test_malformed_and_legacy_keys_have_the_restrictions_of_their_entry() -> None:
    assert rules("DEL bank:payment:a:b") == ["command.forbidden", "key.format"]
    assert rules("DEL pay:a") == FORBIDDEN
    assert rules("HGETALL pay:a") == []


def test_a_grant_on_the_key_is_the_exception() -> None:
    assert rules("DEL bank:payment:g1", "ops") == []
    assert rules("DEL bank:payment:a", "ops") == FORBIDDEN
    assert rules("UNLINK bank:payment:g1", "ops") == FORBIDDEN
    assert rules("DEL bank:payment:g1", "app") == FORBIDDEN


@pytest.mark.parametrize(
    ("command", "told"),
    [
        # its commands are not named, so it may run any
        (
            f"EVALSHA {PLAIN} 1 bank:payment:a",
            UNNAMED,
        ),
        (f"EVALSHA {PLAIN} 1 bank:meta:a", UNNAMED),
        (f"EVALSHA {PLAIN} 1 bank:flag:a", UNNAMED),
        (f"EVALSHA {NAMED} 1 bank:payment:a", ""),
        (f"EVALSHA {NAMED} 1 bank:meta:a", ""),
        (f"EVALSHA {NAMED} 1 bank:flag:a", "admits GET and SET only, and the script runs HINCRBY"),
        (f"EVALSHA {NAMED} 1 bank:view:a", "forbids HINCRBY, and the script runs HINCRBY"),
        (f"EVALSHA {TOUCHED} 0 a", ""),
        (f"EVALSHA {READER} 1 bank:payment:a", ""),
        (f"EVALSHA {READER} 1 bank:view:a", ""),
        (
            f"EVALSHA {READER} 1 bank:flag:a",
            UNNAMED,
        ),
        (f"EVALSHA {WIDE} 0", "entries among these restrict commands"),
    ],
)
def test_a_script_is_checked_by_the_commands_it_names(command: str, told: str) -> None:
    found = violations(command)
    assert [one.rule for one in found] == (FORBIDDEN if told else [])
    assert all(one.message.endswith(told) for one in found), found


def test_an_unregistered_script_may_run_any_command() -> None:
    (script, one) = violations("EVAL 'return 1' 1 bank:payment:a")
    assert (script.rule, one.rule) == ("script.unregistered", "command.forbidden")
    assert one.hint == "register the script, and name the commands that it runs"


EXCEPTIONS = (
    "COPY",
    "RESTORE",
    "RESTORE-ASKING",
    "MIGRATE",
    "XAUTOCLAIM",
)  # the options decide, or nothing is lost


def test_the_effects_of_commands_are_those_of_the_servers_flags() -> None:
    for row in COMMANDS.values():
        name = row.command.name
        first = [one for one in row.specs if (one.begin, one.start, one.find) == ("index", 1, "range")]
        flags = {flag for one in first for flag in one.flags}
        if flags & {"delete", "OW"} and "NX" not in name and " " not in name and name not in EXCEPTIONS:
            arguments = ["1"] * max(0, abs(row.command.arity) - 2)
            assert rules(" ".join([name, "bank:archive:log:a", *arguments]))[:1] == FORBIDDEN, name


HEAD = 'policy: p\nservices: [a]\nscopes: {s: {prefix: "k:", writers: [a]}}\n'


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("{forbid: [DELL]}", "'DELL' is not a command of Redis or Valkey; did you mean DEL"),
        ('{forbid: ["@wrote"]}', "'@wrote' is not a category"),
        ("{never: [deleted]}", "'deleted' is not admitted here; expected delete, replace or remove"),
        ("{allow: []}", "an empty list allows no command; name some, or leave allow out"),
        (
            "{allow: [PING]}",
            "PING takes no key, so no entry can restrict it; write it under the policy's",
        ),
        ("{forbid: [FLUSHALL]}", "FLUSHALL takes no key"),
        ('{forbid: ["@pubsub"]}', "@pubsub takes no key"),
        ('{forbid: ["@hash"], allow: ["@hash"]}', "@hash is also under forbid, which wins"),
        ('{forbid: ["@hash"], allow: [HSET]}', "HSET is also under forbid, which wins"),
    ],
)
def test_a_fault_in_commands_is_reported_at_its_place(commands: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_policy(f'{HEAD}keys:\n  e: {{key: "k:e", commands: {commands}}}\n')
    (fault,) = caught.value.diagnostics
    assert message in fault.message
    assert fault.place.line == 5


def test_a_script_names_commands_but_not_categories() -> None:
    with pytest.raises(FileError, match="'@write' is a category; name the commands that the script runs"):
        parse_policy(f'{HEAD}functions: {{f: {{commands: ["@write"]}}}}\n')


def test_diff_reports_changes_of_command_restrictions() -> None:
    old = POLICY.replace("never: delete", "never: [delete, remove]")
    (change,) = Difference(parse_policy(old), parse_policy(POLICY)).changes
    now, was = "forbid: SORT, never: delete", "forbid: SORT, never: delete, remove"
    assert change.sentence.startswith(f"payment: commands is {now}, was {was}, for example bank:payment:")
    changes = Difference(
        parse_policy(POLICY), parse_policy(POLICY.replace("[HSET]}", "[HSET, GET]}"))
    ).changes
    assert any("bank:payment:<ARGV.1> by GET, HSET" in one.sentence for one in changes)


def test_explain_says_what_would_have_to_change() -> None:
    argv = [b"DEL", b"bank:payment:a"]
    found = remedies(EVALUATOR.policy, 0, argv, extract(argv), violations("DEL bank:payment:a"))
    hint = "use another key; or ask the owner of the entry payment to change its commands"
    assert [(one.text, one.command, one.add) for one in found] == [(hint, [], {})]


@pytest.mark.parametrize(
    ("command", "offered"),
    [
        ("SET bank:archive:log:a v", "SET bank:archive:log:a v NX"),
        ("MSET bank:archive:log:a v", "MSETNX bank:archive:log:a v"),
        ("GETSET bank:archive:log:a v", ""),
        ("SETEX bank:archive:log:a 0 v", ""),
        ("UNLINK bank:archive:log:a", ""),
        ("DEL bank:meta:a", ""),
        ("SORT bank:plain:a BY w_*", ""),
        ("FROB bank:plain:a", ""),
        ("FT.SEARCH bank:plain:a", ""),
    ],
)
def test_no_remedy_for_a_prohibition_is_a_grant(command: str, offered: str) -> None:
    argv = command.encode().split()
    found = remedies(EVALUATOR.policy, 0, argv, extract(argv), violations(command))
    assert found
    assert not any("grant" in one.text or "grants" in one.add for one in found)
    assert [b" ".join(one.command).decode() for one in found if one.command] == ([offered] if offered else [])


def test_no_remedy_for_a_command_that_the_policy_forbids_is_a_grant() -> None:
    policy = parse_policy(
        "policy: p\nservices: [app]\ncommands: {forbid: [SORT]}\nscopes: {all: {prefix: a}}\n"
    )
    argv = [b"SORT", b"a"]
    found = Evaluator(policy).decide(0, argv).violations
    hint = "use another command; or ask the owner of the policy to change its commands"
    assert found[0].hint == hint
    (one,) = [
        one for one in remedies(policy, 0, argv, extract(argv), found) if one.rule == "command.forbidden"
    ]
    assert (one.text, one.add) == (hint, {})


def test_coverage_asks_for_a_test_of_a_command_restriction() -> None:
    coverage = Coverage(EVALUATOR.policy)
    missing = next(one.missing for one in coverage.sections() if one.name == "rules of entries")
    assert "command.forbidden of payment" in missing


def test_a_command_restriction_can_be_waived_or_advised() -> None:
    commands = "commands: {forbid: [DEL"
    policy = parse_policy(POLICY.replace(commands, f"should: [command.forbidden], {commands}"))
    (one,) = Evaluator(policy).decide(0, [b"DEL", b"bank:meta:a"]).violations
    assert one.severity == "should"
    waiver = Waiver("app", "command.forbidden", "meta", "DEL", "")
    modes = Modes([ModeRule("enforce")], EVALUATOR.policy.services, [waiver])
    authorizer = Authorizer(EVALUATOR.policy, modes)
    assert authorizer.rule(Asker(0), [b"DEL", b"bank:meta:a"]).refused_by is None
    assert authorizer.rule(Asker(0), [b"DEL", b"bank:payment:a"]).refused_by is not None


def test_a_queued_command_is_authorized_like_any_other() -> None:
    authorizer = Authorizer(EVALUATOR.policy, Modes([ModeRule("enforce")], EVALUATOR.policy.services))
    transaction = Transaction()
    for command, refused in (("HSET bank:payment:a f 1", False), ("UNLINK bank:payment:a", True)):
        ruling, _ = authorizer.authorize(Asker(0, transaction=transaction), command.encode().split())
        assert (ruling.refused_by is not None) == refused


def test_each_team_s_file_restricts_commands_on_its_own_keys(tmp_path: Path) -> None:
    for name, commands in (("a", "{never: delete}"), ("b", "{allow: [GET, DEL]}")):
        scope = f'{{prefix: "{name}:", writers: app, unregistered: allow, commands: {commands}}}'
        text = f'policy: {name}\nservices: [app]\nclaims: ["{name}:"]\nscopes: {{s: {scope}}}\n'
        (tmp_path / f"{name}.yaml").write_text(text)
    evaluator = Evaluator(load_policy(tmp_path))

    def broken(command: str) -> list[str]:
        return [one.rule for one in evaluator.decide(0, command.encode().split()).violations]

    assert broken("DEL a:x") == broken("SET b:x 1") == FORBIDDEN
    assert broken("SET a:x 1") == broken("DEL b:x") == []
    (one,) = evaluator.decide(0, b"DEL a:x".split()).violations
    assert one.message == "app may not DEL a:x: the scope a/s is never deleted"


OWNER = """
policy: own
services: [app, granted]
scopes: {all: {prefix: "", writers: [app, granted], unregistered: allow}}
keys:
  payment: {key: "pay:<uuid>", commands: {never: delete}}
  view: {key: "view:<uuid>", commands: {allow: [GET]}}
commands: {allow: "*"}
unregistered_scripts: declared
grants: {granted: {commands: "*", keys: "*"}}
"""
OWNED = Evaluator(parse_policy(OWNER))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("EVAL x 0", ["script.keys"]),
        ("EVAL x y", ["script.keys"]),
        ("FCALL f 0", ["script.keys"]),
        ("EVAL_RO x 0", ["script.keys"]),
        ("FROB.NICATE pay:1", ["command.unknown"]),
        ("DEBUG FROB pay:1", ["command.unknown"]),
        ("FT.DROPINDEX i DD", ["command.unknown"]),
        ("SORT l BY view:*", ["command.unknown"]),
        ("SORT l BY *", ["command.unknown"]),
        ("SORT l BY pay:*", []),
        ("SORT l BY w:* GET o:*->f", []),
    ],
)
def test_keys_that_a_command_does_not_name_have_command_restrictions_too(
    command: str, expected: list[str]
) -> None:
    argv = command.encode().split()
    found = OWNED.decide(0, argv).violations
    assert [one.rule for one in found] == expected
    assert all("no entry of these restricts" in one.hint or "keys" in one.hint for one in found)
    assert not OWNED.decide(1, argv).violations  # a grant on every key is the exception
