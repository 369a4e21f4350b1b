"""The keyfence of `keyfence exec` and `keyfence look`: `serve` in a process of its own, by default on free
loopback ports.

Rule: it ends with the process that started it, however that process ends, and it ends only after everything
that it saw is in the findings store. It is in a session of its own, so that Ctrl-C reaches the command first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keyfence.admin.client import AskError, ask
from keyfence.cli.terminal.output import fail
from keyfence.config.models import ListenerModel
from keyfence.config.settings import Settings
from keyfence.net.addresses import Address
from keyfence.process.looking import Looking
from keyfence.process.provision import Provision
from keyfence.process.run import serve
from keyfence.process.serving.jobs import run_loop
from keyfence.process.serving.packing import Packed, unpack
from keyfence.process.serving.reload import Origin
from keyfence.process.serving.runtime import StartError
from keyfence.process.serving.spawn import end_with_parent, start_python
from keyfence.process.systemd import READY, VARIABLE
from keyfence.upstream.embedded import EmbeddedRedisError

START_SECONDS = 60.0
STOP_SECONDS = 60.0
DRAIN_SECONDS = 1.0  # for clients that the command has left behind
_POLL_SECONDS = 0.05
ADMIN = re.compile(r"^keyfence: ready: .*; admin (http://[^;\s]+)", re.MULTILINE)


class CannotServe(Exception):
    """keyfence did not start; the message is one line for the user, or "" if it has printed one."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class Order(NamedTuple):
    """What the process gets on its standard input."""

    origin: Origin
    packed: Packed
    notify: str  # the socket that gets READY
    looking: Looking | None  # see `serve`


class Serving(NamedTuple):
    """A keyfence that serves."""

    process: subprocess.Popen[bytes]
    admin: str  # URL
    addresses: dict[str, str]  # service → HOST:PORT


def for_a_command(settings: Settings, services: Sequence[str], store: str, log: str) -> Settings:
    """The settings with a free loopback port for each service, and with nothing that other processes use."""
    return dataclasses.replace(
        settings,
        environment="",
        reload="manual",
        listeners=tuple(ListenerModel(listen="127.0.0.1:0", service=service) for service in services),
        admin=Address("127.0.0.1:0"),
        admin_token_file="",
        admin_tokens=(),
        admin_audit_log="",
        metrics=None,
        findings=store,
        findings_are_default=False,
        notify=None,
        news=None,
        decision_log=log,
        workers=0,
        announce=None,
        expose=None,
        split={},
        replicas=(),
        reads={},
        drain=min(settings.drain, DRAIN_SECONDS),
        record="",
    )


@contextlib.contextmanager
def serving(
    origin: Origin,
    packed: Packed,
    folder: Path,
    interrupted: Callable[[], bool],
    looking: Looking | None = None,
) -> Iterator[Serving]:
    """A keyfence with these settings; it has ended after the body. `interrupted` says whether to give up,
    `looking` is for `serve`. Raises CannotServe."""
    name = f"keyfence-exec-{secrets.token_hex(8)}"
    printed = folder / "keyfence.out"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, printed.open("wb") as out:
        told.bind(f"\0{name}")  # abstract: a path could be too long for a socket
        told.settimeout(_POLL_SECONDS)
        process = start_python(
            __name__, str(os.getpid()), stdin=subprocess.PIPE, stdout=out, own_session=True
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                assert process.stdin is not None
                with process.stdin:
                    process.stdin.write(pickle.dumps(Order(origin, packed, f"@{name}", looking)))
            _await_ready(process, told, interrupted)
            yield _addresses(process, printed.read_text(errors="replace"))
        finally:
            stop(process, interrupted)


def _await_ready(
    process: subprocess.Popen[bytes], told: socket.socket, interrupted: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None:
        with contextlib.suppress(TimeoutError):
            if told.recv(64) == READY.encode():
                return
        if interrupted():
            raise CannotServe("interrupted before the command began", 130)
        if time.monotonic() > deadline:
            raise CannotServe(f"keyfence did not start within {START_SECONDS:g} s")
    raise CannotServe("" if process.returncode == 2 else f"keyfence ended with {process.returncode}")


def _addresses(process: subprocess.Popen[bytes], printed: str) -> Serving:
    found = ADMIN.search(printed)
    if found is None:
        raise CannotServe("keyfence named no admin address")
    try:
        listeners: list[dict[str, Any]] = ask(found[1], "/status")["listeners"]
    except AskError as exc:
        raise CannotServe(str(exc)) from None
    return Serving(process, found[1], {one["service"]: one["address"] for one in listeners})


def stop(process: subprocess.Popen[bytes], interrupted: Callable[[], bool]) -> None:
    """End the process, and wait until all is written. Does nothing if it has ended."""
    process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    while process.poll() is None:
        if interrupted():
            process.terminate()  # the second one: at once
        if time.monotonic() > deadline:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_SECONDS)


def main() -> None:
    """The process: reads an Order, and serves."""
    # Until `serve` has its handlers, SIGTERM unwinds, so that an embedded Redis leaves nothing behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    end_with_parent(int(sys.argv[1]))
    order: Order = pickle.load(sys.stdin.buffer)
    settings, policy = order.packed.settings, unpack(order.packed)
    os.environ[VARIABLE] = order.notify
    try:
        run_loop(
            lambda: serve(Provision(order.origin), settings, policy, to_the_end=True, looking=order.looking)
        )
    except (StartError, EmbeddedRedisError) as exc:
        fail(str(exc))
