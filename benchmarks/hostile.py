"""Measures what one hostile client does to another: `python -m benchmarks.hostile`.

Rule: each row sends the same bytes to Redis itself and to a new keyfence in its default configuration, while
a second client, of another service, sends PING every millisecond. A row has the longest wait of that client,
what the peak of keyfence's memory adds, and keyfence's CPU time. Only the difference to Redis' wait is
keyfence's own. The waits are those of the clock: measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import machine, nanoseconds, tree
from keyfence.resp.encode import command
from tests.servers import Keyfence, running_redis

POLICY = Path(__file__).with_suffix(".yaml")
SIZE = 16_000_000  # bytes of each attack
BETWEEN_PINGS = 0.001  # seconds
QUIET = 0.5  # seconds without a reply and without CPU time, after which an attack is over
LONGEST = 20.0  # seconds after which an attack is given up, and its row says so
# What is wanted of each row: how much longer than before Redis the other client may wait, and by how much
# memory may grow.
MOST_SECONDS = 0.1
MOST_MIB = 100.0

KEY = "bench:bad:"
MOST_ARGUMENTS = 1_000_000  # of a command that keyfence and Redis take


class Attack(NamedTuple):
    """What the hostile client sends."""

    data: bytes
    is_recorded: bool = False  # keyfence records commands


SCRIPT = "return redis.call('GET', KEYS[1])"


def many(*parts: str, size: int = SIZE) -> bytes:
    """One command, again and again."""
    one = command(*parts)
    return one * (size // len(one))


def each(name: str, key: str, *rest: str) -> bytes:
    """One command, each time with another key."""
    one = len(command(name, f"{key}{0:08}", *rest))
    return b"".join(command(name, f"{key}{number:08}", *rest) for number in range(SIZE // one))


def keys(
    name: str,
    key: str,
    *,
    filler: str = "",
    size: int = SIZE,
    first: Sequence[str] = (),
    counted: bool = False,
) -> bytes:
    """One command with very many keys. `counted`: their number precedes them."""
    number = size // len(f"$16\r\n{key}{0:08}{filler}\r\n")
    named = (f"{key}{at:08}{filler}" for at in range(min(number, MOST_ARGUMENTS)))
    return command(name, *first, *([str(number)] if counted else []), *named)


def pairs(name: str, key: str, first: Sequence[str] = ()) -> bytes:
    """One command with very many keys or fields, each with a value."""
    number = SIZE // len(f"$16\r\n{key}{0:08}\r\n$1\r\nv\r\n")
    return command(
        name,
        *first,
        *(part for at in range(min(number, MOST_ARGUMENTS // 2)) for part in (f"{key}{at:08}", "v")),
    )


ATTACKS: Mapping[str, Callable[[], Attack]] = {
    # many parts in one command
    "MGET, 3 of 200,000 unregistered keys": lambda: Attack(
        keys("MGET", "other:", filler="x" * 10, size=5_000_000) * 3
    ),
    "MGET, unregistered keys": lambda: Attack(keys("MGET", "other:thing:with:a:long:name:")),
    "MGET, own keys": lambda: Attack(keys("MGET", f"{KEY}item:")),
    "MGET, own keys, recorded": lambda: Attack(keys("MGET", f"{KEY}item:"), is_recorded=True),
    "DEL, own keys": lambda: Attack(keys("DEL", f"{KEY}item:")),
    "DEL, deprecated keys": lambda: Attack(keys("DEL", "old:")),
    "DEL, keys of one byte": lambda: Attack(command("DEL", *["k"] * 1_000_000) * 2),
    "MSET, another's keys": lambda: Attack(pairs("MSET", "bench:good:")),
    "MSET without a time to live": lambda: Attack(pairs("MSET", f"{KEY}session:")),
    "EVAL, many keys": lambda: Attack(keys("EVAL", f"{KEY}item:", first=(SCRIPT,), counted=True)),
    "BLPOP, many keys": lambda: Attack(keys("BLPOP", f"{KEY}list:")),
    "PFCOUNT, keys of 400 kB": lambda: Attack(command("PFCOUNT", *["n" * 399_990] * 5) * 8),
    "SORT, many options": lambda: Attack(command("SORT", f"{KEY}list:1", *["GET", "#"] * 500_000) * 2),
    "HSET, wrong fields": lambda: Attack(
        command("HSET", f"{KEY}route:1", *(f"f{one}" for one in range(800_000)))
    ),
    "HSET, fields of a wrong form": lambda: Attack(pairs("HSET", "", first=(f"{KEY}route:1",))),
    "SADD, many members": lambda: Attack(keys("SADD", "member:", first=(f"{KEY}members:1",))),
    "ZADD, many members": lambda: Attack(
        command("ZADD", f"{KEY}board:1", *(part for one in range(400_000) for part in (str(one), f"m{one}")))
    ),
    "XADD, many fields": lambda: Attack(command("XADD", f"{KEY}events", "*", *["op", "what"] * 400_000)),
    "SUBSCRIBE, many channels": lambda: Attack(keys("SUBSCRIBE", "bench:events:")),
    # many commands
    "PSUBSCRIBE, hard patterns": lambda: Attack(many("PSUBSCRIBE", "*a*b*c*d*e*f*[^x]*?g*")),
    "KEYS, hard patterns": lambda: Attack(many("KEYS", "*b*e*n*c*h*:*b*a*d*?[^:]*")),
    "SCAN MATCH": lambda: Attack(many("SCAN", "0", "MATCH", f"{KEY}item:*a*b*c*")),
    "PING": lambda: Attack(many("PING")),
    "GET, own keys": lambda: Attack(each("GET", f"{KEY}item:")),
    "SET, 64 bytes": lambda: Attack(each("SET", f"{KEY}item:", "v" * 64)),
    "unknown commands": lambda: Attack(many("FROBNICATE")),
    "unknown commands, each another": lambda: Attack(b"".join(command(f"F{one}") for one in range(900_000))),
    "EVAL, unregistered": lambda: Attack(many("EVAL", "return 1", "0")),
    "EVAL, each another script": lambda: Attack(
        b"".join(command("EVAL", f"return {one}", "0") for one in range(380_000))
    ),
    "HSET, a wrong field": lambda: Attack(each("HSET", f"{KEY}route:", "nonsense:field", "1")),
    "HSET, each another wrong field": lambda: Attack(
        b"".join(command("HSET", f"{KEY}route:1", f"no:{one}", "1") for one in range(220_000))
    ),
    "SET, a wrong form": lambda: Attack(each("SET", f"{KEY}name:", "no number")),
    "SET without a time to live": lambda: Attack(each("SET", f"{KEY}session:", "v")),
    "HSET, EXPIRE to follow": lambda: Attack(each("HSET", f"{KEY}lease:", "f", "v")),
    "GET, unregistered keys": lambda: Attack(each("GET", "other:")),
    "GET, keys of many shapes": lambda: Attack(
        b"".join(
            command("GET", f"{one:x}:{':'.join('abcdefgh'[: one % 8])}:{one}x") for one in range(330_000)
        )
    ),
    "inline PING": lambda: Attack(b"PING\r\n" * (SIZE // 6)),
    "inline SET": lambda: Attack(b'SET bench:bad:item:1 "a b c"\r\n' * (SIZE // 30)),
    "inline, unknown": lambda: Attack(b"frobnicate x\r\n" * (SIZE // 14)),
    "blank lines": lambda: Attack(b"\r\n" * (SIZE // 2)),
    "MULTI DISCARD": lambda: Attack((command("MULTI") + command("DISCARD")) * (SIZE // 33)),
    "MULTI EXEC": lambda: Attack((command("MULTI") + command("EXEC")) * (SIZE // 30)),
    "MULTI MULTI": lambda: Attack(many("MULTI")),
    "MULTI, SETs, EXEC": lambda: Attack(
        (command("MULTI") + many("SET", f"{KEY}item:1", "v", size=40_000) + command("EXEC")) * 400
    ),
    "WATCH, UNWATCH": lambda: Attack((command("WATCH", f"{KEY}item:1") + command("UNWATCH")) * 240_000),
    "AUTH, wrong": lambda: Attack(many("AUTH", "someone", "wrong")),
    "CLIENT SETNAME": lambda: Attack(many("CLIENT", "SETNAME", "name")),
    "CLIENT REPLY OFF, violations": lambda: Attack(command("CLIENT", "REPLY", "OFF") + each("GET", "other:")),
    "PUBLISH": lambda: Attack(each("PUBLISH", "bench:events:", "m")),
    "KEYFENCE EXPLAIN": lambda: Attack(
        many("KEYFENCE", "EXPLAIN", "MGET", *[f"other:{one}" for one in range(98)], size=1_000_000)
    ),
    # much in one argument
    "a value of 16 MB": lambda: Attack(command("SET", f"{KEY}item:1", "v" * SIZE)),
    "a key of 16 MB": lambda: Attack(command("GET", KEY + "k" * SIZE)),
}


def main() -> None:
    options = _options()
    chosen = [name for name in ATTACKS if not options.only or any(part in name for part in options.only)]
    if not chosen:
        sys.exit(f"no such attack; choose from: {', '.join(ATTACKS)}")
    print(machine())
    print(f"{'':42}{'Redis':>9}" + "".join(f"{mode:>10} {'MiB':>6} {'CPU s':>6}" for mode in options.modes))
    missed = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfence-hostile-")))
        for name in chosen:
            attack = ATTACKS[name]()
            with running_redis(tcp=True) as redis:
                direct = _attacked(attack, redis.port or 0, redis.port or 0, 0)
            line = f"{name:42}{1000 * direct.wait:7.0f} ms"
            for mode in options.modes:
                found = _through_keyfence(attack, mode, folder)
                line += f"{1000 * found.wait:7.0f} ms {found.mib:6.0f} {found.cpu:6.1f}{found.note}"
                if found.wait - direct.wait > MOST_SECONDS or found.mib > MOST_MIB:
                    missed.append(f"{name} ({mode})")
            print(line, flush=True)
    print(f"beyond {1000 * MOST_SECONDS:.0f} ms or {MOST_MIB:.0f} MiB: {', '.join(missed) or 'none'}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="of an attack's name; may be repeated"
    )
    parser.add_argument("--modes", nargs="+", default=["observe", "enforce"], choices=["observe", "enforce"])
    return parser.parse_args()


class Found(NamedTuple):
    """What an attack did."""

    wait: float  # seconds: the longest of the other client
    mib: float  # the growth of keyfence's memory, at its peak
    cpu: float  # seconds of keyfence's CPU time
    note: str = ""


def _through_keyfence(attack: Attack, mode: str, folder: Path) -> Found:
    with running_redis(tcp=True) as redis, tempfile.TemporaryDirectory(dir=folder) as state:
        file = Path(state) / "keyfence.yaml"
        file.write_text(
            f"""policy: {POLICY}
