"""The command log is sampled and bounded, and disturbs no command."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from keyfence.commands.extract import extract
from keyfence.policy.loading.load import parse_policy
from keyfence.process.serving import command_recorder
from keyfence.process.serving.command_recorder import Recorder
from keyfence.telemetry import operator_log
from tests.cli.test_main import keyfence
from tests.clients.running import POLICY as CUBE
from tests.clients.running import configure, eventually
from tests.servers import Keyfence, RedisServer
from tests.session.sessions import RecordingObserver, session

POLICY = parse_policy("""policy: p
services: [one]
placeholders: {id: "[a-z]{1,9}"}
keys: {k: {key: "a:<id>", writers: one}, l: {key: "b:<id>", writers: one}}
""")


def send(recorder: Recorder, command: str, times: int = 1, service: str = "one") -> None:
    argv = command.encode().split()
    for _ in range(times):
        recorder(POLICY, service, argv, extract(argv))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_first_commands_of_a_group_are_written_and_then_fewer_and_fewer(tmp_path: Path) -> None:
    file = tmp_path / "log"
    recorder = Recorder(str(file), wall=lambda: 0.0)
    for number in range(100):
        send(recorder, f"GET a:{'x' * (number % 9 + 1)}")
    recorder.close()
    counts = [line["count"] for line in lines(file)]
    assert counts == [1, 1, 1, 3, 6, 12, 24, 48, 4]
    assert sum(counts) == 100
    assert lines(file)[-1]["argv"] == lines(file)[-2]["argv"]
    assert lines(file)[0]["time"] == "1970-01-01T00:00:00.000000Z"


def test_different_commands_are_recorded_apart(tmp_path: Path) -> None:
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    for command in ("GET a:x", "GET b:x", "DEL a:x", "GET other"):
        send(recorder, command, 5)
    send(recorder, "GET a:x", 5, service="unknown")
    recorder.close()
    assert len(lines(file)) == 5 * (3 + 1)


def test_a_write_without_a_time_to_live_is_recorded_among_many_with_one(tmp_path: Path) -> None:
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    send(recorder, "SET a:x 1 EX 60", 40)
    send(recorder, "SET a:x 1", 2)
    recorder.close()
    assert [line["argv"] for line in lines(file)].count(["SET", "a:x", "?"]) == 2


def test_keys_that_no_entry_covers_are_recorded_by_their_kinds(tmp_path: Path) -> None:
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    for number in range(100, 200):
        send(recorder, f"GET user:{number}:cart")
        send(recorder, f"GET user:{number}:seen")
    recorder.close()
    keys = [line["accesses"][0]["key"] for line in lines(file)]  # type: ignore[index]
    assert sum(key.endswith(":cart") for key in keys) == sum(key.endswith(":seen") for key in keys) == 9


def test_keys_with_addresses_tokens_and_letters_of_all_scripts_are_of_their_kinds(tmp_path: Path) -> None:
    kinds = {
        "mail:user{0}@example.com:seen": "mail:<email>:seen",
        "invite:user{0}@example.com": "invite:<email>",
        "bounce::{0}": "bounce::<int>",
        "ключ:{0}": "ключ:<int>",
        "page..GET.d41d8cd98f00b204e9800998ecf84{0}": "page..GET.<hex>",
        "sess:7jPSNmkKySjHC_see08J{0}": "sess:<id>",
    }
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    for form, kind in kinds.items():
        for number in range(100, 200):
            assert command_recorder.kind_of(form.format(number).encode()) == kind
            send(recorder, f"GET {form.format(number)}")
    recorder.close()
    assert len(lines(file)) == 9 * len(kinds)  # 1, 2, 3, 6, 12, 24, 48, 96, and the last one


def test_words_beside_an_id_belong_to_the_kind_unless_they_may_be_a_part_of_the_id() -> None:
    kinds = {
        "user-V1StGXR8Z5jdHi6B": "user-<id>",
        "UserProfile-V1StGXR8Z5jdHi6B": "UserProfile-<id>",
        "a:DwU-MX5DYxl3iFX-rAmcmw:b": "a:<id>:b",
    }
    assert {key: command_recorder.kind_of(key.encode()) for key in kinds} == kinds


def test_many_tokens_leave_room_for_other_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_recorder, "MAX_KINDS", 4)
    monkeypatch.setattr(command_recorder, "MAX_BEGINNINGS", 2)
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    for first in "abcdefgh":
        send(recorder, f"GET s:t:{first}")
    for kind in ("cart:a:data", "seen:b", "cart:a:other", "more:c"):
        send(recorder, f"GET {kind}", 2)
    recorder.close()
    recorded = [" ".join(map(str, line["argv"])) for line in lines(file)]  # type: ignore[call-overload]
    assert recorded.count("GET cart:a:data") == 2
    assert {"GET seen:b", "GET more:c"} <= {*recorded}


def test_many_names_of_keys_leave_room_for_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_recorder, "MAX_KINDS", 3)
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    for name in ("ann", "bob", "carol", "dora", "emil", "fritz", "gerda", "hanna"):
        send(recorder, f"GET user:{name}")
    recorder.close()
    assert len(lines(file)) == 3 + 4  # the last five are one group


def test_the_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "log"
    recorder = Recorder(str(file), max_bytes=2_000)
    for name in ("GET", "DEL", "EXISTS", "TTL", "TYPE", "INCR", "DECR", "STRLEN"):
        send(recorder, f"{name} a:x", 100)
    recorder.close()
    assert file.stat().st_size <= 2_000
    assert (tmp_path / "log.1").stat().st_size <= 2_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert lines(file)


def test_two_processes_may_write_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    one, other = Recorder(str(file), max_bytes=2_000), Recorder(str(file), max_bytes=2_000)
    for name in ("GET", "DEL", "EXISTS", "TTL", "TYPE", "INCR"):
        send(one, f"{name} a:x", 9)
        send(other, f"{name} b:x", 9)
    assert one.lost == other.lost == 0
    assert file.stat().st_size <= 2_000
    one.close()
    other.close()


def test_the_kinds_of_commands_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_recorder, "MAX_GROUPS", 2)
    recorder = Recorder(str(tmp_path / "log"))
    for command in ("GET a:x", "DEL a:x", "TTL a:x", "TYPE a:x"):
        send(recorder, command)
    assert recorder.lost == 2
    recorder.close()


def test_the_end_of_the_log_knows_of_as_many_commands_as_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_recorder, "MAX_KEPT", 300)
    recorder = Recorder(str(tmp_path / "log"))
    commands = ("GET a:x", "DEL a:x", "TTL a:x", "TYPE a:x")
    for command in commands:
        send(recorder, command, 8)
    recorder.close()
    counted: dict[object, int] = dict.fromkeys((one.split()[0] for one in commands), 0)
    for line in lines(tmp_path / "log"):
        counted[line["command"]] += int(str(line["count"]))
    assert counted == {"GET": 8, "DEL": 6, "TTL": 6, "TYPE": 6}  # there is room for one line


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        Recorder(str(tmp_path))


def test_faults_while_writing_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(str(tmp_path / "log"))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    send(recorder, "GET a:x")
    monkeypatch.undo()
    assert recorder.lost == 1
    recorder.close()


def test_after_a_full_disk_the_log_has_every_command_in_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operator_log, "_kinds", {})
    file = tmp_path / "log"
    recorder = Recorder(str(file))
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:20]))
    send(recorder, "GET a:x", 4)
    monkeypatch.undo()
    said = capsys.readouterr().err
    assert f"the command log {file} cannot be written: No space left on device; kinds of" in said
    send(recorder, "GET a:x", 5)
    send(recorder, "DEL a:x", 1)
    recorder.close()
    whole = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    counts = [(line["command"], line["count"]) for line in whole]
    assert sum(count for command, count in counts if command == "GET") == 9
    assert ("DEL", 1) in counts


def test_a_pipe_that_is_not_read_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operator_log, "_kinds", {})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        Recorder(str(pipe))
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    recorder = Recorder(str(pipe))
    for number in range(1000):
        send(recorder, "GET a:x", service=f"service{number}")
    assert f"the command log {pipe} cannot be written: " in capsys.readouterr().err
    recorder.close()
    os.close(reading)


def test_a_session_reports_its_commands() -> None:
    observer = RecordingObserver()
    seen: list[tuple[str, list[bytes]]] = []
    observer.recorder = lambda _policy, service, argv, _touches: seen.append((service, list(argv)))
    one = session("CubeMaster", observer=observer)
    one.from_client(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
    assert seen == [("CubeMaster", [b"GET", b"k"])]


@pytest.mark.parametrize("workers", ["", "2"])
def test_a_running_keyfence_records_and_the_log_can_be_replayed(
    redis_server: RedisServer, workers: str, tmp_path: Path
) -> None:
    log = tmp_path / "commands.log"
    arguments = ["--config", str(configure(tmp_path, redis_server.url, mode="observe")), "--record", str(log)]
    with Keyfence(*arguments, *(["--workers", workers] if workers else [])) as running:
        client = running.client("CubeMaster")
        client.set("cube:v1:master:lock:a:b", "a-value", ex=30)
        client.close()
        eventually(lambda: any(line["command"] == "SET" for line in lines(log)), "the line is written")
    text = log.read_text()
    assert "a-value" not in text
    code, out, _ = keyfence("diff", CUBE, CUBE, "--replay", log)
    assert (code, "commands replayed" in out) == (0, True)


def test_a_log_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    code, _, err = keyfence(
        "run", "--policy", CUBE, "--upstream", "redis://127.0.0.1:1", "--listen", "127.0.0.1:0",
        "--service", "CubeMaster", "--admin", "none", "--record", tmp_path,
    )  # fmt: skip
    assert code == 2
    assert f"the command log {tmp_path} cannot be written: Is a directory" in err


def test_a_file_that_cannot_be_opened_anew_stays_the_one_that_is_open(tmp_path: Path) -> None:
    """Its number would become that of somebody's socket, which the next command would close."""
    folder = tmp_path / "log"
    folder.mkdir()
    recorder = Recorder(str(folder / "commands.log"))
    send(recorder, "GET a:x")
    folder.rename(tmp_path / "away")
    send(recorder, "SET a:x 1")
    first, second = socket.socketpair()
    with first, second:
        send(recorder, "DEL a:x")
        first.send(b"x")
        assert second.recv(1) == b"x"
    recorder.close()
