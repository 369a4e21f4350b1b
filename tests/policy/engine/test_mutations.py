"""Random mutations of the shipped policies.

Rule: keyfence reports each error with its place, and never fails with a traceback.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyfence.authoring.lint import check_policy
from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.loading.load import parse_policy
from keyfence.policy.show import printable
from tests.policy.cases import POLICIES

FILES = sorted(path for path in POLICIES.glob("*.yaml") if ".test." not in path.name)
TEXTS = {path: path.read_text() for path in FILES}
EACH = -(-200 // len(FILES))  # per file, about 200 in all

TOKEN = re.compile(r"[A-Za-z0-9_.-]+|[^\sA-Za-z0-9_.-]|\s+")
SIGNS = (
    """: { } [ ] " ' < > # &a *a !x - | \\ none 0 -1 99999999999999999999 true [] {} <id> <id...> <scope> é"""
)
JUNK = st.sampled_from([*re.split(" ", SIGNS), "", " ", "\n", "\t", "\x00"])


def drop(data: st.DataObject, tokens: list[str]) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    del tokens[at : at + data.draw(st.integers(1, 4))]


def double(data: st.DataObject, tokens: list[str]) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    tokens[at:at] = tokens[at : at + data.draw(st.integers(1, 8))]


def swap(data: st.DataObject, tokens: list[str]) -> None:
    one, other = data.draw(st.integers(0, len(tokens) - 1)), data.draw(st.integers(0, len(tokens) - 1))
    tokens[one], tokens[other] = tokens[other], tokens[one]


def replace(data: st.DataObject, tokens: list[str]) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    tokens[at] = data.draw(JUNK | st.sampled_from(tokens))


def misspell(data: st.DataObject, tokens: list[str]) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    word = tokens[at]
    cut = data.draw(st.integers(0, len(word)))
    tokens[at] = word[:cut] + data.draw(st.sampled_from(["", "x", "_", "A"])) + word[cut + 1 :]


def cut(data: st.DataObject, tokens: list[str]) -> None:
    del tokens[data.draw(st.integers(0, len(tokens) - 1)) :]


def faults(text: str, path: Path) -> list[Diagnostic]:
    """Returns the errors of a policy; empty if it is valid."""
    try:
        parse_policy(text, str(path))
    except FileError as exc:
        return exc.diagnostics or pytest.fail("refused without a message")
    return []


MUTATIONS = st.sampled_from([drop, double, swap, replace, replace, misspell, misspell, cut])


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@settings(max_examples=EACH, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_error_in_a_mutated_policy_has_a_place(path: Path, data: st.DataObject) -> None:
    tokens = TOKEN.findall(TEXTS[path])
    for mutate in data.draw(st.lists(MUTATIONS, min_size=1, max_size=3)):
        if tokens:
            mutate(data, tokens)
    text = "".join(tokens)
    lines = text.count("\n") + 2
    for one in faults(text, path):
        assert one.place.file
        assert 1 <= one.place.line <= lines
        assert one.place.column >= 1
        assert one.message
        assert "Traceback" not in one.message


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_check_prints_one_line_per_error_in_a_mutated_policy(
    path: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokens = TOKEN.findall(TEXTS[path])
    data.draw(MUTATIONS)(data, tokens)
    file = tmp_path_factory.getbasetemp() / "mutated.yaml"
    file.write_text("".join(tokens), newline="")
    errors, warnings, summary = check_policy(file)
    assert summary.startswith(f"{file}: ")
    for one in (*errors, *warnings):
        assert str(one) == printable_line(str(one))
        assert re.match(r".+:\d+:\d+: (error|warning): .", str(one))


def printable_line(text: str) -> str:
    """Returns the text unchanged if it is one line that is safe to print."""
    return text if "\n" not in text else printable(text.encode())
