"""A load generator that sends at a fixed rate, whatever the target does. It sends SETs of 64 bytes.

Rule: the time of a request counts from the moment when it was due, not from when it was sent. So a target
that stalls is charged for every request that was due meanwhile, as by wrk2. It runs as a separate process,
which gets its task as a JSON argument and writes its result as JSON to standard output.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from typing import NamedTuple, cast

from keyfence.resp.encode import command

VALUE = b"x" * 64
KEYS = 100_000  # different ones, in turns
STALLED = 60.0  # seconds without a reply after which a run fails


class Task(NamedTuple):
    """What to send."""

    port: int
    rate: float  # requests per second
    seconds: float
    clients: int
    prefix: str  # of the keys
    pipeline: int = 1  # requests that are due together, on one connection


def start(task: Task) -> subprocess.Popen[str]:
    """Starts the generator. Its standard output has the result."""
    argv = [sys.executable, "-m", "benchmarks.paced", json.dumps(task)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


class _Client:
    """One connection, and the times for which its open requests were due."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.due: deque[float] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, data: bytes, due: float, replies: int) -> None:
        self.due.extend([due] * replies)
        if self.sock.send(data) < len(data):
            raise ConnectionError("the target does not read")

    def receive(self, took: list[float]) -> int:
        """Notes the times of the replies that have come, one line each. Returns the number of errors."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise ConnectionError("the connection was closed")
        now = time.perf_counter()
        took.extend(now - self.due.popleft() for _ in range(data.count(b"\n")))
        return data.startswith(b"-") + data.count(b"\n-")


def run(task: Task) -> dict[str, float]:
    """Sends everything, and waits for the replies."""
    batches = [
        b"".join(command("SET", f"{task.prefix}{at + number:012}", VALUE) for number in range(task.pipeline))
        for at in range(0, KEYS, task.pipeline)
    ]
    clients = [_Client(task.port) for _ in range(task.clients)]
    interval, total = task.pipeline / task.rate, int(task.rate * task.seconds / task.pipeline)
    took: list[float] = []
    errors = sent = 0
    gc.disable()
    begun = last = time.perf_counter()
    while len(took) < total * task.pipeline:
        now = time.perf_counter()
        while sent < total and (due := begun + sent * interval) <= now:
            clients[sent % task.clients].send(batches[sent % len(batches)], due, task.pipeline)
            sent += 1
        wait = begun + sent * interval - time.perf_counter() if sent < total else 1.0
        # `select` waits for microseconds; epoll would round up to a millisecond.
        for client in select.select(clients, [], [], max(wait, 0.0))[0]:
            errors += client.receive(took)
            last = now
        if now - last > STALLED:
            raise TimeoutError(f"no reply for {STALLED:.0f} s")
    took.sort()
    shares = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    result = {name: took[min(int(len(took) * share), len(took) - 1)] * 1e3 for name, share in shares}
    rate = len(took) / (time.perf_counter() - begun)
    return {"rate": rate, "requests": len(took), "errors": errors, **result}


def paced(task: Task) -> dict[str, float] | str:
    """The result of the generator as a process of its own; a text with the reason if there is none."""
    child = start(task)
    out, _ = child.communicate(timeout=task.seconds + STALLED)
    return (
        f"the generator ended with {child.returncode}"
        if child.returncode
        else cast("dict[str, float]", json.loads(out))
    )


def main() -> None:
    try:
        json.dump(run(Task(*json.loads(sys.argv[1]))), sys.stdout)
    except (OSError, TimeoutError) as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")


if __name__ == "__main__":
    main()
