"""Answers as replies, in both protocols and within their bounds."""

from __future__ import annotations

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.resp.values import LEFT_OUT, MAX_BYTES, MAX_ROWS, MAX_TEXT, answer, lines, value


def read(data: bytes) -> object:
    reader = hiredis.Reader(encoding="utf-8", errors="surrogateescape")
    reader.feed(data)
    found = reader.gets()
    assert not reader.has_data()
    return found


def flat(one: object) -> object:
    """A value as RESP2 has it."""
    if isinstance(one, dict):
        return [part for name, field in one.items() for part in (name, flat(field))]
    if isinstance(one, list):
        return [flat(field) for field in one]
    return int(one) if isinstance(one, bool) else one


TEXTS = st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode())
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
)


@given(VALUES)
def test_a_value_is_read_back_as_it_was(one: object) -> None:
    assert read(value(one, 3)) == one
    assert read(value(one, 2)) == flat(one)


def test_fractions_are_texts_in_resp2() -> None:
    assert value(1.5, 3) == b",1.5\r\n"
    assert value(1.5, 2) == b"$3\r\n1.5\r\n"


def test_bytes_that_are_not_text_come_back_as_they_were() -> None:
    assert value(b"a\xff\r\n".decode("utf-8", "surrogateescape"), 2) == b"$4\r\na\xff\r\n\r\n"


def test_a_long_text_is_cut() -> None:
    found = read(value("x" * 5000, 3))
    assert isinstance(found, str)
    assert (len(found), found[-1]) == (MAX_TEXT, "…")


def test_an_answer_without_rows_is_a_map() -> None:
    assert (
        answer({"a": 1, "b": {"c": None}}, 3) == b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n%1\r\n$1\r\nc\r\n_\r\n"
    )
    assert answer({"a": 1}, 2) == b"*2\r\n$1\r\na\r\n:1\r\n"


@pytest.mark.parametrize(
    ("rows", "before", "kept"),
    [(0, 0, 0), (3, 0, 3), (MAX_ROWS, 7, MAX_ROWS), (MAX_ROWS + 5, 7, MAX_ROWS)],
)
def test_rows_beyond_the_limit_are_counted(rows: int, before: int, kept: int) -> None:
    fields = {LEFT_OUT: before, "rows": [{"n": number} for number in range(rows)], "last": True}
    found = read(answer(fields, 3))
    assert found == {
        "rows": [{"n": number} for number in range(kept)],
        "last": True,
        LEFT_OUT: before + rows - kept,
    }


@given(
    st.lists(st.integers(0, 3000), max_size=300),
    st.lists(st.integers(0, 3000), max_size=300),
    st.sampled_from([2, 3]),
)
def test_an_answer_is_bounded_in_bytes_and_says_what_is_missing(
    one: list[int], other: list[int], resp: int
) -> None:
    fields = {
        "head": "x" * 5000,
        "one": ["y" * size for size in one],
        "other": ["z" * size for size in other],
    }
    data = answer(fields, resp)
    assert len(data) <= MAX_BYTES
    found = read(data)
    assert isinstance(found, dict if resp == 3 else list)
    parts = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    assert len(parts["one"]) + len(parts["other"]) + parts[LEFT_OUT] == len(one) + len(other)


def test_help_is_an_array_of_simple_strings() -> None:
    assert lines(["a", "    b"]) == b"*2\r\n+a\r\n+    b\r\n"
