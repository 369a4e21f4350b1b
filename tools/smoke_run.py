"""Runs `make run` like a user at a terminal: waits until it is ready, sends requests, and presses Ctrl-C.

Usage: python3 -m tools.smoke_run [MAKE-ARGUMENT...], in the checkout. Needs Linux and the standard library.

Fails (exit 1) unless every listener answers PING, the admin listener's /readyz succeeds, and after Ctrl-C no
process and no temporary file remains.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from tests.ready import READY_PREFIX, Ready, parse_ready_line

PATIENCE_SECONDS = 30.0


def read_until_ready(process: subprocess.Popen[str]) -> Ready:
    assert process.stdout is not None
    for line in process.stdout:
        print(f"  | {line.rstrip()}", flush=True)
        if line.startswith(READY_PREFIX):
            return parse_ready_line(line)
    raise SystemExit(f"make run ended with {process.wait()} before it was ready")


def ping(service: str, address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(b"PING\r\n")
        reply = connection.recv(64)
    if reply != b"+PONG\r\n":
        raise SystemExit(f"{service} at {address} answers PING with {reply!r}")


def descendants(pid: int) -> dict[int, str]:
    """Returns the command line of each descendant of a process, by process id, in any session."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # the process has ended
        children.setdefault(parent, []).append(int(status.parent.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            waiting.append(child)
    return found


def wait_for_end(descriptor: int, command_line: str) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(PATIENCE_SECONDS * 1000):
        raise SystemExit(f"still running after Ctrl-C: {command_line}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="smoke-", dir="/tmp") as temporary:
        process = subprocess.Popen(
            ["make", *sys.argv[1:], "run"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"TMPDIR": temporary},
        )
        try:
            ready = read_until_ready(process)
            for service, address in ready.listeners.items():
                ping(service, address)
            with urllib.request.urlopen(f"{ready.admin}/readyz", timeout=PATIENCE_SECONDS) as response:
                assert response.status == 200
            started = {
                os.pidfd_open(pid): command_line for pid, command_line in descendants(process.pid).items()
            }
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        for line in output.splitlines():
            print(f"  | {line}")
        for descriptor, command_line in started.items():
            wait_for_end(descriptor, command_line)
            os.close(descriptor)
        if left := sorted(os.listdir(temporary)):
            raise SystemExit(f"left behind in the temporary directory: {left}")
        if "Traceback" in output:
            raise SystemExit("make run printed a traceback after Ctrl-C")
    # Some versions of make die of SIGINT themselves, others return their child's exit code.
    if process.returncode not in (0, -signal.SIGINT, 130):
        raise SystemExit(f"make run ended with {process.returncode} after Ctrl-C")
    print(f"make run: {len(ready.listeners)} listeners answered; all {len(started)} processes have ended")


if __name__ == "__main__":
    main()
