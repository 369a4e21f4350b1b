"""The fetched servers of the searches, beyond the installed ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.servers import PROJECT, all_server_binaries, running_redis, server_binaries

TOOL = PROJECT / "tools" / "more_servers.sh"


def run_with(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Runs the tool on a machine where only the programs in `path` are installed."""
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, TOOL],
        env=os.environ | {"PATH": str(path), "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_suite_is_skipped_with_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [TOOL],
        env=os.environ | {"KEYFENCE_DEBIAN_MIRROR": "http://127.0.0.1:1", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "not installed" in done.stdout or "it needs" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 77
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["more servers", "more servers"]
    assert ["trixie" in lines[0], "sid" in lines[1]] == [True, True]
    assert not any((tmp_path / "keyfence" / "servers").iterdir())


def test_a_machine_without_apt_is_skipped_with_one_line(tmp_path: Path) -> None:
    uname = shutil.which("uname")
    assert uname is not None
    (tmp_path / "uname").symlink_to(uname)
    done = run_with(tmp_path, tmp_path / "cache")
    assert done.returncode == 77
    assert done.stdout.startswith("more servers: skipped, ")
    assert done.stdout.count("\n") == 1
    assert not done.stderr
    assert not (tmp_path / "cache").exists()


def test_cached_servers_that_do_not_run_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for suite in ("trixie", "sid"):
        folder = tmp_path / "keyfence" / "servers" / suite / "bin"
        folder.mkdir(parents=True)
        (folder / "valkey-server").write_text("#!/bin/sh\nexit 1\n")
        (folder / "valkey-server").chmod(0o755)
    all_server_binaries.cache_clear()
    try:
        assert all_server_binaries() == server_binaries()
    finally:
        all_server_binaries.cache_clear()


def test_each_server_reports_its_version() -> None:
    for binary in all_server_binaries():
        with running_redis(binary) as server, server.client() as client:
            info = client.info("server")
            assert info[f"{binary.name}_version"] == binary.version
