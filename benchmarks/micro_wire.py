"""Times the wire room alone: what reading a request and framing a reply cost, compiled or interpreted.

Run it twice to compare: `python benchmarks/micro_wire.py`, and the same with KEYFENCE_PURE=1. Each figure
is the median of several rounds, in microseconds of this machine; no socket is involved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from proxy import _compiled
from proxy.wire.encode import command
from proxy.wire.limits import IDENTIFIED
from proxy.wire.replies import ReplyFramer
from proxy.wire.requests import RequestReader

ROUNDS = 9
PER_ROUND = 0.05  # seconds
SET = command("SET", "cube:v1:shared:sandbox:proxy:7c8f3a", b"x" * 64)


def read_all(reader: RequestReader, chunk: bytes) -> None:
    reader.feed(chunk)
    while reader.next() is not None:
        pass


def read_in_pieces(reader: RequestReader, chunk: bytes, size: int) -> None:
    for at in range(0, len(chunk), size):
        read_all(reader, chunk[at : at + size])


def measure(run: Callable[[], object], units: int) -> tuple[float, float]:
    """Median and least microseconds for each of the `units` that one call of `run` handles."""
    calls, spent = 1, 0.0
    while spent < PER_ROUND:
        calls *= 2
        started = time.perf_counter()
        for _ in range(calls):
            run()
        spent = time.perf_counter() - started
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            run()
        rounds.append(time.perf_counter() - started)
    each = 1e6 / calls / units
    return statistics.median(rounds) * each, min(rounds) * each


def main() -> None:
    reader = RequestReader(IDENTIFIED)
    framer = ReplyFramer()
    pipeline = SET * 16
    big = command("SET", "k", b"x" * 1_000_000)
    mget = command("MGET", *(f"key:{n}" for n in range(100)))
    oks = b"+OK\r\n" * 16
    bulks = (b"$64\r\n" + b"x" * 64 + b"\r\n") * 16
    arrays = (b"*10\r\n" + b"$8\r\n12345678\r\n" * 10) * 16
    table: list[tuple[str, Callable[[], object], int]] = [
        ("SET of 64 bytes, alone", lambda: read_all(reader, SET), 1),
        ("SET of 64 bytes, 16 in a pipeline", lambda: read_all(reader, pipeline), 16),
        ("the same in pieces of 100 bytes", lambda: read_in_pieces(reader, pipeline, 100), 16),
        ("inline PING", lambda: read_all(reader, b"PING\r\n"), 1),
        ("MGET of 100 keys", lambda: read_all(reader, mget), 1),
        ("SET of 1 MB in pieces of 64 KiB", lambda: read_in_pieces(reader, big, 65536), 1),
        ("reply +OK, 16 at once", lambda: framer.advance(oks, 0, 16), 16),
        ("reply of 64 bytes, 16 at once", lambda: framer.advance(bulks, 0, 16), 16),
        ("reply of 10 bulk strings, 16 at once", lambda: framer.advance(arrays, 0, 16), 16),
    ]
    print(f"{'wire, ' + _compiled.describe():50}{'µs, median':>12}{'least':>10}")
    for name, run, units in table:
        median, least = measure(run, units)
        print(f"{name:50}{median:12.3f}{least:10.3f}")


if __name__ == "__main__":
    main()
