"""Replay of logged commands under another policy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.authoring.replay import Replay
from keyfence.commands.extract import extract
from keyfence.commands.table import COMMANDS
from keyfence.policy.engine.asker import Asker
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.wording.command_log import MAX_ARGUMENTS, as_line, from_line

OLD_TEXT = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}", token: {is: "[a-z0-9]+", secret: true}}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
keys:
  cart: {key: "a:cart:<id>", type: hash}
  lock: {key: "a:lock:<id>", type: string, ttl: {max: 1m, at: write}}
  tok: {key: "a:tok:<token>", type: string}
  log: {key: "a:log", type: stream, maxlen: "~100"}
scripts: {f: {sha1: [aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa], keys: 1, writes: ["a:cart:<ARGV.1>"]}}
channels: {n: {channel: "n:<id>", publishers: one, subscribers: two}}
"""
OLD = parse_policy(OLD_TEXT)


def changed(*pairs: tuple[str, str]) -> Any:
    text = OLD_TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return parse_policy(text)


def line(service: str, command: str, count: int = 1) -> bytes:
    argv = command.encode().split()
    return json.dumps(as_line(OLD, service, argv, extract(argv), count)).encode()


def replayed(new: Any, *lines: bytes) -> list[tuple[str, str, str, str, int]]:
    replay = Replay(OLD, new)
    complaints: list[str] = []
    replay.feed(lines, complaints.append)
    assert complaints == []
    return [(row.what, row.service, row.command, row.rule, row.count) for row in replay.rows()]


def test_replay_under_the_same_policy_changes_nothing() -> None:
    lines = [line("one", "SET a:lock:x v"), line("two", "HGETALL a:cart:x"), line("two", "PUBLISH n:x v")]
    assert replayed(OLD, *lines) == []


def test_a_removed_right_is_a_new_violation() -> None:
    new = changed(("readers: [two]", "readers: []"))
    found = replayed(new, line("two", "HGETALL a:cart:x", 5), line("two", "HGETALL a:cart:y", 2))
    assert found == [("breaks", "two", "HGETALL", "scope.read", 7)]


def test_a_should_that_becomes_a_must_is_a_new_violation() -> None:
    lenient = OLD_TEXT.replace("type: stream,", "type: stream, should: [scope.write],")
    logged = line("two", "XADD a:log MAXLEN ~ 90 * f v", 3)
    for old, new, what in ((lenient, OLD_TEXT, "breaks"), (OLD_TEXT, lenient, "mends")):
        replay = Replay(parse_policy(old), parse_policy(new))
        replay.feed([logged], pytest.fail)
        assert [(row.what, row.rule, row.count) for row in replay.rows()] == [(what, "scope.write", 3)]


def test_an_added_right_mends_a_violation() -> None:
    new = changed(("writers: [one]", "writers: [one, two]"))
    assert replayed(new, line("two", "DEL a:cart:x")) == [("mends", "two", "DEL", "scope.write", 1)]


@pytest.mark.parametrize(
    ("command", "old", "new", "rule"),
    [
        ("SET a:lock:x v EX 30", "max: 1m", "max: 10s", "ttl.range"),
        ("HSET a:cart:x f v", "type: hash}", "type: string}", "type.mismatch"),
        ("HSET a:cart:x f v", "type: hash}", "type: hash, fields: {g: any}}", "field.unknown"),
        ("XADD a:log MAXLEN ~ 90 * f v", '"~100"', '"~50"', "stream.maxlen"),
        ("SCAN 0 MATCH a:*", "writers: [one]", "writers: [two]", "scan.scope"),
        ("SUBSCRIBE m:x", "services", "databases: [0]\nservices", ""),
        ("SELECT 3", "services", "databases: [0]\nservices", "database.forbidden"),
        ("SORT a:cart:x", "services", "commands: {forbid: SORT}\nservices", "command.forbidden"),
    ],
)
def test_rules_on_logged_facts_are_decided(command: str, old: str, new: str, rule: str) -> None:
    found = replayed(changed((old, new)), line("one", command))
    assert [row[3] for row in found if row[0] == "breaks"] == ([rule] if rule else [])


def test_rules_on_values_are_undecided() -> None:
    new = changed(("type: hash}", "type: hash, fields: {f: integer}}"))
    assert replayed(new, line("one", "HSET a:cart:x f v", 3)) == [
        ("undecided", "one", "HSET", "undecided", 3)
    ]
    assert replayed(new, line("one", "HDEL a:cart:x f")) == []


