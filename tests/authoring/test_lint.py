"""Every message of `keyfence check`; and any file, however damaged, gives only messages."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.authoring.lint import check_policy
from tests.policy.cases import POLICIES

TODAY = datetime.date(2026, 6, 15)
HEAD = """policy: p
claims: ["a:"]
services: [one, two]
placeholders: {id: "[a-z]{1,9}", n: "[0-9]+"}
scopes: {s: {prefix: "a:", writers: [one], readers: [two]}}
"""


def read_cases() -> list[tuple[str, list[str]]]:
    """Returns (policy, expected messages) for each case of check_cases.txt."""
    cases = []
    for block in (Path(__file__).parent / "check_cases.txt").read_text().split("====\n")[1:]:
        lines = block.splitlines()
        policy = [line for line in lines if not line.startswith("=> ")]
        cases.append(("\n".join(policy), [line[3:] for line in lines if line.startswith("=> ")]))
    return cases


CASES = read_cases()


def message(folder: Path, text: str) -> list[str]:
    file = folder / "p.yaml"
    file.write_text(text.replace("$HEAD\n", HEAD))
    errors, warnings, _ = check_policy(file, TODAY)
    return [str(one).removeprefix(f"{file}:").replace(f"{folder}/", "") for one in (*errors, *warnings)]


@pytest.mark.parametrize(
    ("text", "expected"), CASES, ids=[re.sub(r"\s+", " ", text)[:70] for text, _ in CASES]
)
def test_check_reports_these_faults_and_warnings(text: str, expected: list[str], tmp_path: Path) -> None:
    assert message(tmp_path, text) == expected


def test_channels_of_two_files_that_are_equally_specific_are_an_error(tmp_path: Path) -> None:
    for name, kind, owner in (("a", "[a-z0-9]{1,8}", "one"), ("b", "[a-z]+", "two")):
        (tmp_path / f"{name}.yaml").write_text(
            f"policy: {name}\nservices: [one, two]\nplaceholders: {{id: '{kind}'}}\nclaims: ['{name}:']\n"
            f"keys: {{k: {{key: '{name}:k', writers: one}}}}\n"
            f"channels: {{{name}: {{channel: 'c:<id>', publishers: {owner}}}}}\n"
        )
    errors, _, _ = check_policy(tmp_path, TODAY)
    (one,) = map(str, errors)
    assert one.startswith(f"{tmp_path}/b.yaml:6:25: error: 'c:<id>' and 'c:<id>' are equally specific")


def test_a_character_that_yaml_forbids_is_an_error(tmp_path: Path) -> None:
    assert message(tmp_path, 'policy: p\nabout: "a\0b"') == ["2:10: error: not YAML: the character U+0000"]


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    assert message(tmp_path, "") == ["1:1: error: the file is empty"]


def test_the_summary_counts_a_policy_s_parts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + 'keys: {k: {key: "a:<id>"}, one: {key: "a:b"}}\nlegacy: {keys: {"old:<id>": k}}\n')
    errors, warnings, summary = check_policy(file, TODAY)
    assert (errors, warnings) == ([], [])
    first, *scans = summary.splitlines()
    assert re.fullmatch(
        rf"{file}: 0 errors, 0 warnings; policy p, 2 services, 1 scope, 2 entries, 1 legacy form, \d+ states",
        first,
    )
    assert scans == ["  k  SCAN 0 MATCH a:*  (also finds one)"]


@pytest.mark.parametrize("name", ["none", "x/y"])
def test_an_unreadable_policy_is_an_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    errors, warnings, summary = check_policy(path)
    assert [str(one) for one in errors] == [f"{path}:1:1: error: cannot be read: No such file or directory"]
    assert (warnings, summary) == ([], f"{path}: 1 error")


@pytest.mark.parametrize(
    ("until", "level"),
    [
        ("2026-06-14", "error"),
        ("2026-06-15", "warning"),
        ("2026-06-29", "warning"),
        ("2026-06-30", ""),
    ],
)
def test_an_end_date_is_a_warning_14_days_before(until: str, level: str, tmp_path: Path) -> None:
    lines = message(tmp_path, f"$HEAD\nkeys: {{k: {{key: 'a:<id>'}}}}\nlegacy: {{until: {until}}}")
    assert [line.split(": ")[1] for line in lines] == ([level] if level else [])


def test_the_default_day_is_today(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(HEAD + "legacy: {until: 2000-01-01}\n")
    errors, _, _ = check_policy(file)
    assert [one.message for one in errors] == ["legacy ended on 2000-01-01; remove it or change the date"]


# -- damaged files

CUBESANDBOX = (POLICIES / "cubesandbox.yaml").read_text()
LINES = CUBESANDBOX.splitlines(keepends=True)
SPANS = [match.span() for match in re.finditer(r'"[^"]*"|[\w<>~.-]+', CUBESANDBOX)]
ODD = [
    "",
    "x",
    '"',
    "'",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    "#",
    "&a",
    "*a",
    "!t",
    "- ",
    "? ",
    "<<: ",
    "|",
    "\t",
    "\0",
]
ODD += [
    "[]",
    "{}",
    "{a: b}",
    "<",
    "<id",
    "<id>",
    "<x...>",
    "9" * 30,
    "-1",
    "60s",
    "none",
    "unknown",
    "null",
    "true",
]
ODD += ["\ud7ff", "a:\n  b", "(?=x)", "[a", "[a-z]{1,99999}", "(((a*)*)*)*", "\\"]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Returns the policy with some lines or words removed, doubled, moved or replaced."""
    text = CUBESANDBOX
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(["word", "swap", "line", "double", "indent", "cut", "insert"]))
        if way in ("word", "swap"):
            begin, end = draw(st.sampled_from(SPANS))
            other = draw(st.sampled_from(SPANS))
            new = draw(st.sampled_from(ODD)) if way == "word" else CUBESANDBOX[slice(*other)]
            text = text[:begin] + new + text[end:]
        elif way in ("line", "double", "indent"):
            lines = text.splitlines(keepends=True) or [""]
            at = draw(st.integers(0, len(lines) - 1))
            lines[at : at + 1] = {"line": [], "double": [lines[at]] * 2, "indent": ["  " + lines[at]]}[way]
            text = "".join(lines)
        else:
            at = draw(st.integers(0, len(text)))
            text = text[:at] + ("" if way == "cut" else draw(st.sampled_from(ODD)) + text[at:])
    return text


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(text=mutated())
def test_a_damaged_policy_gives_errors_with_places(text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    errors, warnings, summary = check_policy(file, TODAY)
    lines = len(text.splitlines()) + 1
    for one in (*errors, *warnings):
        assert one.place.file == str(file)
        assert 1 <= one.place.line <= lines
        assert one.place.column >= 1
        assert one.message
        assert "\n" not in one.message
    assert summary.startswith(f"{file}: ")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60))
def test_a_file_of_random_bytes_gives_an_error(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(content)
    errors, _, _ = check_policy(file, TODAY)
    assert errors
