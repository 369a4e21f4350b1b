"""Placeholders that bind writing only: each service writes its own values, and every reader reads all."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.authoring.diff import Difference
from keyfence.authoring.testing import Runner
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.remedies.explain import explain

POLICY = """
policy: fleet
claims: ["fleet:", "was:"]
services: [billing, search, audit, tail]
bind:
  svc: {write: {billing: [billing, invoices], search: search}}
placeholders: {id: "[a-z]{1,8}"}
scopes:
  status: {prefix: "fleet:<svc>:", writers: [billing, search], readers: [billing, search, audit]}
keys:
  state: {key: "fleet:<svc>:state:<id>", type: string}
  secret: {key: "fleet:<svc>:secret:<id>", writers: [billing, search]}
  events: {key: "fleet:<svc>:events", type: stream, writers: [billing, search], consumers: tail}
  held: {key: "fleet:<svc>:held", writers: [billing, search], readers: [billing, search], deny_read: [search]}
legacy: {allow: [read, write], keys: {"was:<svc>:<id>": state}}
channels:
  news: {channel: "news:<svc>:<id>", publishers: [billing, search], subscribers: [billing, search, audit]}
"""


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(parse_policy(POLICY))


@pytest.mark.parametrize(
    ("service", "command", "broken"),
    [
        ("billing", "SET fleet:billing:state:a 1", []),
        ("billing", "SET fleet:invoices:state:a 1", []),
        ("billing", "SET fleet:search:state:a 1", ["scope.write"]),
        ("billing", "GET fleet:search:state:a", []),
        ("billing", "DEL fleet:search:state:a", ["scope.write"]),
        ("search", "GETDEL fleet:invoices:state:a", ["scope.write"]),
        ("audit", "GET fleet:invoices:state:a", []),
        ("audit", "SET fleet:invoices:state:a 1", ["scope.write"]),
        ("tail", "GET fleet:search:state:a", ["scope.read"]),
        # A service that reads all values may read them in one command.
        ("audit", "MGET fleet:billing:state:a fleet:search:state:a", []),
        ("search", "MSET fleet:billing:state:a 1 fleet:search:state:a 1", ["scope.write"]),
        ("search", "COPY fleet:billing:state:a fleet:search:state:a", []),
        # Writing implies reading, and both are bound: only its owner reads a secret.
        ("billing", "GET fleet:billing:secret:a", []),
        ("billing", "GET fleet:search:secret:a", ["scope.read"]),
        # Like readers, consumers are not bound.
        ("tail", "XACK fleet:search:events g 1-1", []),
        ("tail", "XADD fleet:search:events * a b", ["scope.write"]),
        ("billing", "XADD fleet:search:events * a b", ["scope.write"]),
        ("billing", "XRANGE fleet:search:events - +", ["scope.read"]),
        ("search", "GET fleet:billing:held", ["scope.read"]),
        # The same rights apply to malformed keys, legacy forms and patterns.
        ("billing", "GET fleet:search:state:A", ["key.format"]),
        ("billing", "SET fleet:search:state:A 1", ["scope.write", "key.format"]),
        ("search", "GET was:billing:a", []),
        ("search", "SET was:billing:a 1", ["key.legacy"]),
        ("search", "SET was:search:a 1", []),
        ("audit", "SCAN 0 MATCH fleet:*:state:*", ["scan.scope"]),
        ("audit", "SCAN 0 MATCH fleet:search:state:*", []),
        ("billing", "PUBLISH news:billing:a 1", []),
        ("billing", "PUBLISH news:search:a 1", ["channel.write"]),
        ("billing", "SUBSCRIBE news:search:a", []),
        ("audit", "PSUBSCRIBE news:search:*", []),
    ],
)
def test_only_the_owner_of_a_value_writes_and_every_reader_reads(
    evaluator: Evaluator, service: str, command: str, broken: list[str]
) -> None:
    argv = [word.encode() for word in command.split()]
    verdict = evaluator.decide(evaluator.policy.number(service), argv)
    assert [violation.rule for violation in verdict.violations] == broken


def test_the_hint_names_the_writer_of_the_value(evaluator: Evaluator) -> None:
    argv = [b"SET", b"fleet:search:state:a", b"1"]
    (violation,) = evaluator.decide(0, argv).violations
    assert violation.hint == "its writers: search"


BOTH = """
policy: both
services: [one, two, three]
bind:
  ns: {one: a, two: [a, b]}
  svc: {write: {one: x, two: y}}
