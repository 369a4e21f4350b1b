"""`unregistered_scripts` of a policy, a service and a scope: who may run which unknown script."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import get_args

import pytest

from keyfence.authoring.diff import Difference
from keyfence.authoring.export.acl import user_of
from keyfence.authoring.export.docs import document
from keyfence.authoring.lint import check_policy
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.engine.evaluator import Evaluator
from keyfence.policy.loading.load import load_policy, parse_policy
from keyfence.policy.source.model import UnregisteredScripts
from keyfence.policy.wording.tables import tables

WORDS: tuple[UnregisteredScripts, ...] = get_args(UnregisteredScripts)  # the most lenient first
POLICY = """policy: p
claims: ["{prefix}"]
services: [app, other]
scopes:
  free: {{prefix: "{prefix}f:", writers: [app, other], unregistered: allow{free}}}
  rest: {{prefix: "{prefix}r:", writers: [app], unregistered: allow}}
unregistered_scripts: {word}
"""
SHA = "9" * 40


def policy_of(word: str = "load_only", free: str = "") -> CompiledPolicy:
    setting = f", unregistered_scripts: {free}" if free else ""
    return parse_policy(POLICY.format(prefix="a:", word=word, free=setting))


def broken(policy: CompiledPolicy, service: str, *words: str) -> list[tuple[str, str]]:
    argv = [word.encode() for word in words]
    found = Evaluator(policy).decide(policy.number(service), argv).violations
    return [(one.rule, one.severity) for one in found]


def evalsha(policy: CompiledPolicy, service: str, *keys: str) -> list[tuple[str, str]]:
    return broken(policy, service, "EVALSHA", SHA, str(len(keys)), *keys)


UNKNOWN, REPORTED = ("script.unregistered", "must"), ("script.unregistered", "should")


def test_a_reported_script_runs_and_is_a_finding_that_never_refuses() -> None:
    policy = policy_of(free="report")
    assert evalsha(policy, "app", "a:f:1") == evalsha(policy, "other", "a:f:1", "a:f:2") == [REPORTED]
    assert broken(policy, "app", "SCRIPT", "LOAD", "return 1") == []
    assert broken(policy, "app", "FCALL", "f", "1", "a:f:1") == [REPORTED]


def test_a_scope_s_word_holds_only_if_all_declared_keys_are_the_scope_s() -> None:
    policy = policy_of(free="report")
    assert evalsha(policy, "app", "a:f:1", "a:r:1") == [UNKNOWN]
    assert evalsha(policy, "app", "a:r:1") == [UNKNOWN]
    assert UNKNOWN in evalsha(policy, "app")
    assert evalsha(policy, "app", "a:f:1", "elsewhere")[0] == UNKNOWN


def test_a_reported_script_may_declare_only_keys_that_the_service_may_use() -> None:
    policy = policy_of("{services: {other: report}}")
    assert evalsha(policy, "other", "a:f:1") == [REPORTED]
    assert evalsha(policy, "other", "a:r:1") == [
        REPORTED,
        ("scope.read", "must"),
        ("scope.write", "must"),
    ]
    assert UNKNOWN in evalsha(policy, "other")  # nothing shows whose keys it touches
    assert evalsha(policy, "app", "a:f:1") == [UNKNOWN]


def test_a_service_and_a_scope_may_be_stricter_than_the_policy() -> None:
    assert evalsha(policy_of("declared", "forbid"), "app", "a:f:1") == [UNKNOWN]
    assert evalsha(policy_of("declared", "forbid"), "app", "a:r:1", "a:f:1") == [UNKNOWN]
    assert evalsha(policy_of("declared", "forbid"), "app", "a:r:1") == []
    strict = policy_of("{default: declared, services: {other: forbid}}", "report")
    assert evalsha(strict, "other", "a:f:1") == [UNKNOWN]
    assert evalsha(strict, "app", "a:f:1") == [REPORTED]
    assert broken(strict, "other", "SCRIPT", "LOAD", "return 1") == [UNKNOWN]


def expected(words: dict[str, UnregisteredScripts], service: str, keys: list[str]) -> UnregisteredScripts:
    """Returns the word that holds, as docs/policy.md says it."""
    found = []
    for file in "ab":
        own = words.get(f"{file} {service}")
        default = own or words[file]
        mine = [key for key in keys if key.startswith(f"{file}:")]
        for key in mine:
            scope = words.get(f"{file} scope") if key.startswith(f"{file}:f:") else None
            given = [word for word in (own, scope) if word]
            found.append(max(given, key=WORDS.index) if given else default)
        if not mine or any(not key.startswith(("a:", "b:")) for key in keys):
            found.append(default)
    return max(found, key=WORDS.index)


def test_the_strictest_of_all_files_decides_whatever_says_it(tmp_path: Path) -> None:
    choose = random.Random(11)
    names = ["a:f:1", "a:f:2", "a:r:1", "b:f:1", "b:r:1", "x"]
    for _ in range(60):
        words: dict[str, UnregisteredScripts] = {}
        for file in "ab":
            words[file] = choose.choice(WORDS)
            words |= {
                f"{file} {one}": choose.choice(WORDS) for one in ("app", "scope") if choose.random() < 0.5
            }
            app = f", services: {{app: {words[f'{file} app']}}}" if f"{file} app" in words else ""
            scope = f", unregistered_scripts: {words[f'{file} scope']}" if f"{file} scope" in words else ""
            text = POLICY.format(prefix=f"{file}:", word=f"{{default: {words[file]}{app}}}", free=scope)
            text = text.replace("policy: p", f"policy: {file}").replace("free:", f"free{file}:", 1)
            (tmp_path / f"{file}.yaml").write_text(text.replace("rest:", f"rest{file}:", 1))
        policy = load_policy(tmp_path)
        for keys in itertools.chain([[]], ([one] for one in names), itertools.combinations(names, 2)):
            for service in ("app", "other"):
                word = expected(words, service, list(keys))
                rule = {"declared": [], "report": [REPORTED] if keys else [UNKNOWN]}.get(word, [UNKNOWN])
                found = [one for one in evalsha(policy, service, *keys) if one[0] == "script.unregistered"]
                assert found == rule, (words, service, keys)


def test_check_warns_of_each_word_that_another_file_overrides(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        POLICY.format(
            prefix="a:", word="{services: {other: report}}", free=", unregistered_scripts: declared"
        )
    )
    other = "policy: q\nclaims: ['b:']\nservices: [app]\nreaders: [app]\nkeys: {k: {key: 'b:k'}}\n"
    (tmp_path / "b.yaml").write_text(other)

    def of_first(one: Diagnostic) -> bool:
        return one.code == "stricter-file" and one.place.file.endswith("a.yaml")

    def warned() -> list[tuple[int, str]]:
        _, warnings, _ = check_policy(tmp_path)
        return sorted((one.place.line, one.message) for one in warnings if of_first(one))

    assert warned() == [
        (5, "another file of the folder is stricter, so load_only applies; register the scripts, or write "
            "declared in every file"),
        (7, "another file of the folder is stricter, so load_only applies; register the scripts, or write "
            "report in every file"),
    ]  # fmt: skip
    (tmp_path / "b.yaml").write_text(f"{other}unregistered_scripts: declared\n")
    assert warned() == []


def test_the_word_of_a_service_may_be_there_for_the_scope_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        POLICY.format(prefix="a:", word="load_only", free=", unregistered_scripts: report")
    )
    other = "policy: q\nclaims: ['b:']\nservices: [app]\nreaders: [app]\nkeys: {k: {key: 'b:k'}}\n"
    for word, warnings in (("services: {app: report}", []), ("default: report", ["stricter-file"])):
        (tmp_path / "b.yaml").write_text(f"{other}unregistered_scripts: {{{word}}}\n")
        found = [one.code for one in check_policy(tmp_path)[1] if one.place.file.endswith("b.yaml")]
        assert (word, found) == (word, warnings)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("allow", "write declared or report, not allow"),
        ("{services: {app: allow}}", "write declared or report, not allow"),
        ("{services: {nobody: report}}", "'nobody' is not listed under services"),
        ("{app: report}", "app"),
    ],
)
def test_a_wrong_word_is_an_error(word: str, told: str) -> None:
    with pytest.raises(FileError) as caught:
        policy_of(word)
    assert told in str(caught.value.diagnostics[0])


def test_diff_docs_and_acl_show_the_words_of_services_and_scopes() -> None:
    old, new = policy_of(), policy_of("{services: {other: forbid}}", "report")
    changes = [one.sentence for one in Difference(old, new).changes if "scripts" in one.sentence]
    assert changes == [
        "unregistered scripts: load_only; other: forbid; keys of the scope free: report, was load_only"
    ]
    shown = tables(new)
    assert shown["unregistered_exceptions"] == ["other: forbid", "keys of the scope free: report"]
    text = document(new)
    assert (
        "Other scripts may be loaded and not run. Except: other: forbid; keys of the scope free: report."
        in text
    )
    assert "+evalsha" in user_of(new, "app").rules
    assert "+evalsha" not in user_of(new, "other").rules
    assert "+evalsha" not in user_of(old, "app").rules
