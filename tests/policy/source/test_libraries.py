"""`scripts: {…: {library: …}}`: the scripts of a library by version, whatever its keys' prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyfence.authoring.diff import Difference
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.source.libraries import chosen_versions, libraries, scripts_of, versions_of
from tests.servers import PROJECT
from tools.library_scripts import only_reads

POLICY = """policy: p
services: [app, board]
scopes:
  one: {prefix: "bull:", writers: [app], readers: [board], unregistered: allow}
  two: {prefix: "{b}:", writers: [app], unregistered: allow}
  rest: {prefix: "x:", writers: [app, board], unregistered: allow}
"""


def policy_of(setting: str) -> CompiledPolicy:
    return parse_policy(f"{POLICY}scripts:\n  jobs: {setting}\n")


def a_script(*, writes: bool, version: str = "6.7.0") -> str:
    found = (one for one in scripts_of("bullmq", [version]) if one.writes == writes and one.keys == 2)
    return next(found).sha1.decode()


def broken(policy: CompiledPolicy, service: str, sha1: str, *keys: str) -> list[str]:
    argv = ["EVALSHA", sha1, str(len(keys)), *keys]
    verdict = Evaluator(policy).decide(policy.number(service), [word.encode() for word in argv])
    return [one.rule for one in verdict.violations]


def test_all_versions_are_known_or_those_that_the_policy_names() -> None:
    assert len(versions_of("bullmq")) >= 20
    assert {one.split(".")[0] for one in chosen_versions("bullmq", [])} >= {"3", "4", "5", "6"}
    assert all(one.startswith("5.") for one in chosen_versions("bullmq", ["5"]))
    assert chosen_versions("bullmq", ["6.7", "5.81.5"]) == ["5.81.5", "6.7.0"]
    every, fifth = (
        policy_of(f'{{library: bullmq, prefix: "bull:"{more}}}') for more in ("", ", versions: 5")
    )
    of_fifth = {one.sha1 for one in scripts_of("bullmq", chosen_versions("bullmq", ["5"]))}
    newer = [one for one in scripts_of("bullmq", ["6.7.0"]) if one.sha1 not in of_fifth and one.keys == 2]
    sha1 = newer[0].sha1.decode()
    assert broken(every, "app", sha1, "bull:a", "bull:b") == []
    assert broken(fifth, "app", sha1, "bull:a", "bull:b") == ["script.unregistered"]


def test_a_library_s_script_touches_keys_with_the_prefix_of_its_declared_keys_only() -> None:
    policy = policy_of('{library: bullmq, prefix: ["bull:", "{b}:"]}')
    sha1 = a_script(writes=True)
    assert (
        broken(policy, "app", sha1, "bull:a", "bull:b") == broken(policy, "app", sha1, "{b}:a", "{b}:b") == []
    )
    # Of another prefix, the script may touch keys with any prefix.
    for keys in (("bull:a", "{b}:b"), ("x:a", "x:b")):
        assert broken(policy, "app", sha1, *keys) == ["script.keys", "scope.read", "scope.write"]
    assert broken(policy, "app", sha1, "bull:a") == ["script.keys"]
    assert set(broken(policy, "board", sha1, "bull:a", "bull:b")) == {"scope.write"}


def test_a_service_that_may_read_may_run_the_scripts_that_only_read() -> None:
    policy = policy_of('{library: bullmq, prefix: "bull:"}')
    assert broken(policy, "board", a_script(writes=False), "bull:a", "bull:b") == []


def test_two_files_may_use_a_library_under_prefixes_of_their_own(tmp_path: Path) -> None:
    for name, claim in (("a", "bull:"), ("b", "jobs:")):
        (tmp_path / f"{name}.yaml").write_text(
            f'policy: {name}\nclaims: ["{claim}"]\nservices: [{name}]\n'
            f'scopes: {{"s{name}": {{prefix: "{claim}", writers: [{name}], unregistered: allow}}}}\n'
            f'scripts: {{"jobs-{name}": {{library: bullmq, prefix: "{claim}"}}}}\n'
        )
    policy, sha1 = load_policy(tmp_path), a_script(writes=True)
    assert (
        broken(policy, "a", sha1, "bull:1", "bull:2") == broken(policy, "b", sha1, "jobs:1", "jobs:2") == []
    )
    assert set(broken(policy, "a", sha1, "jobs:1", "jobs:2")) == {"scope.read", "scope.write"}


def test_diff_says_once_that_a_library_is_registered() -> None:
    old, new = parse_policy(POLICY), policy_of('{library: bullmq, prefix: "bull:"}')
    sentences = [one.sentence for one in Difference(old, new).changes if one.section == "scripts"]
    assert len(sentences) < 40
    assert all("and " in one or "script " in one for one in sentences)


def test_the_documentation_lists_the_versions() -> None:
    rows = [f"| `{one}` | {', '.join(versions_of(one))} |" for one in libraries()]
    assert [row for row in rows if row not in (PROJECT / "docs" / "policy.md").read_text()] == []


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            "{library: bullmqq, prefix: 'b:'}",
            "keyfence does not know the scripts of 'bullmqq'; did you mean bullmq?",
        ),
        (
            "{library: sidekiq, prefix: 'b:'}",
            "keyfence does not know the scripts of 'sidekiq'; known: bullmq",
        ),
        ("{library: bullmq}", "no prefix; write how the keys of bullmq begin, as prefix: bullmq:"),
        ("{library: bullmq, prefix: 'b<id>:'}", "'b<id>:' is not a prefix; write plain text"),
        ("{library: bullmq, prefix: 'b:', keys: 2}", "keyfence knows this of bullmq; remove keys"),
        ("{library: bullmq, prefix: 'b:', versions: [9]}", "keyfence knows no bullmq 9; it knows …, "),
        ("{prefix: 'b:', keys: 2}", "no library; known: bullmq"),
    ],
)
def test_a_wrong_library_is_an_error(setting: str, told: str) -> None:
    with pytest.raises(FileError) as caught:
        policy_of(setting)
    assert told in str(caught.value.diagnostics[0])


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("return redis.call('GET', KEYS[1])", True),
        ('local rcall = redis.call\nreturn rcall("HGETALL", KEYS[1])', True),
        ("local rcall = redis.call\nreturn rcall('SET', KEYS[1], 1)", False),
        ("return redis.call(ARGV[1], KEYS[1])", False),
        ("local call = redis.call\nreturn call('SET', KEYS[1], 1)", False),
        ("return redis['call']('SET', KEYS[1], 1)", False),
        ("local r = redis\nreturn r.call('SET', KEYS[1], 1)", False),
        ("return loadstring(ARGV[1])()", False),
        ("return redis.call('GET', 'a--b') and redis.call('SET', KEYS[1], 1)", False),
        ("return redis.call('SORT', KEYS[1])", False),
        ("return 1", True),
    ],
)
def test_a_script_only_reads_if_its_text_leaves_no_doubt(text: str, reads: bool) -> None:
    assert only_reads(text) == reads