keys: {entry: {key: "<ns>:<svc>", writers: [one, two, three], readers: [one, two, three]}}
"""


@pytest.mark.parametrize(
    ("service", "key", "broken"),
    [
        ("one", "a:x", []),
        ("one", "a:y", ["scope.write"]),
        ("one", "b:x", ["scope.read", "scope.write"]),
        ("two", "b:y", []),
        ("two", "b:x", ["scope.write"]),
        ("three", "a:x", ["scope.read", "scope.write"]),
    ],
)
def test_a_placeholder_that_binds_reading_works_beside_one_that_binds_writing_only(
    service: str, key: str, broken: list[str]
) -> None:
    evaluator = Evaluator(parse_policy(BOTH))
    verdict = evaluator.decide(evaluator.policy.number(service), [b"GETSET", key.encode(), b"1"])
    assert [violation.rule for violation in verdict.violations] == broken


@pytest.mark.parametrize(
    ("bind", "line", "message"),
    [
        ("svc: {write: {nobody: [a]}}", 5, "'nobody' is not listed under services"),
        ("svc: {write: {}}", 5, "no service has a value of <svc>"),
        ("svc: {write: {billing: ['']}}", 5, "an empty value would bind every key; write the value"),
        ("svc: {write: {billing: a}, read: {search: a}}", 5, "unknown key 'read'"),
        ("svc: {write: {billing: {a: b}}}", 5, "expected a list, not a mapping"),
        ("svc: {write: [a]}", 5, "'write' is not listed under services"),
    ],
)
def test_a_useless_binding_is_an_error_at_its_line(bind: str, line: int, message: str) -> None:
    entry = "keys: {k: {key: 'k:<svc>', writers: billing}}"
    text = f"policy: p\nservices: [billing, search]\n{entry}\nbind:\n  {bind}\n"
    with pytest.raises(FileError) as caught:
        parse_policy(text)
    assert any(message in one.message and one.place.line == line for one in caught.value.diagnostics)


def test_a_service_may_be_called_write() -> None:
    text = (
        "policy: p\nservices: [write]\nbind: {ns: {write: [a]}}\nkeys: {k: {key: '<ns>:k', writers: write}}\n"
    )
    assert Evaluator(parse_policy(text)).decide(0, [b"SET", b"a:k", b"1"]).allowed


def test_diff_reports_that_reading_is_no_longer_bound() -> None:
    old = parse_policy(
        POLICY.replace(
            "write: {billing: [billing, invoices], search: search}",
            "billing: [billing, invoices], search: search",
        )
    )
    told = [one.sentence for one in Difference(old, parse_policy(POLICY)).changes]
    assert any(
        one.startswith("billing, audit gain read on state (fleet:search:state:<id>)") for one in told
    ), told


def test_policy_tests_know_bindings_of_writing(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(POLICY)
    (tmp_path / "fleet.test.yaml").write_text(
        """
policy: fleet.yaml
tests:
  - {service: search, command: GET fleet:billing:state:a, entry: state}
  - {service: search, command: SET fleet:billing:state:a 1, rule: scope.write, entry: state}
"""
    )
    assert Runner().run(tmp_path / "fleet.test.yaml").failed == 0


def test_the_remedy_for_another_owners_key_is_ones_own_key() -> None:
    told = explain(parse_policy(POLICY), "search", b"SET fleet:billing:state:a 1".split())["remedies"]
    assert [(one["text"], one["command"], one["add"]) for one in told] == [
        ("<svc> billing belongs to others; bind says whose it is", None, {}),
        ("use its own key fleet:search:state:a", "SET fleet:search:state:a 1", {}),
    ]
