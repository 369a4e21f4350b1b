"""Policy test files: what they can express, and the messages if an expectation is false."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keyfence.authoring.coverage import Coverage
from keyfence.authoring.testing import FileResult, Runner, test_files
from keyfence.policy.diagnostics import FileError
from keyfence.policy.loading.load import load_policy
from tests.policy.cases import POLICIES
from tests.servers import PROJECT

# pytest would collect these as tests.
files_of = test_files
del test_files

POLICY = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}"}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
keys:
  lease: {key: "a:lease:<id>", type: hash, ttl: {max: 1h}}
  lock: {key: "a:lock:<id>", type: string, ttl: {max: 1m, at: write}}
"""


def run(folder: Path, tests: str) -> FileResult:
    (folder / "p.yaml").write_text(POLICY)
    file = folder / "p.test.yaml"
    file.write_text("policy: p.yaml\ntests:\n" + tests)
    return Runner().run(file)


def message(folder: Path, tests: str) -> list[str]:
    """Returns the failures, without the file's name."""
    result = run(folder, tests)
    prefix = f"{folder}/p.test.yaml:"
    return [str(one).removeprefix(prefix) for case in result.results for one in case.failures]


def faults(folder: Path, tests: str) -> list[str]:
    with pytest.raises(FileError) as caught:
        run(folder, tests)
    return [str(one).removeprefix(f"{folder}/p.test.yaml:") for one in caught.value.diagnostics]


HOLDS = [
    '{service: two, command: "SET a:lease:x v", verdict: violation}',
    '{service: one, command: "HSET a:lease:x f v"}',
    "{service: one, command: [HSET, 'a:lease:x', 'a b', v], verdict: allow, entry: lease}",
    '{service: two, command: "HSET a:lease:x f v", rule: scope.write, entry: lease}',
    '{service: two, command: "SET a:lease:x v", rules: [scope.write, type.mismatch, ttl.required]}',
    '{service: one, command: "SET a:lock:x v EX 60", ttl: {"a:lock:x": 60s, "a:lock:y": gone}}',
    '{service: one, command: "HSET a:lease:x f v", late: ttl.required}',
    """service: one
    sequence:
      - {command: "HSET a:lease:x f v", ttl: {"a:lease:x": none}}
      - {command: "EXPIRE a:lease:x 600"}
      - {after: 6s, ttl: {"a:lease:x": 9m54s}}
      - {after: 10m, ttl: {"a:lease:x": gone}}""",
    """service: one
    sequence:
      - {command: "HSET a:lease:x f v"}
      - {after: 3s}
      - {after: 3s, late: ttl.required}""",
    """service: one
    sequence: [{command: "HSET a:lease:x f v"}]
    late: [ttl.required]
    ttl: {"a:lease:x": none}""",
    """service: one
    sequence:
      - {command: MULTI}
      - {command: "HSET a:lease:x f v", ttl: {"a:lease:x": gone}}
      - {command: "EXPIRE a:lease:x 600"}
      - {command: EXEC, ttl: {"a:lease:x": 10m}}
      - {after: 20s}""",
    """service: one
    sequence:
      - {command: MULTI}
      - {command: "HSET a:lease:x f v"}
      - {command: "SET a:lock:x v", rule: ttl.required}
      - {command: EXEC, verdict: aborted, ttl: {"a:lease:x": gone}}
      - {after: 20s}""",
    """service: one
    sequence:
      - {command: MULTI}
      - {command: "HSET a:lease:x f v"}
      - {command: DISCARD}
      - {command: EXEC}""",
    """service: one
    sequence:
      - {command: "HSET a:lease:x f v"}
      - {service: two, command: "HSET a:lease:x f v", rule: scope.write}
      - {command: "HGET a:lease:x f"}
      - {service: one, command: "DEL a:lease:x"}
      - {after: 1m}""",
    """service: one
    given: {"a:lock:x": 30s, "a:lock:y": none}
    sequence:
      - {command: "EXPIRE a:lock:x 60 GT", ttl: {"a:lock:x": 1m, "a:lock:y": none}}
      - {command: "RENAME a:lock:x a:lock:z", ttl: {"a:lock:x": gone, "a:lock:z": 1m}}""",
    """service: one
    sequence:
      - {command: "SELECT 1"}
      - {command: MULTI}
      - {command: "HSET a:lease:x f v"}
      - {command: RESET}
      - {command: "HSET a:lease:y f v"}
      - {command: "EXPIRE a:lease:y 10", ttl: {"a:lease:x": gone, "a:lease:y": 10s}}
      - {command: "SELECT 0", ttl: {"a:lease:y": 10s}}""",
    """service: one
    mode: observe
    given: {"a:lock:x": 10s}
    sequence:
      - {command: "FLUSHALL", verdict: violation, ttl: {"a:lock:x": gone}}
      - {command: "SET a:lock:x v EX 10", ttl: {"a:lock:x": 10s}}
      - {command: "SELECT 1"}
      - {command: "FLUSHDB", verdict: violation}
      - {command: "SELECT 0", ttl: {"a:lock:x": 10s}}""",
    """service: one
    given: {"a:lock:x": 10s}
    sequence: [{command: "FLUSHALL", verdict: violation, ttl: {"a:lock:x": 10s}}]""",
    """service: one
    mode: observe
    sequence:
      - {command: "SET a:lock:x v", rule: ttl.required, ttl: {"a:lock:x": none}}""",
    """service: one
    sequence:
      - {command: MULTI}
      - {command: "SET a:lock:x v EX 60"}
      - {command: MULTI}
      - {command: EXEC, ttl: {"a:lock:x": 1m}}""",
    """service: one
    sequence:
      - {command: MULTI}
      - {command: "SET a:lock:x v", rule: ttl.required}
      - {command: MULTI}
      - {command: EXEC, verdict: aborted}""",
    """service: one
    given: {"a:lease:x": none}
    sequence:
      - {command: MULTI}
      - {command: "EXPIRE a:lease:x"}
      - {command: EXEC, verdict: aborted}
      - {command: MULTI now}
      - {command: "EXPIRE a:lease:x 60", ttl: {"a:lease:x": 1m}}
      - {command: MULTI}
      - {command: "EXPIRE a:lease:x 90"}
      - {command: EXEC now, verdict: aborted}
      - {command: EXEC}
      - {command: "HDEL a:lease:x", ttl: {"a:lease:x": 1m}}""",
    """service: one
    given: {"a:lease:x": none, "a:lock:x": 30s}
    sequence:
      - {command: "COPY a:lock:x a:lock:y DB 1", ttl: {"a:lock:y": gone}}
      - {command: "MOVE a:lock:x 1", ttl: {"a:lock:x": gone}}
      - {command: "SELECT 1", ttl: {"a:lock:x": 30s, "a:lock:y": 30s, "a:lease:x": gone}}
      - {command: "MOVE a:lock:x 1", ttl: {"a:lock:x": 30s}}""",
    """service: one
    given: {"a:lease:x": none}
    sequence: [{command: "COPY a:lease:x a:lease:y DB 1"}]
    late: ttl.required""",
    """service: one
    mode: observe
    given: {"a:lock:x": 30s}
    sequence:
      - {command: "SWAPDB 0 1", verdict: violation, ttl: {"a:lock:x": gone}}
      - {command: "SELECT 1", ttl: {"a:lock:x": 30s}}""",
]


