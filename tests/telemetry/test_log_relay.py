from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from keyfence.policy.verdict import Peer
from keyfence.telemetry.counters import Counters
from keyfence.telemetry.decision_log import DecisionLog
from keyfence.telemetry.log_file import LogFile
from keyfence.telemetry.log_relay import LogPipe, LogRelay
from keyfence.telemetry.sink import Group, Occurrence
from tests.telemetry.violations import violation

GROUP = Group("A", "scope.read", "GET", "", "", "observed", "GET")


def relay_to(path: Path) -> tuple[LogRelay, Counters]:
    counters = Counters()
    relay = LogRelay(counters, None)
    relay.write_to(str(path))
    return relay, counters


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def line(number: int, dropped: int = 0) -> bytes:
    return json.dumps({"decision": f"d-{number}", "merged": 1, "dropped": dropped}).encode() + b"\n"


def test_lines_that_a_worker_writes_into_its_pipe_reach_the_file(tmp_path: Path) -> None:
    async def play() -> None:
        relay, counters = relay_to(tmp_path / "log")
        reading, writing = os.pipe()
        pipe = LogPipe(relay)
        await asyncio.get_running_loop().connect_read_pipe(lambda: pipe, os.fdopen(reading, "rb", 0))
        log = DecisionLog(LogFile(writing, Counters()), Counters())
        os.close(writing)  # the log file has a descriptor of its own
        for at in range(3):
            log.record(GROUP, Occurrence(violation(), Peer("c"), "r", 1, 0.0, float(at)))
        log.close()
        await pipe.ended.wait()
        assert counters.log_lines == 3
        relay.close()

    asyncio.run(play())
    assert [one["time"] for one in lines(tmp_path / "log")] == [
        f"1970-01-01T00:00:0{second}.000000Z" for second in range(3)
    ]


def test_pieces_are_put_together_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    relay, _ = relay_to(tmp_path / "log")
    pipe = LogPipe(relay)
    whole = line(1) + line(2)
    for at in range(len(whole)):
        pipe.data_received(whole[at : at + 1])
    pipe.data_received(b'{"decision": "d-3", "mer\n' + line(4))
    relay.close()
    assert [one["decision"] for one in lines(tmp_path / "log")] == ["d-1", "d-2", "d-4"]


def test_the_next_line_reports_decisions_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    relay, counters = relay_to(tmp_path / "log")
    with monkeypatch.context() as broken:

        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        broken.setattr(os, "write", fail)
        relay.take(line(1, dropped=3))
    relay.take(line(2))
    relay.close()
    (one,) = lines(tmp_path / "log")
    assert one == {"decision": "d-2", "merged": 1, "dropped": 5}
    assert (counters.log_dropped, counters.log_write_failures) == (2, 1)
    assert "No space left on device" in capsys.readouterr().err


def test_a_file_that_can_not_be_opened_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    relay, _ = relay_to(tmp_path / "log")
    with pytest.raises(OSError):
        relay.write_to(str(tmp_path / "none" / "log"))
    relay.take(line(1))
    relay.write_to("")
    relay.take(line(2))
    assert [one["decision"] for one in lines(tmp_path / "log")] == ["d-1"]
