"""A load generator for loads that redis-benchmark cannot send: mixed traffic, refusals, transactions and
messages.

Rule: requests are encoded before the clock starts, and replies are only counted and timed, so that the
generator costs little compared with its targets. It runs as a separate process, which reads its task as JSON
from standard input and writes its result as JSON to standard output.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

from benchmarks import traffic
from keyfence.process.serving.jobs import run_loop
from keyfence.resp.encode import command
from keyfence.resp.replies import ReplyFramer

KEY = "cube:v1:master:instance:meta:"  # CubeMaster may write it, CubeProxy may not
FOREIGN = "cube:v1:proxy:bench:"
VALUE = b"x" * 64
BATCHES = 200  # for each connection, which repeats them
STALLED = 60.0  # seconds without a reply after which a run fails


class Batch(NamedTuple):
    """The bytes of one write, and the number of their replies."""

    data: bytes
    replies: int


def _joined(requests: Sequence[bytes], pipeline: int) -> list[Batch]:
    pieces = [requests[at : at + pipeline] for at in range(0, len(requests), pipeline)]
    return [Batch(b"".join(piece), len(piece)) for piece in pieces]


def _sets(choose: random.Random, count: int, foreign: float = 0.0) -> list[bytes]:
    keys = (
        f"{FOREIGN if choose.random() < foreign else KEY}{choose.randrange(1_000_000):012}"
        for _ in range(count)
    )
    return [command("SET", key, VALUE) for key in keys]


def batches(load: str, connection: int, pipeline: int, share: float) -> list[Batch]:
    """Returns the batches of one connection. `share`: the share of refused commands in the load "refused"."""
    choose = random.Random(connection)
    if load == "replay":
        return _joined(
            traffic.requests(traffic.kind_of(connection), connection, BATCHES * pipeline), pipeline
        )
    if load == "refused":
        return _joined(_sets(choose, BATCHES * pipeline, share), pipeline)
    if load == "violating":
        return _joined(traffic.violating_sets(choose, BATCHES * pipeline, VALUE), pipeline)
    if load == "multi":  # the form of a pipeline of redis-py
        return [
            Batch(b"".join([command("MULTI"), *_sets(choose, pipeline), command("EXEC")]), pipeline + 2)
            for _ in range(BATCHES)
        ]
    raise ValueError(f"unknown load: {load}")


class Connection(asyncio.Protocol):
    """Sends a batch, waits for its replies, then sends the next batch."""

    def __init__(self, run: Run, to_send: list[Batch]) -> None:
        self._run = run
        self._to_send = to_send
        self._at = 0
        self._awaited = 0
        self._begun = 0
        self._framer = ReplyFramer()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def begin(self) -> None:
        batch = self._to_send[self._at]
        self._at = (self._at + 1) % len(self._to_send)
        self._awaited = batch.replies
        self._begun = time.perf_counter_ns()
        assert self._transport is not None
        self._transport.write(batch.data)

    def data_received(self, data: bytes) -> None:
        self._framer.advance(data, 0, self._awaited)
        self._awaited -= self._framer.completed
        self._run.errors += data.startswith(b"-") + data.count(b"\n-")
        if not self._awaited:
            self._run.took.append(time.perf_counter_ns() - self._begun)
            self._run.left -= self._to_send[self._at - 1].replies
            if self._run.left > 0:
                self.begin()
            else:
                self._run.end()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._run.fail("the connection was closed")


class Run:
    """The state and results that all connections of a run share."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.took: list[int] = []  # nanoseconds for each batch
        self.errors = 0
        self._done = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(reason))

    async def wait(self) -> None:
        while not self._done.done():
            before = len(self.took)
            await asyncio.wait([self._done], timeout=STALLED)
            if len(self.took) == before and not self._done.done():
                raise TimeoutError(f"no reply for {STALLED:.0f} s")
        self._done.result()


async def exchange(spec: dict[str, object]) -> dict[str, object]:
    """Sends requests and waits for their replies, on `clients` connections."""
    loop = asyncio.get_running_loop()
    ports = cast("dict[str, int]", spec["ports"])
    load, pipeline = str(spec["load"]), cast(int, spec["pipeline"])
    run = Run(cast(int, spec["requests"]))
    connections = []
    for number in range(cast(int, spec["clients"])):
        service = traffic.kind_of(number).service if load == "replay" else "CubeMaster"
        to_send = batches(load, number, pipeline, cast(float, spec["share"]))
        one = Connection(run, to_send)
        await loop.create_connection(lambda one=one: one, "127.0.0.1", ports.get(service, ports[""]))
        connections.append(one)
    begun = time.perf_counter()
    for connection in connections:
        connection.begin()
    await run.wait()
    return _result(run, cast(int, spec["requests"]) - run.left, time.perf_counter() - begun)


def _result(run: Run, requests: int, seconds: float) -> dict[str, object]:
    took = sorted(run.took)
    result: dict[str, object] = {"rate": requests / seconds, "requests": requests, "errors": run.errors}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        result[name] = took[min(int(len(took) * share), len(took) - 1)] / 1e6
    return result


class Subscriber(asyncio.Protocol):
    """Counts messages. The text of a message is the time when it was sent."""

    def __init__(self, run: Run, confirmed: asyncio.Semaphore) -> None:
        self._run = run
        self._confirmed = confirmed
        self._framer = ReplyFramer()
        self._is_first = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(command("SUBSCRIBE", "bench:events"))

    def data_received(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            at = self._framer.advance(data, at, 1)
            if not self._framer.completed:
                return
            if self._is_first:
                self._is_first = False
                if data.startswith(b"-"):
                    self._run.fail(data.decode(errors="replace").strip())
                self._confirmed.release()
                continue
            self._run.left -= 1
            stamp = data[at - 21 : at - 2]
            if stamp.isdigit():
                self._run.took.append(time.perf_counter_ns() - int(stamp))
        if self._run.left <= 0:
            self._run.end()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._run.fail("the connection was closed")


async def fan_out(spec: dict[str, object]) -> dict[str, object]:
    """Sends from one publisher to many subscribers, and counts the messages that arrive."""
    loop = asyncio.get_running_loop()
    port = cast("dict[str, int]", spec["ports"])[""]
    clients, requests = cast(int, spec["clients"]), cast(int, spec["requests"])
    run, confirmed = Run(requests // clients * clients), asyncio.Semaphore(0)
    for _ in range(clients):
        await loop.create_connection(lambda: Subscriber(run, confirmed), "127.0.0.1", port)
    for _ in range(clients):
        await asyncio.wait_for(confirmed.acquire(), STALLED)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.perf_counter()
    for _ in range(requests // clients):
        writer.write(command("PUBLISH", "bench:events", f"{time.perf_counter_ns():019}"))
        await reader.readline()
    await run.wait()
    result = _result(run, requests // clients * clients, time.perf_counter() - begun)
    writer.close()
    return result


def main() -> None:
    spec = json.load(sys.stdin)
    results: list[dict[str, object]] = []

    async def go() -> None:
        results.append(await (fan_out if spec["load"] == "fan-out" else exchange)(spec))

    try:
        run_loop(go)
    except (OSError, TimeoutError) as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
    json.dump(results[0], sys.stdout)


if __name__ == "__main__":
    main()