@pytest.mark.parametrize("test", HOLDS)
def test_a_true_expectation_passes(test: str, tmp_path: Path) -> None:
    assert message(tmp_path, f"  - {test}\n") == []


FAILS = {
    '{about: x, service: one, command: "HSET a:lease:x f v", rule: scope.write}': [
        "3:5: error: x: expected violation scope.write, got allow"
    ],
    '{about: x, service: two, command: "HSET a:lease:x f v", verdict: allow}': [
        "3:70: error: x: expected allow, got violation scope.write (two may not HSET a:lease:x)"
    ],
    '{about: x, service: two, command: "SET a:lease:x v", rule: type.mismatch}': [
        "3:64: error: x: expected type.mismatch first, got violation scope.write "
        "(two may not SET a:lease:x); violation type.mismatch (SET is for a string, but a:lease:x is a hash)"
        "; "
        "violation ttl.required (a:lease:x must have a time to live)"
    ],
    '{about: x, service: two, command: "HSET a:lease:x f v", rules: [scope.write, ttl.required]}': [
        "3:68: error: x: expected all of scope.write, ttl.required, got violation scope.write "
        "(two may not HSET a:lease:x)"
    ],
    '{about: x, service: one, command: "HSET a:lease:x f v", entry: lock}': [
        "3:68: error: x: expected the entry lock, got lease"
    ],
    '{about: x, service: one, command: "SET a:lock:x v EX 60", ttl: {"a:lock:x": none}}': [
        "3:68: error: x: expected the time to live of a:lock:x: none, got 1m"
    ],
    '{about: x, service: one, sequence: [{command: "HSET a:lease:x f v"}, {after: 6s}]}': [
        "3:74: error: x: expected late nothing, got ttl.required "
        "(a:lease:x has no time to live 5s after HSET)"
    ],
    "{about: x, service: one, sequence: [{command: MULTI}, {command: EXEC, verdict: aborted}]}": [
        "3:84: error: x: expected aborted, got allow"
    ],
    "{about: x, service: one, command: PING, verdict: violation}": [
        "3:54: error: x: expected violation, got allow"
    ],
    "{about: x, service: one, command: PING, late: ttl.range}": [
        "3:51: error: x: expected late ttl.range, got nothing"
    ],
}


