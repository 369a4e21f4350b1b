from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from keyfence.cli.main import cli
from keyfence.policy.compiled.policy import CompiledPolicy
from keyfence.policy.loading.load import load_policy
from keyfence.policy.remedies.explain import explain
from keyfence.policy.remedies.policy_diffs import with_diffs
from keyfence.policy.source.yaml_edits import EditError, flow_text, with_lines
from keyfence.web.render import render
from tests.policy.remedies.test_remedies import CASES, TEXT
from tests.policy.remedies.test_remedies_hold import merged

FILE = """# The keys of the shop.
policy: shop
services: [shop, pricing]
claims: ["hb:"]
keys:
  # what a customer booked
  booking: {key: "hb:booking:<id>", type: hash, writers: [shop]}  # by #shop
  price:
    key: "hb:price:<id>"
    type: string
    writers: shop   # only the shop
    readers:
      - shop
placeholders: {id: "[a-z0-9]+"}
"""


@pytest.fixture
def policy(tmp_path: Path) -> CompiledPolicy:
    (tmp_path / "shop.yaml").write_text(FILE)
    return load_policy(str(tmp_path / "shop.yaml"))


def remedies_of(policy: CompiledPolicy, service: str, command: str, **more: Any) -> list[Mapping[str, Any]]:
    argv = [word.encode() for word in shlex.split(command)]
    found: list[Mapping[str, Any]] = with_diffs(policy, explain(policy, service, argv), **more)["remedies"]
    return [one for one in found if one["add"]]


@pytest.mark.parametrize(
    ("command", "before", "after"),
    [
        (
            "HSET hb:booking:7 a b",
            '  booking: {key: "hb:booking:<id>", type: hash, writers: [shop]}  # by #shop',
            '  booking: {key: "hb:booking:<id>", type: hash, writers: [shop, pricing]}  # by #shop',
        ),
        (
            "SET hb:price:7 9",
            "    writers: shop   # only the shop",
            "    writers: [shop, pricing]   # only the shop",
        ),
        ("GET hb:price:7", "", "      - pricing"),
    ],
)
def test_a_right_is_shown_as_a_change_of_its_line(
    policy: CompiledPolicy, command: str, before: str, after: str
) -> None:
    (one,) = remedies_of(policy, "pricing", command)
    changed = [line for line in one["diff"].splitlines()[3:] if line[0] in "+-"]
    assert changed == [*([f"-{before}"] if before else []), f"+{after}"]
    assert one["diff"].startswith(f"--- {policy.homes[0].file}\n+++ {policy.homes[0].file}\n@@ ")


def test_the_change_can_be_applied_with_patch(policy: CompiledPolicy) -> None:
    import subprocess

    (one,) = remedies_of(policy, "pricing", "SET hb:price:7 9")
    file = policy.homes[0].file
    subprocess.run(["patch", "-s", file], input=one["diff"], text=True, check=True)
    assert explain(load_policy(file), "pricing", [b"SET", b"hb:price:7", b"9"])["verdict"] == "allow"


def test_a_file_that_is_gone_or_too_large_leaves_the_lines(policy: CompiledPolicy) -> None:
    (one,) = remedies_of(policy, "pricing", "SET hb:price:7 9", most=10)
    assert (one["diff"], one["lines"]) == ("", "keys:\n  price:\n    writers: [pricing]\n")
    Path(policy.homes[0].file).unlink()
    (one,) = remedies_of(policy, "pricing", "SET hb:price:7 9")
    assert one["diff"] == ""


def test_lines_that_make_the_policy_faulty_are_said_to_do_so(tmp_path: Path) -> None:
    """A list of writers gives a right that a scope inside denies; the policy is then refused."""
    (tmp_path / "p.yaml").write_text(
        "policy: p\nservices: [shop, pricing]\nplaceholders: {st: 'a|b'}\n"
        "scopes:\n  all: {prefix: 'hb:', writers: shop}\n"
        "  inner: {prefix: 'hb:a:', writers: shop, deny_write: pricing}\n"
        "keys: {thing: {key: 'hb:<st>:x'}}\n"
    )
    policy = load_policy(str(tmp_path / "p.yaml"))
    (one,) = remedies_of(policy, "pricing", "SET hb:b:x 1")
    assert "; but then check says: some keys of 'hb:<st>:x', such as 'hb:a:x', are under" in one["text"]
    assert one["diff"] == ""


def test_among_several_files_the_one_that_has_the_entry_changes(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(FILE)
    (tmp_path / "other.yaml").write_text(
        'policy: other\nservices: [shop, pricing]\nclaims: ["o:"]\n'
        'keys: {x: {key: "o:<id>", readers: [shop]}}\nplaceholders: {id: "[a-z]+"}\n'
    )
    policy = load_policy(str(tmp_path))
    (one,) = remedies_of(policy, "pricing", "GET o:a")
    assert one["diff"].startswith(f"--- {tmp_path}/other.yaml\n")
    assert '+keys: {x: {key: "o:<id>", readers: [shop, pricing]}}' in one["diff"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[2]}-{case[1]}" for case in CASES])
def test_each_remedy_is_a_change_of_the_file_and_no_text_of_python(
    case: tuple[str, str, str, Any], tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(TEXT)
    policy = load_policy(str(tmp_path / "p.yaml"))
    argv = [word.encode() for word in shlex.split(case[1])]
    explained = with_diffs(policy, explain(policy, case[0], argv))
    page = {"views": (), "path": "/", "live": "", "who": "", "may_sign_in": False, "notices": (), "now": 0}
    values = {"explained": explained, "services": (), "given": {"service": "", "command": ""}, "fault": ""}
    shown = render("explain.html", {**values, "page": page, "now": 0})
    words = ["explain", "--policy", str(tmp_path / "p.yaml"), "--service", case[0], "--"]
    printed = CliRunner().invoke(cli, [*words, *shlex.split(case[1])]).output
    for one in explained["remedies"]:
        assert bool(one["diff"]) == bool(one["lines"]) == bool(one["add"])
        if one["add"]:
            changed = yaml.load(with_lines(TEXT, one["add"]), yaml.BaseLoader)
            assert changed == yaml.load(
                yaml.safe_dump(merged(yaml.load(TEXT, yaml.BaseLoader), one["add"])), yaml.BaseLoader
            )
        for text in (shown, printed, one["text"], one["diff"], one["lines"]):
            assert [part for part in _python_texts(one["add"]) if part in text] == []


def _python_texts(value: Any) -> Iterator[str]:
    """The texts of Python for a value and its parts, but those that are YAML too."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _python_texts(one)
    if isinstance(value, Mapping | list) and value and repr(value) != flow_text(value):
        yield repr(value)
        assert ast.literal_eval(repr(value)) == value


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 2}}),
        ("a: {b: [1]}\n", {"a": {"b": {"c": 1}}}),
        ("a: {b: {c: 1}}\n", {"a": {"b": 2}}),
    ],
)
def test_what_cannot_be_changed_safely_is_left_to_a_person(text: str, lines: dict[str, Any]) -> None:
    with pytest.raises(EditError):
        with_lines(text, lines)


@pytest.mark.parametrize("before", ["grants:\n", "grants:  # none\n", "grants: {}\n", ""])
def test_a_section_that_is_empty_gets_its_first_name(before: str) -> None:
    after = with_lines(f"{before}services: [shop]\n", {"grants": {"shop": {"commands": ["KEYS"]}}})
    assert after.count("grants:") == 1
    assert yaml.safe_load(after) == {"services": ["shop"], "grants": {"shop": {"commands": ["KEYS"]}}}
