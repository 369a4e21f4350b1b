"""Measures the start of keyfence: from the process' start to its ready line. `python -m benchmarks.start`.

Rule: the starts of all kinds take turns, and the results are medians. On a machine that does other work too,
the CPU time says more than the time that passed, so both are shown. Python's byte code is cached, as in an
installed package.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import machine, nanoseconds, tree
from benchmarks.targets import CUBE, ENTRIES, large_policy
from tests.ready import READY_PREFIX
from tests.servers import RedisServer, running_redis

TURNS = 11
PATIENCE = 60.0


class Start(NamedTuple):
    """One start; both times are in seconds. `cpu` is that of the process and its workers."""

    seconds: float
    cpu: float


def kinds(folder: Path) -> dict[str, list[str]]:
    """Returns the kinds of starts, each with the arguments of `keyfence run`."""
    large = folder / "large.yaml"
    large.write_text(large_policy(ENTRIES))
    store = f"sqlite:///{folder / 'findings.db'}"
    return {
        "cubesandbox": ["--policy", str(CUBE)],
        "with findings": ["--policy", str(CUBE), "--findings", store],
        "two workers": ["--policy", str(CUBE), "--workers", "2"],
        "2,000 entries": ["--policy", str(large)],
    }


@contextlib.contextmanager
def _ended(child: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=PATIENCE)


def _environment(folder: Path) -> dict[str, str]:
    """Returns an environment in which the first start fills a cache of byte code."""
    found = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def starts(redis: RedisServer, folder: Path, turns: int, only: Sequence[str] = ()) -> dict[str, list[Start]]:
    """Starts a keyfence of each kind in turns. Returns the starts by kind."""
    chosen = {name: given for name, given in kinds(folder).items() if not only or name in only}
    env = _environment(folder)
    for arguments in chosen.values():
        _start(redis, arguments, env)
    found: dict[str, list[Start]] = {name: [] for name in chosen}
    for _ in range(turns):
        for name, arguments in chosen.items():
            found[name].append(_start(redis, arguments, env))
    return found


def _start(redis: RedisServer, arguments: list[str], env: dict[str, str]) -> Start:
    """Starts a keyfence, waits for its ready line, and ends it."""
    argv = [sys.executable, "-m", "keyfence", "run", *arguments]
    argv += ["--upstream", redis.url, "--listen", "127.0.0.1:0", "--service", "CubeMaster"]
    argv += ["--admin", "127.0.0.1:0"]
    begun = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    with _ended(child):
        assert child.stdout is not None
        line = child.stdout.readline()
        seconds = time.perf_counter() - begun
        if not line.startswith(READY_PREFIX):
            raise SystemExit(f"keyfence did not start: {line.strip()}")
        return Start(seconds, nanoseconds(tree(child.pid)) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help="may be repeated")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"starts of each kind; default: {TURNS}")
    options = parser.parse_args()
    print(machine())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keyfence-start-")))
        redis = stack.enter_context(running_redis())
        found = starts(redis, folder, options.turns, options.only)
    print(f"{'start':16} seconds  lowest  CPU s  lowest   (medians of {options.turns})")
    for name, measured in found.items():
        seconds, cpu = zip(*measured, strict=True)
        print(
            f"{name:16} {statistics.median(seconds):7.2f} {min(seconds):7.2f}"
            f" {statistics.median(cpu):6.2f} {min(cpu):7.2f}"
        )


if __name__ == "__main__":
    main()