def test_values_of_a_placeholder_that_holds_something_else_are_undecided() -> None:
    text = OLD_TEXT.replace("type: hash}", 'type: hash, fields: {f: "<number>"}}')
    text = text.replace("placeholders: {", 'placeholders: {number: "[0-9]+", ')
    old, new = parse_policy(text), parse_policy(text.replace('"[0-9]+"', '"[0-9]{4}"'))
    replay = Replay(old, new)
    replay.feed([line("one", "HSET a:cart:x f v")], pytest.fail)
    assert [(row.what, row.rule) for row in replay.rows()] == [("undecided", "undecided")]


def test_keys_that_a_script_builds_from_arguments_are_undecided() -> None:
    found = replayed(
        changed(("readers: [two]", "readers: []")), line("one", f"EVALSHA {'a' * 40} 1 a:cart:x y")
    )
    assert found == [("undecided", "one", "EVALSHA", "script.keys", 1)]


def test_a_line_holds_no_secret_and_its_key_is_still_classified() -> None:
    text = line("two", "GET a:tok:hunter2")
    assert b"hunter2" not in text
    new = changed(("readers: [two]", "readers: []"))
    assert replayed(new, text) == [("breaks", "two", "GET", "scope.read", 1)]
    assert b"hunter2" not in line("two", "GET a:tok:hunter2:x")
    assert b"hunter2" not in line("two", "SCAN 0 MATCH a:tok:hunter2*")


def test_a_new_rule_on_values_is_undecided_for_a_command_that_breaks_another_rule() -> None:
    new = changed(("type: hash}", "type: hash, fields: {f: integer}}"))
    assert replayed(new, line("two", "HSET a:cart:x f v")) == [("undecided", "two", "HSET", "undecided", 1)]


def test_values_are_undecided_where_the_old_policy_expects_another_type() -> None:
    text = OLD_TEXT.replace("type: hash}", "type: stream, fields: {f: integer}}")
    old, new = parse_policy(text), parse_policy(text.replace("type: stream, fields", "type: hash, fields"))
    replay = Replay(old, new)
    replay.feed([line("one", "HSET a:cart:x f v")], pytest.fail)
    assert [(row.what, row.rule) for row in replay.rows()] == [
        ("mends", "type.mismatch"),
        ("undecided", "undecided"),
    ]


MASKED_LINES = [
    # of a registered kind of key whose form stays
    ("GET a:tok:hunter2", ("readers: [two]", "readers: []"), ("breaks", "scope.read")),
    # the new policy has another form for it
    ("GET a:tok:hunter2", ("[a-z0-9]+", "[a-z]{2,9}"), ("undecided", "masked")),
    ("GET a:tok:hunter2", ("scopes:", "names: {max_length: 9}\nscopes:"), ("undecided", "masked")),
    # of no entry, so whatever stands under the mask may be one of the new policy
    ("GET a:new:hunter2", ("  lock:", '  new: {key: "a:new:<token>"}\n  lock:'), ("undecided", "masked")),
    ("GET b:hunter2", ('["a:"]', '["a:", "b:"]'), ("undecided", "masked")),
    ("PUBLISH n:hunter m", ("publishers: one", "publishers: two"), ("mends", "channel.write")),
    ("PUBLISH n:hunter2 m", ("publishers: one", "publishers: two"), ("undecided", "masked")),
]


@pytest.mark.parametrize(("command", "change", "expected"), MASKED_LINES)
def test_a_masked_name_is_decided_only_if_the_mask_cannot_decide(
    command: str, change: tuple[str, str], expected: tuple[str, str]
) -> None:
    text = line("two", command)
    assert b'"masked": true' in text
    assert [(row[0], row[3]) for row in replayed(changed(change), text)] == [expected]


def test_a_masked_name_of_no_entry_is_decided_where_the_policies_are_alike() -> None:
    new = changed(("max: 1m", "max: 2m"))
    assert replayed(new, line("one", "GET a:other:hunter2"), line("one", "GET b:hunter2")) == []


def test_a_line_holds_no_values() -> None:
    for command in (
        "SET a:lock:x VALUE EX 60",
        "HSET a:cart:x f VALUE",
        "LPUSH a:x VALUE VALUE",
        "SADD a:x VALUE",
        "ZADD a:x 1 VALUE",
        "XADD a:log * f VALUE",
        "PUBLISH n:x VALUE",
        "EVAL VALUE 1 a:x VALUE",
        "APPEND a:x VALUE",
        "AUTH VALUE",
        "HELLO 3 AUTH VALUE VALUE",
        "UNKNOWN VALUE",
    ):
        assert b"VALUE" not in line("one", command), command


def test_argv_shows_only_what_cannot_be_a_value() -> None:
    answer = json.loads(line("one", "SET a:lock:x v EX 60"))
    assert answer["argv"] == ["SET", "a:lock:x", "?", "?", "60"]
    assert answer["values"] is True


