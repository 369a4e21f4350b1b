"""Lines for operators, few of them."""

from __future__ import annotations

import pytest

from proxy import notices


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_kinds", {})


def test_a_kind_is_told_once_a_minute_with_how_many_were_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    for _ in range(5):
        notices.notice("a", "first")
    notices.notice("b", "other")
    first, other = capsys.readouterr().err.splitlines()
    assert first.startswith("keyfence: 2")
    assert first.endswith("Z first")
    assert other.endswith("Z other")
    now += 60
    notices.notice("a", "second")
    assert capsys.readouterr().err.endswith("Z second (and 4 more since the last line about this)\n")


def test_kinds_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(notices.MAX_KINDS + 5):
        notices.notice(str(number), "x")
    assert len(notices._kinds) == notices.MAX_KINDS
    assert capsys.readouterr().err.count("\n") == notices.MAX_KINDS + 5