@pytest.mark.parametrize("test", FAILS)
def test_a_false_expectation_fails_with_its_place(test: str, tmp_path: Path) -> None:
    assert message(tmp_path, f"  - {test}\n") == FAILS[test]


FAULTS = {
    "{service: one}": ["3:6: error: a test needs 'command' or 'sequence'"],
    "{command: PING}": ["3:6: error: 'service' is missing: which service sends this?"],
    "{service: on, command: PING}": ["3:15: error: 'on' is not a service of the policy; did you mean one?"],
    "{service: one, command: PING, entry: leas}": [
        "3:42: error: 'leas' is not an entry of the policy; did you mean lease?"
    ],
    "{service: one, command: PING, rule: scope.wirte}": [
        "3:41: error: 'scope.wirte' is not a rule; did you mean scope.write?"
    ],
    "{service: one, command: PING, verdict: violation, rules: []}": [
        "3:62: error: no rules; name the broken rules, or omit rules to admit any"
    ],
    "{service: one, command: PING, verdict: allow, rule: scope.read}": [
        "3:44: error: a broken rule needs the verdict violation"
    ],
    "{service: one, command: PING, rule: scope.read, rules: [scope.read]}": [
        "3:35: error: write either rule (the first one) or rules (all of them)"
    ],
    "{service: one, command: 'SET \"a'}": [
        "3:29: error: 'SET \"a': no closing quotation; write the words as a list"
    ],
    "{service: one, command: ''}": ["3:29: error: an empty command"],
    "{service: one, sequence: []}": ["3:30: error: an empty sequence tests nothing"],
    "{service: one, command: PING, sequence: [{command: PING}]}": [
        "3:20: error: write the commands of a sequence in its steps"
    ],
    "{service: one, rule: scope.read, sequence: [{command: PING}]}": [
        "3:20: error: 'rule' belongs to a step of the sequence"
    ],
    "{service: one, command: PING, ttl: {k: soon}}": [
        "3:44: error: 'soon' is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d, "
        "or none, or gone"
    ],
    "{service: one, sequence: [{after: 6s, verdict: violation, rule: ttl.required, entry: lease}]}": [
        f"3:{column}: error: {field!r} is about a command, and this step has none; write what is found as "
        "time passes as 'late: ttl.required'"
        for field, column in (("verdict", 43), ("rule", 63), ("entry", 83))
    ],
    "{service: one, sequence: [{rules: [scope.write]}]}": [
        "3:32: error: 'rules' is about a command, and this step has none; add 'command'"
    ],
    "{service: one, comand: PING}": ["3:20: error: unknown key 'comand'; did you mean command?"],
}


@pytest.mark.parametrize("test", FAULTS)
def test_a_faulty_test_is_an_error_with_its_place(test: str, tmp_path: Path) -> None:
    assert [line.replace("3:5:", "3:6:") for line in faults(tmp_path, f"  - {test}\n")] == FAULTS[test]


def test_a_missing_policy_is_an_error_of_the_test_file_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "p.test.yaml"
    file.write_text("about: x\npolicy: q.yaml\ntests: []\n")
    message = f"{file}:2:9: error: there is no {tmp_path}/q.yaml; name the policy to test"
    with pytest.raises(FileError) as caught:
        Runner().run(file)
    assert [str(one) for one in caught.value.diagnostics] == [message]


def test_all_faults_of_a_test_file_are_reported_at_once(tmp_path: Path) -> None:
    assert len(faults(tmp_path, "  - {service: one}\n  - {command: PING}\n")) == 2


def test_the_file_sets_the_time_of_its_tests(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY)
    file = tmp_path / "p.test.yaml"
    # 2030-01-01 is 1893456000
    file.write_text(
        "policy: p.yaml\nnow: 2030-01-01\ntests:\n"
        '  - {service: one, command: "SET a:lock:x v EXAT 1893456030", ttl: {"a:lock:x": 30s}}\n'
    )
    assert Runner().run(file).failed == 0


