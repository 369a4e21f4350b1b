from __future__ import annotations

from keyfence.policy.diagnostics import MAX_SHOWN, Diagnostic, Place


def shown(line: str, column: int, width: int) -> list[str]:
    return Diagnostic(Place("f", 7, column), "error", "bad", line, width).illustrated().splitlines()


def test_a_caret_marks_the_characters_at_fault() -> None:
    assert shown("a: bcd", 4, 3) == ["f:7:4: error: bad", " 7 | a: bcd", "   |    ^^^"]


def test_wide_characters_take_two_columns() -> None:
    assert shown("键: 值", 4, 1) == ["f:7:4: error: bad", " 7 | 键: 值", "   |     ^^"]


def test_a_long_line_is_cut_around_the_fault() -> None:
    _, line, caret = shown("x" * 200 + "FAULT" + "y" * 200, 201, 5)
    assert len(line) <= MAX_SHOWN + 8
    at = caret.index("^")
    assert line[at : at + 5] == "FAULT"


def test_unprintable_characters_are_replaced() -> None:
    assert "\x1b" not in "".join(shown("a: \x1b[31m", 4, 2))


def test_without_a_line_only_the_message_is_shown() -> None:
    assert shown("", 1, 1) == ["f:7:1: error: bad"]