upstream: {redis.url}
listeners:
  - {{listen: "127.0.0.1:0", service: good}}
  - {{listen: "127.0.0.1:0", service: bad}}
modes: [{{mode: {mode}}}]
decision_log: decisions.log
"""
        )
        environment = {"XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": state}
        options = ["--record", str(Path(state) / "recorded.jsonl")] if attack.is_recorded else []
        one = Keyfence("--config", file, *options, env=environment)
        with contextlib.suppress(AssertionError), one as keyfence:  # which is killed below
            bad, good = keyfence.address("bad")[1], keyfence.address("good")[1]
            found = _attacked(attack, bad, good, keyfence.process.pid)
            keyfence.process.kill()  # it may be busy for minutes
            keyfence.process.wait()
        return found


def _attacked(attack: Attack, port: int, ping_port: int, pid: int) -> Found:
    """Attacks one port, while a client at the other one waits for PONGs."""
    with _pinging(ping_port) as longest:
        time.sleep(0.3)
        before = _memory(pid, "VmRSS") if pid else 0.0
        if pid:
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
        used = _cpu(pid)
        note = _send(attack, port, pid)
        mib = _memory(pid, "VmHWM") - before if pid else 0.0
        used = _cpu(pid) - used
        return Found(longest(), mib, used, note)


def _cpu(pid: int) -> float:
    return nanoseconds(tree(pid)) / 1e9 if pid else 0.0


def _memory(pid: int, field: str) -> float:
    total = 0
    for one in tree(pid):
        lines = Path(f"/proc/{one}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(field))
    return total / 1024


def _send(attack: Attack, port: int, pid: int) -> str:
    """Sends everything, and waits until nothing more happens."""
    seen = [time.monotonic()]
    ends = seen[0] + LONGEST
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def read() -> None:
            with contextlib.suppress(OSError):
                while connection.recv(1 << 20):
                    seen[0] = time.monotonic()

        reader = threading.Thread(target=read)
        reader.start()
        connection.settimeout(LONGEST)
        with contextlib.suppress(OSError):
            connection.sendall(attack.data)
        seen[0] = max(seen[0], time.monotonic())
        used = _cpu(pid)
        while time.monotonic() - seen[0] < QUIET and time.monotonic() < ends:
            time.sleep(0.1)
            now = _cpu(pid)
            if now - used > 0.02:
                seen[0] = time.monotonic()
            used = now
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        reader.join()
    return "" if time.monotonic() < ends else f" (over {LONGEST:.0f} s)"


@contextlib.contextmanager
def _pinging(port: int) -> Iterator[Callable[[], float]]:
    """Has another process send PINGs. Yields a function that ends it and returns the longest wait."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_ping, args=(port, theirs))
    child.start()
    theirs.close()  # so that its end is noticed
    ours.recv()

    def longest() -> float:
        ours.send(None)
        found: float = ours.recv()
        return found

    try:
        yield longest
    finally:
        ours.close()
        child.join(LONGEST)
        child.kill()


def _ping(port: int, control: Connection) -> None:
    longest = 0.0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control.send(None)
        while not control.poll():
            start = time.perf_counter()
            connection.sendall(b"PING\r\n")
            connection.recv(100)
            longest = max(longest, time.perf_counter() - start)
            time.sleep(BETWEEN_PINGS)
    control.recv()
    control.send(longest)


if __name__ == "__main__":
    main()
