"""Credentials from a file, a variable and a command."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from keyfence.upstream.credentials.local import FromCommand, FromEnvironment, FromFile
from keyfence.upstream.credentials.model import MAX_DETAIL, Credentials, NoCredentials
from tests.downstream.test_client import in_loop
from tests.servers import PATIENCE_SECONDS


def command(code: str) -> FromCommand:
    """A command that runs this line of Python."""
    return FromCommand((sys.executable, "-c", code), username="keyfence")


async def fault(
    source: FromFile | FromEnvironment | FromCommand, seconds: float = PATIENCE_SECONDS
) -> NoCredentials:
    with pytest.raises(NoCredentials) as caught:
        await source.fetch(seconds)
    return caught.value


def test_a_file_is_read_again_and_shows_that_it_has_changed(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        path = tmp_path / "password"
        source = FromFile(str(path), username="keyfence")
        before = source.mark()
        path.write_text("first\n")
        assert source.mark() != before
        assert await source.fetch(PATIENCE_SECONDS) == Credentials("keyfence", "first")
        before = source.mark()
        (tmp_path / "next").write_text("other\n")
        (tmp_path / "next").replace(path)
        assert source.mark() != before
        assert await source.fetch(PATIENCE_SECONDS) == Credentials("keyfence", "other")

    run(pytest.MonkeyPatch())


def test_what_a_file_says_about_its_end_counts_from_when_it_was_written(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        path = tmp_path / "password"
        path.write_text('{"password": "s", "expires_in": 900}')
        written = time.time() - 600
        os.utime(path, (written, written))
        found = await FromFile(str(path)).fetch(PATIENCE_SECONDS)
        assert found.expires_at == pytest.approx(written + 900, abs=0.01)
        os.utime(path, (written - 600, written - 600))
        assert "gives credentials that have expired" in str(await fault(FromFile(str(path))))

    run(pytest.MonkeyPatch())


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        assert "nowhere cannot be read: No such file" in str(await fault(FromFile(str(tmp_path / "nowhere"))))
        assert "is not a regular file" in str(await fault(FromFile(str(tmp_path))))
        (tmp_path / "empty").touch()
        assert f"{tmp_path}/empty gives nothing" in str(await fault(FromFile(str(tmp_path / "empty"))))

    run(pytest.MonkeyPatch())


@in_loop
async def test_a_variable_holds_credentials(patch: pytest.MonkeyPatch) -> None:
    source = FromEnvironment("LOGIN", username="keyfence")
    assert "the variable LOGIN gives nothing" in str(await fault(source))
    patch.setenv("LOGIN", "secret")
    assert await source.fetch(1) == Credentials("keyfence", "secret")


@in_loop
async def test_a_command_prints_credentials() -> None:
    assert await command("print('secret')").fetch(PATIENCE_SECONDS) == Credentials("keyfence", "secret")
    before = time.time()
    printed = await command("""print('{"password": "s", "expires_in": 900}')""").fetch(PATIENCE_SECONDS)
    assert before + 900 <= (printed.expires_at or 0) <= time.time() + 900


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "gives nothing"),
        ("print('hidden'); print('hidden')", "gives several lines"),
        ("import sys; sys.exit(3)", "ended with status 3; run it by hand as keyfence's user"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal 9"),
        ("while True: print('hidden' * 1000)", "gives more than 65536 bytes"),
    ],
)
def test_a_command_that_prints_no_credentials_is_named(code: str, why: str) -> None:
    @in_loop
    async def run() -> None:
        found = await fault(command(code))
        assert why in str(found)
        assert "hidden" not in str(found)
        assert str(found).startswith(f"the command {sys.executable!r} ")

    run(pytest.MonkeyPatch())


def test_a_command_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        mark = tmp_path / "mark"
        child = f"import time; time.sleep(1); open({str(mark)!r}, 'w')"
        start = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
        code = f"import subprocess, sys, time; {start}; time.sleep(60)"
        assert "has not ended within 0.3 s, and was killed" in str(await fault(command(code), 0.3))
        with pytest.raises(TimeoutError):
            await wait_for(mark)

    async def wait_for(mark: Path) -> None:
        async with asyncio.timeout(1.5):
            while not mark.exists():
                await asyncio.sleep(0.05)

    run(pytest.MonkeyPatch())


def test_a_command_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        assert "cannot be run: No such file" in str(await fault(FromCommand((str(tmp_path / "none"),))))
        (tmp_path / "plain").touch()
        assert "cannot be run: Permission denied" in str(await fault(FromCommand((str(tmp_path / "plain"),))))

    run(pytest.MonkeyPatch())


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("print('no key found', file=sys.stderr)", "no key found"),
        ("print('first'); print('x\\nlast \\x1b[0m', file=sys.stderr)", "last ?[0m"),
        ("print('y' * 1000, file=sys.stderr)", "y" * MAX_DETAIL),
        ("print('hidden'); print('+ echo hidden', file=sys.stderr)", ""),
        ("print('abc'); print('abc', file=sys.stderr)", ""),
        ("""print('{"password": "hidden"}'); print('got hidden', file=sys.stderr)""", ""),
        ("", ""),
    ],
)
def test_the_error_of_a_command_is_shown_unless_it_holds_what_the_command_printed(
    code: str, detail: str
) -> None:
    @in_loop
    async def run() -> None:
        found = await fault(command(f"import sys\n{code}\nsys.exit(1)"))
        assert found.detail == detail

    run(pytest.MonkeyPatch())
