from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.units import counted, duration_text, milliseconds, size_bytes
from tests.servers import PROJECT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", 0),
        ("1ms", 1),
        ("500ms", 500),
        ("60s", 60_000),
        ("10m", 600_000),
        ("1h", 3_600_000),
        ("1h30m", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("1d1h1m1s1ms", 90_061_001),
        ("1s1s", 2_000),
    ],
)
def test_a_duration_is_read(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "60", "s", "60 s", " 60s", "60s ", "-1s", "+1s", "1.5h", "1H", "1h30", "1h,", "٣s", "9" * 13 + "s"],
)
def test_an_invalid_duration_is_an_error(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        milliseconds(text)
    assert str(caught.value) == (
        f"{text!r} is not a duration; write a number and its unit, as 500ms, 60s, 10m, 1h or 7d"
    )


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (1500, "1500ms"),
        (60_000, "1m"),
        (90_000, "90s"),
        (3_600_000, "1h"),
        (86_400_000, "1d"),
    ],
)
def test_a_duration_is_written(ms: int, text: str) -> None:
    assert duration_text(ms) == text


@given(st.integers(0, 10**12 - 1))
def test_a_written_duration_reads_back(ms: int) -> None:
    assert milliseconds(duration_text(ms)) == ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("512", 512),
        ("512b", 512),
        ("16kb", 16_384),
        ("16 KB", 16_384),
        (" 64mb ", 67_108_864),
        ("1gb", 2**30),
    ],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "k", "1k", "1tb", "-1", "1.5mb", "1 0", "٣", "9" * 13])
def test_an_invalid_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        size_bytes(text)
    assert (
        str(caught.value)
        == f"{text!r} is not a size; write a number and its unit, as 512b, 16kb, 64mb or 1gb"
    )


@pytest.mark.parametrize(
    ("number", "nouns", "expected"),
    [
        (0, ("finding",), "0 findings"),
        (1, ("time",), "1 time"),
        (1_200, ("time",), "1,200 times"),
        (1, ("hash", "hashes"), "1 hash"),
        (2, ("hash", "hashes"), "2 hashes"),
    ],
)
def test_a_number_stands_with_its_noun(number: int, nouns: tuple[str, ...], expected: str) -> None:
    assert counted(number, *nouns) == expected


MODULES = sorted((PROJECT / "proxy" / "keyfence").rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PROJECT / "proxy")))
def test_no_other_code_makes_a_plural(path: Path) -> None:
    if path.name == "units.py" and path.parent.name == "policy":
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [node.lineno for node in ast.walk(tree) if _makes_a_plural(node)] == []


def _makes_a_plural(node: ast.AST) -> bool:
    """Whether code chooses between a noun with and without s, or writes "times" behind a number."""
    if isinstance(node, ast.IfExp):
        branches = {one.value for one in (node.body, node.orelse) if isinstance(one, ast.Constant)}
        return bool(branches & {"s", "es"})
    if not isinstance(node, ast.JoinedStr):
        return False
    pairs = zip(node.values, node.values[1:], strict=False)
    return any(
        isinstance(one, ast.FormattedValue)
        and not ast.unparse(one.value).isupper()  # a constant is more than one
        and isinstance(other, ast.Constant)
        and re.match(r" (times|commands|findings|violations|keys|rows|seconds)\b", str(other.value))
        for one, other in pairs
    )
