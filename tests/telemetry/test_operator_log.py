"""Lines for operators are few."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import pytest

from keyfence.telemetry import operator_log as notices
from keyfence.upstream.outages import Outages


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_kinds", {})


def test_a_kind_is_printed_once_a_minute_with_the_number_left_out(
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


def test_keyfence_never_waits_for_whoever_reads_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", 0) as reader, open(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(notices, "_stderr", notices._Output("stderr"))
        for number in range(9000):  # more than fit the pipe and the memory
            notices.warn(f"line {number}")
        os.set_blocking(reading, False)
        lines = _read(reader)
        while len(lines) < 7000 and (more := _read(reader)):
            lines += more
        notices.warn("the last one")
        *kept, told, last = [line.partition("Z ")[2] for line in lines + _read(reader)]
    assert kept == [f"line {number}" for number in range(len(kept))], "whole lines, in their order"
    assert told == f"{9000 - len(kept):,} lines before this one: nobody has read them"
    assert last == "the last one"


def test_keyfence_serves_on_if_it_was_started_without_the_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    notices.warn("x")
    notices.tell("x")
    notices.print_waiting()


def _read(reader: io.FileIO) -> list[str]:
    """What has come, and room for more."""
    text = b"".join(iter(lambda: reader.read(1 << 16) or b"", b"")).decode()
    notices.print_waiting()
    return text.splitlines()


def test_kinds_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(notices.MAX_KINDS + 5):
        notices.notice(str(number), "x")
    assert len(notices._kinds) == notices.MAX_KINDS
    assert capsys.readouterr().err.count("\n") == notices.MAX_KINDS + 5


def test_each_change_of_state_is_a_line_until_there_are_too_many(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    changes = notices.Changes()
    for number in range(notices.MAX_CHANGES + 5):
        changes.add(f"change {number}")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("Z ")[2] for line in lines] == [
        f"change {number}" for number in range(notices.MAX_CHANGES)
    ]
    changes.tick()
    assert capsys.readouterr().err == ""
    now += notices.INTERVAL_SECONDS
    changes.tick()
    changes.tick()
    last = f"Z change {notices.MAX_CHANGES + 4} (4 changes before it were left out)\n"
    assert capsys.readouterr().err.endswith(last)
    changes.add("calm")
    assert capsys.readouterr().err.endswith("Z calm\n")


def test_an_outage_reports_each_reason_once_and_its_duration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(notices.time, "monotonic", lambda: now)
    outages = Outages("redis://x")
    outages.seen(False, "not there yet")
    outages.seen(True, "")
    outages.begin()
    assert capsys.readouterr().err == ""
    for up, reason in [(False, "timed out"), (False, "refused"), (False, "timed out"), (True, "")]:
        outages.seen(up, reason)
        now += 5
    lines = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "upstream redis://x is unreachable: timed out",
        "upstream redis://x is unreachable: refused",
        "upstream redis://x is up again after 15 s",
    ]


def test_an_outage_at_the_start_is_reported_after_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outages = Outages("redis://x")
    outages.seen(False, "refused")
    assert capsys.readouterr().err == ""
    outages.begin()
    assert capsys.readouterr().err.endswith("Z upstream redis://x is unreachable: refused\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.44, "0.4 s"), (59.4, "59 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")]
)
def test_a_time_span_is_written_in_few_words(seconds: float, text: str) -> None:
    assert notices.elapsed(seconds) == text


@pytest.mark.parametrize(("say", "stream"), [(notices.warn, "stderr"), (notices.tell, "stdout")])
def test_a_closed_stream_is_ignored(
    say: Callable[[str], None], stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, stream, Gone())
    say("draining")
    monkeypatch.setattr(sys, stream, io.StringIO())
    getattr(sys, stream).close()
    say("draining")
