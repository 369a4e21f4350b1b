from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest

from keyfence.admin.audit import Audit
from keyfence.telemetry import operator_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_change_is_a_line_for_the_operator_and_one_of_the_log(path: Path) -> None:
    said: list[str] = []
    audit = Audit(str(path), said.append)
    audit.note("ann", "10.0.0.7", "mode", "scope.write: enforce", "ready for a week", "done")
    audit.note("a program", "::1", "POST /-/reload", "", "", "status 422")
    assert said == [
        "audit: mode (scope.write: enforce) by ann from 10.0.0.7: ready for a week [done]",
        "audit: POST /-/reload by a program from ::1 [status 422]",
    ]
    first, second = lines(path)
    assert list(first) == ["time", "who", "address", "action", "detail", "why", "outcome"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["time"])
    assert (first["who"], first["why"], second["detail"]) == ("ann", "ready for a week", "")


def test_a_change_that_has_a_line_of_its_own_is_in_the_log_only(path: Path) -> None:
    said: list[str] = []
    Audit(str(path), said.append).note("a program", "::1", "POST /-/reload", "", "", "done", aloud=False)
    assert (said, [one["action"] for one in lines(path)]) == ([], ["POST /-/reload"])


def test_text_from_outside_stays_on_its_line(path: Path) -> None:
    said: list[str] = []
    audit = Audit(str(path), said.append)
    audit.note('ann" }\n{"who": "eve\x1b[2J\u202e\udcff', "a", "mode", "x\r\ny", "ключ\u2028", "done")
    (one,) = lines(path)
    assert one["who"] == 'ann" }\ufffd{"who": "eve\ufffd[2J\ufffd\ufffd'
    assert (one["detail"], one["why"]) == ("x\ufffd\ufffdy", "ключ\ufffd")
    assert said[0].isprintable()


def test_without_a_file_there_is_the_line_only(capsys: pytest.CaptureFixture[str]) -> None:
    Audit().note("ann", "10.0.0.7", "reload", "", "", "done")
    assert "audit: reload by ann from 10.0.0.7 [done]" in capsys.readouterr().out


def test_the_log_is_appended_to_and_may_be_moved_away(path: Path, tmp_path: Path) -> None:
    path.write_text('{"who": "before"}\n')
    audit = Audit(str(path), lambda _: None)
    audit.note("ann", "a", "one", "", "", "done")
    path.rename(tmp_path / "audit.jsonl.1")
    audit.note("ann", "a", "two", "", "", "done")
    assert [one.get("action") for one in lines(tmp_path / "audit.jsonl.1")] == [None, "one"]
    assert [one["action"] for one in lines(path)] == ["two"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o137 == 0


@pytest.mark.parametrize("kind", ["folder", "fifo", "missing folder"])
def test_a_log_that_cannot_be_written_stops_no_change_and_is_reported_once(
    kind: str, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_log, "_kinds", {})
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)  # nobody reads it
    else:
        path = path / "none" / "audit.jsonl"
    said: list[str] = []
    audit = Audit(str(path), said.append)
    for _ in range(3):
        audit.note("ann", "a", "reload", "", "", "done")
    assert len(said) == 3
    reported = capsys.readouterr().err
    assert reported.count("the audit log ") == 1
    assert "cannot be written: " in reported


def test_a_line_that_a_full_disk_cut_does_not_spoil_the_next(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_log, "_kinds", {})
    audit = Audit(str(path), lambda _: None)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:20]))
    audit.note("ann", "a", "one", "", "", "done")
    monkeypatch.undo()
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    audit.note("ann", "a", "two", "", "", "done")
    audit.note("ann", "a", "three", "", "", "done")
    cut, *whole = path.read_text().splitlines()
    assert len(cut) == 20
    assert [json.loads(one)["action"] for one in whole] == ["two", "three"]