def test_coverage_lists_what_no_test_exercised(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(POLICY)
    file = tmp_path / "p.test.yaml"
    file.write_text(
        'policy: p.yaml\ntests: [{service: one, command: "SET a:lock:x v EX 600", rule: ttl.range}]\n'
    )
    runner = Runner()
    runner.run(file)
    (coverage,) = runner.coverage.values()
    missing = {section.name: section.missing for section in coverage.sections()}
    assert missing["entries"] == [
        "lease: nothing admitted",
        "lease: no violation",
        "lock: nothing admitted",
    ]
    assert "ttl.range" not in missing["rules"]
    assert "scope.write" in missing["rules"]
    assert missing["rules of entries"] == [
        "type.mismatch of lease",
        "ttl.required of lease",
        "ttl.range of lease",
        "type.mismatch of lock",
        "ttl.required of lock",
    ]
    assert 0 < coverage.percent < 50


@pytest.mark.parametrize(
    "asked",
    [
        "type: string, values: integer",
        "type: set, members: integer",
        "type: list, members: [a, b]",
        "type: zset, scores: 0..5",
        "type: hash, fields: {a: integer}",
    ],
)
def test_coverage_counts_an_entry_s_rules_on_values(asked: str, tmp_path: Path) -> None:
    text = f"policy: p\nservices: [a]\nkeys: {{k: {{key: k, writers: a, {asked}}}}}\n"
    (tmp_path / "p.yaml").write_text(text)
    coverage = Coverage(load_policy(tmp_path / "p.yaml"))
    missing = {section.name: section.missing for section in coverage.sections()}
    assert "value.invalid of k" in missing["rules of entries"]
    assert "value.invalid" in missing["rules"]


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ("scopes: {tmp: {prefix: 'tmp:', writers: a, unregistered: allow, ttl: {max: 1d}}}", "ttl.range"),
        ("scopes: {tmp: {prefix: 'tmp:', writers: a, unregistered: allow, max_value: 9b}}", "value.size"),
        ("type_words: {list: list}", "type.mismatch"),
        ("keys: {old: {key: o, writers: a}, new: {key: n, writers: a, replaces: old}}", "key.legacy"),
    ],
)
def test_coverage_counts_what_scopes_and_words_and_replacements_ask(
    asked: str, rule: str, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(f"policy: p\nservices: [a]\nwriters: a\n{asked}\n")
    coverage = Coverage(load_policy(tmp_path / "p.yaml"))
    missing = {section.name: section.missing for section in coverage.sections()}
    assert rule in missing["rules"]


@pytest.mark.parametrize(
    ("command", "is_used"),
    [
        ("GET a:x", False),  # the service's own right
        ("GET b:x", True),
        ("PUBLISH m:x v", False),
        ("PUBLISH n:x v", True),
        ("PSUBSCRIBE n:*", True),
        ("INFO", True),
    ],
)
def test_coverage_counts_a_grant_only_where_it_holds(command: str, is_used: bool, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        'policy: p\nclaims: ["a:"]\nservices: [one]\n'
        'scopes: {s: {prefix: "a:", writers: one, unregistered: allow}}\n'
        'channels: {m: {channel: "m:x", publishers: one}}\n'
        'grants: {one: {commands: [GET, PUBLISH, PSUBSCRIBE, INFO], keys: ["b:*"], channels: ["n:*"]}}\n'
    )
    file = tmp_path / "p.test.yaml"
    file.write_text(f'policy: p.yaml\ntests: [{{service: one, command: "{command}"}}]\n')
    runner = Runner()
    assert runner.run(file).failed == 0
    (coverage,) = runner.coverage.values()
    (grants,) = (one for one in coverage.sections() if one.name == "grants")
    assert grants.exercised == is_used


def test_a_folder_stands_for_all_its_test_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.test.yaml", "a.test.yaml", "a.yaml", "sub/c.test.yaml"):
        (tmp_path / name).write_text("")
    found = [str(path.relative_to(tmp_path)) for path in files_of([tmp_path])]
    assert found == ["a.test.yaml", "b.test.yaml", "sub/c.test.yaml"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match="no test file"):
        files_of([empty])


def test_the_documentation_s_examples_pass(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "tools.md").read_text()
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "service:" in block]
    file = tmp_path / "docs.test.yaml"
    file.write_text("".join(blocks).replace("policy: ", f"policy: {POLICIES}/"))
    result = Runner().run(file)
    assert len(result.results) == 4
    assert [str(one) for case in result.results for one in case.failures] == []
