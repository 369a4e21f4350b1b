from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from keyfence.policy.verdict import Action, Peer, Violation
from keyfence.telemetry import decision_log as module
from keyfence.telemetry import log_file
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.decision_log import DecisionLog, new_decision_id, rfc3339
from keyfence.telemetry.log_file import LogFile
from keyfence.telemetry.sink import Group, Occurrence
from tests.telemetry.violations import violation

EPOCH = 1_750_000_000.0
A_VIOLATION = violation()


class Book:
    """A decision log in a file, with ids that count up and a clock that stands still."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.counters = Counters()
        self.file = LogFile(str(path), self.counters)
        numbers = count(1)
        self.log = DecisionLog(self.file, self.counters, new_id=lambda: f"d-{next(numbers):08x}", **options)
        self.now = 0.0

    def record(
        self,
        entry: str = "sandbox-route",
        action: Action = "observed",
        *,
        violation: Violation = A_VIOLATION,
        shape: str = "",
        client: str = "10.0.0.7:5123",
        revision: str = "r1",
        times: int = 1,
        at: float | None = None,
    ) -> str:
        group = Group("CubeProxy", violation.rule, "HSET", entry, shape, action, "HSET")
        at = EPOCH + self.now if at is None else at
        return self.log.record(group, Occurrence(violation, Peer(client), revision, times, self.now, at))

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def told(self) -> int:
        return sum(1 + line["merged"] + line["dropped"] for line in self.lines())


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    book = Book(tmp_path / "decisions.log")
    yield book
    book.log.close()


def test_a_line_says_who_broke_what_with_which_key(book: Book) -> None:
    book.now = 1.25
    decision = book.record(action="refused")
    assert book.lines() == [
        {
            "time": "2025-06-15T15:06:41.250000Z",
            "decision": decision,
            "revision": "r1",
            "service": "CubeProxy",
            "client": "10.0.0.7:5123",
            "command": "HSET",
            "rule": "scope.write",
            "severity": "must",
            "entry": "sandbox-route",
            "key": "cube:v1:shared:sandbox:proxy:7c8f",
            "hint": "its writers: CubeMaster",
            "message": "CubeProxy may not HSET that",
            "position": 1,
            "action": "refused",
            "merged": 0,
            "dropped": 0,
        }
    ]


def test_a_key_that_no_entry_covers_has_a_shape_instead_of_an_entry(book: Book) -> None:
    book.record("", violation=violation(b"user:1", entry="", shape=""), shape="user:<int>")
    (line,) = book.lines()
    assert line["shape"] == "user:<int>"
    assert "entry" not in line


@pytest.mark.parametrize(
    "rule", ["value.invalid", "field.unknown", "ttl.range", "stream.maxlen", "script.keys"]
)
def test_messages_that_may_quote_a_value_are_left_out(book: Book, rule: str) -> None:
    book.record(violation=violation(rule=rule, message="the value is hunter2"))
    assert "hunter2" not in book.path.read_text()


def test_a_line_with_a_masked_key_holds_no_part_that_identifies_the_key(tmp_path: Path) -> None:
    book = Book(tmp_path / "masked.log", mask_keys=True)
    key = b"describetask:9f86d081"
    what = violation(key, message=f"no {key.decode()}", hint="use cube:v1:master:task:describe:9f86d081")
    book.record(violation=what)
    (line,) = book.lines()
    assert line["key"] == "sha256:" + hashlib.sha256(key).hexdigest()[:12]
    assert line["hint"] == "use cube:v1:master:task:describe:…"
    assert "message" not in line
    book.record(violation=violation(None))
    assert book.lines()[1]["key"] == ""
    book.log.close()


def test_a_long_key_is_not_held_for_a_later_line_and_its_mask_is_still_right(tmp_path: Path) -> None:
    book = Book(tmp_path / "masked.log", mask_keys=True)
    key = b"k" * 50_000
    for _ in range(module.GROUP_BURST + 2):
        book.record(violation=violation(key))
    held = next(iter(book.log._waiting.values())).violation
    assert held.key is None
    book.log.close()
    assert {line["key"] for line in book.lines()} == {"sha256:" + hashlib.sha256(key).hexdigest()[:12]}


def test_a_long_key_that_waits_is_not_shown_once_keys_are_masked(book: Book) -> None:
    key = b"customer-4711:" + b"k" * 50_000
    for _ in range(module.GROUP_BURST + 2):
        book.record(violation=violation(key))
    before = len(book.lines())
    book.log.mask(True)
    book.log.close()
    (late,) = book.lines()[before:]
    assert (late["key"], late["merged"]) == ("", 1)
    assert "4711" not in json.dumps(late)


def test_a_line_is_pure_ascii_whatever_the_key_held(book: Book) -> None:
    book.record(violation=violation("ключ\x1b[31m\n".encode()))
    data = book.path.read_bytes()
    assert data.isascii()
    assert data.count(b"\n") == 1
    assert b"\x1b" not in data


def test_a_group_writes_its_burst_at_once_and_then_a_line_a_second(book: Book) -> None:
    for _ in range(1_000):
        book.record()
    assert len(book.lines()) == module.GROUP_BURST
    book.now = 1.0
    book.record()
    assert len(book.lines()) == module.GROUP_BURST + 1
    assert book.lines()[-1]["merged"] == 980
    assert book.told() == 1_001
    for tenth in range(11, 40):
        book.now = tenth / 10
        book.record()
    assert len(book.lines()) == module.GROUP_BURST + 3


def test_groups_do_not_share_their_allowance(book: Book) -> None:
    for _ in range(50):
        book.record()
    book.record("other-entry")
    book.record(action="refused")
    assert len(book.lines()) == module.GROUP_BURST + 2


def test_merged_decisions_wait_ten_seconds_at_most(book: Book) -> None:
    for _ in range(25):
        book.record()
    book.now = 9.9
    book.log.flush(book.now)
    assert len(book.lines()) == 20
    book.now = 10.0
    book.log.flush(book.now)
    assert book.lines()[-1]["merged"] == 4
    assert book.told() == 25
    book.now = 30.0
    book.log.flush(book.now)
    assert len(book.lines()) == 21


def test_a_merged_line_shows_the_last_decision(book: Book) -> None:
    for number in range(25):
        book.record(client=f"10.0.0.{number}:1", revision=f"r{number}", at=EPOCH + number)
    book.log.flush(10.0)
    line = book.lines()[-1]
    assert (line["client"], line["revision"], line["time"]) == ("10.0.0.24:1", "r24", rfc3339(EPOCH + 24))


def test_a_merged_refusal_carries_the_id_of_the_last_line_of_its_group(book: Book) -> None:
    ids = [book.record(action="refused") for _ in range(30)]
    written = [line["decision"] for line in book.lines()]
    assert ids[:20] == written
    assert set(ids[20:]) == {written[-1]}


def test_a_refusal_merged_before_the_first_line_carries_the_id_of_that_line(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINES_PER_SECOND", 1)
    book.record()
    ids = {book.record("late-comer", action="refused") for _ in range(3)}
    assert len(ids) == 1
    assert len(book.lines()) == 1
    book.log.flush(10.0)
    assert book.lines()[-1]["decision"] == ids.pop()
    assert book.told() == 4


def test_all_groups_together_write_a_thousand_lines_a_second(book: Book) -> None:
    for number in range(3_000):
        book.record(f"entry-{number}")
    assert len(book.lines()) == module.LINES_PER_SECOND
    for second in range(10, 14):
        book.log.flush(float(second))
    assert len(book.lines()) == 3_000
    assert book.told() == 3_000


def test_groups_are_bounded_and_unreported_decisions_of_the_oldest_are_counted(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_GROUPS", 10)
    for number in range(40):
        for _ in range(30):
            book.record(f"entry-{number}")
    assert len(book.log._groups) == 10
    assert len(book.log._waiting) <= 10
    assert book.counters.log_groups_evicted == 30
    book.now = 5.0
    book.record("one-more")
    book.log.close()
    assert book.told() == 40 * 30 + 1
    assert sum(line["dropped"] for line in book.lines()) == book.counters.log_dropped > 0


def test_many_decisions_alike_can_be_recorded_at_once(book: Book) -> None:
    book.record(times=500)
    assert book.lines()[0]["merged"] == 499


def test_closing_writes_everything_that_waits(book: Book) -> None:
    for _ in range(100):
        book.record()
    book.log.close()
    assert book.told() == 100
    book.record()
    assert len(book.lines()) == 21


def test_the_lines_of_a_turn_of_the_event_loop_go_out_together(tmp_path: Path) -> None:
    turn: list[Callable[[], None]] = []
    path = tmp_path / "log"
    file = LogFile(str(path), Counters(), turn.append)
    file.write(b"one\n", 1, 0)
    file.write(b"two\n", 1, 0)
    assert path.read_bytes() == b""
    assert len(turn) == 1
    turn.pop()()
    assert path.read_bytes() == b"one\ntwo\n"
    file.write(b"three\n", 1, 0)
    assert len(turn) == 1
    file.close()


def test_after_logrotate_the_lines_go_to_the_new_file(book: Book, tmp_path: Path) -> None:
    book.record()
    book.path.rename(tmp_path / "decisions.log.1")
    book.record()
    book.log.reopen()
    book.record()
    assert len(book.lines()) == 1
    assert len((tmp_path / "decisions.log.1").read_text().splitlines()) == 2


def test_if_the_file_was_deleted_the_lines_go_to_a_new_one(
    book: Book, capsys: pytest.CaptureFixture[str]
) -> None:
    book.record()
    book.path.unlink()
    book.record()
    book.record()
    assert len(book.lines()) == 2
    said = f"the decision log {book.path} was deleted; keyfence goes on in a new file"
    assert capsys.readouterr().err.count(said) == 1


def test_if_its_folder_was_deleted_the_lines_are_counted_as_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    book = Book(folder / "decisions.log")
    book.record()
    shutil.rmtree(folder)
    book.record()
    assert "cannot write the decision log" in capsys.readouterr().err
    assert (book.counters.log_write_failures, book.counters.log_lines) == (1, 1)
    folder.mkdir()
    book.record()
    assert [line["dropped"] for line in book.lines()] == [1]
    book.log.close()


def test_if_reopening_fails_the_old_file_stays_in_use(
    book: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old"
    book.path.rename(old)
    book.path.mkdir()
    book.log.reopen()
    book.record()
    assert len(old.read_text().splitlines()) == 1
    assert "cannot write the decision log" in capsys.readouterr().err
    book.path.rmdir()


def test_a_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such-directory"):
        LogFile(str(tmp_path / "no-such-directory" / "log"), Counters())


class Disk:
    """os.write on a disk with limited room, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._write = os.write
        monkeypatch.setattr(log_file.os, "write", self)

    def __call__(self, fd: int, data: memoryview) -> int:
        if self.room is None:
            return self._write(fd, data)
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_full_disk_never_raises_and_is_reported_once(
    book: Book, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk(monkeypatch)
    book.record()
    disk.room = 0
    for _ in range(5):
        book.record()
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert book.counters.log_write_failures == 5
    disk.room = None
    book.record()
    assert book.lines()[-1]["dropped"] == 5
    assert book.told() == 7
    assert book.counters.log_dropped == 5


def test_a_line_that_the_disk_cut_does_not_spoil_the_next(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.room = 40
    book.record()
    book.record()
    disk.room = None
    book.record()
    book.record()
    cut, *whole = book.path.read_text().splitlines()
    assert len(cut) == 40
    assert [json.loads(line)["dropped"] for line in whole] == [2, 0]
    assert book.counters.log_lines == 2


def test_dropped_decisions_stay_counted_if_the_line_that_reports_them_is_lost_too(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.room = 0
    for _ in range(3):
        book.record()
    disk.room = None
    book.record()
    assert book.told() == 4
    assert book.counters.log_dropped == 3


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[tuple[LogFile, int, Counters]]:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    counters = Counters()
    file = LogFile(str(path), counters)
    yield file, reader, counters
    file.close()
    os.close(reader)


def _drain(reader: int) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(reader, 1 << 20)
        except BlockingIOError:
            return data


def test_a_pipe_that_nobody_reads_never_blocks_and_loses_no_part_of_a_line(
    pipe: tuple[LogFile, int, Counters],
) -> None:
    file, reader, counters = pipe
    line = b"x" * 999 + b"\n"
    for _ in range(300):
        file.write(line, 1, 0)
    data = b""
    while len(data) < 300_000:
        data += _drain(reader)
        file.flush()
    assert data == line * 300
    assert counters.log_lines == 300
    assert file.take_lost() == 0


def test_past_its_buffer_a_pipe_loses_whole_lines_and_counts_them(
    pipe: tuple[LogFile, int, Counters],
) -> None:
    file, reader, counters = pipe
    line = b"x" * 9_999 + b"\n"
    for _ in range(200):
        file.write(line, 1, 0)
    lost = file.take_lost()
    assert 0 < lost == counters.log_dropped
    data = b""
    while chunk := _drain(reader):
        data += chunk
        file.flush()
    assert data == line * (200 - lost)


def test_standard_output_can_take_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    counters = Counters()
    file = LogFile("-", counters)
    file.write(b'{"a":1}\n', 1, 0)
    file.reopen()
    file.close()
    assert capfd.readouterr().out == '{"a":1}\n'
    os.fstat(1)


def test_decision_ids_are_short_and_differ() -> None:
    ids = {new_decision_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"d-[0-9a-f]{8}", one) for one in ids)