NAMES = sorted(name for name in COMMANDS if b" " not in name)
WORDS = [b"a:cart:x", b"a:lock:y", b"a:tok:zz", b"a:log", b"1", b"2", b"EX", b"*", b"MATCH", b"n:x", b"\xff"]
ARGV = st.builds(
    lambda name, rest: [name, *rest], st.sampled_from(NAMES), st.lists(st.sampled_from(WORDS), max_size=6)
)


@given(ARGV, st.sampled_from(["one", "two", "unknown"]))
def test_a_line_read_back_breaks_the_same_rules_except_those_on_values(
    argv: list[bytes], service: str
) -> None:
    touches = extract(argv)
    message = as_line(OLD, service, argv, touches, 1)
    again = from_line(json.loads(json.dumps(message)))
    evaluator = Evaluator(OLD)
    number = OLD.number(service)
    before = {one.rule for one in evaluator.evaluate(Asker(number), argv, touches).violations}
    after = {one.rule for one in evaluator.evaluate(Asker(number), [b"X"], again.touches).violations}
    assert after <= before
    if touches.script is None:
        assert before - after <= {"value.invalid"}


# -- decision logs


def decision(**more: Any) -> bytes:
    answer = {"service": "two", "command": "HSET", "rule": "scope.write", "key": "a:cart:x", "position": 1}
    return json.dumps(answer | {"entry": "cart", "merged": 4} | more).encode()


@pytest.mark.parametrize("arguments", [-1, MAX_ARGUMENTS + 1, 10**12])
def test_a_number_of_arguments_beyond_the_limit_is_not_a_line(arguments: int) -> None:
    logged = json.loads(line("one", "EVALSHA " + "a" * 40 + " 1 a:cart:x v"))
    logged["script"][4] = arguments
    with pytest.raises(ValueError, match=f"has {arguments} arguments"):
        from_line(logged)


def test_replay_decides_whether_a_logged_violation_remains() -> None:
    assert replayed(OLD, decision()) == []
    new = changed(("writers: [one]", "writers: [one, two]"))
    assert replayed(new, decision()) == [("mends", "two", "HSET", "scope.write", 5)]


def test_a_logged_violation_may_become_another_one() -> None:
    new = changed(('key: "a:cart:<id>"', 'key: "a:basket:<id>"'), ("writers: [one]", "writers: [one, two]"))
    assert replayed(new, decision()) == [
        ("breaks", "two", "HSET", "key.unregistered", 5),
        ("mends", "two", "HSET", "scope.write", 5),
    ]


def test_a_logged_should_that_becomes_a_must_is_broken_by_it_and_the_reverse_is_mended() -> None:
    loose = changed(("writers: [one]", "writers: [one], should: [scope.write]"))
    change = ("two", "HSET", "scope.write", 5)
    assert replayed(OLD, decision(severity="should")) == [("breaks", *change)]
    assert replayed(loose, decision(severity="must")) == [("mends", *change)]
    assert replayed(loose, decision(severity="should")) == replayed(OLD, decision(severity="must")) == []


@pytest.mark.parametrize(
    "more", [{"key": "sha256:aa"}, {"key": None}, {"rule": "value.invalid"}, {"key": "a:…"}]
)
def test_a_line_without_enough_facts_is_undecided(more: dict[str, Any]) -> None:
    replay = Replay(OLD, OLD)
    replay.feed([decision(**more)], pytest.fail)
    assert (replay.rows(), replay.undecided) == ([], 5)


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b'{"rule": 1}', b'{"command": "GET"}', b"\xff"])
def test_an_invalid_line_is_reported_with_its_number(text: bytes) -> None:
    complaints: list[str] = []
    Replay(OLD, OLD).feed([b"\n", text], complaints.append)
    assert len(complaints) == 1
    assert complaints[0].startswith("line 2: ")


def test_a_command_of_which_the_log_has_only_a_part_is_undecided() -> None:
    keys = " ".join(f"a:cart:{letter * size}" for letter in "abcdefghij" for size in range(1, 10))
    new = changed(("readers: [two]", "readers: []"))
    assert replayed(new, line("two", f"EXISTS {keys}", 3)) == [("undecided", "two", "EXISTS", "cut", 3)]


@pytest.mark.parametrize("key", ["a:cart:\\x00", "a:<b>", "a:cart:x…"])
def test_a_key_that_a_decision_log_shows_escaped_masked_or_cut_is_undecided(key: str) -> None:
    assert replayed(OLD, decision(key=key, rule="scope.read", command="HGETALL")) == []
    replay = Replay(OLD, OLD)
    replay.feed([decision(key=key)], print)
    assert replay.undecided == 5
