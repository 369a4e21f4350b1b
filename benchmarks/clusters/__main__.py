"""Measures changes of a cluster under load: `python -m benchmarks.clusters --kind graceful --count 3`."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clusters.arm import Load
from benchmarks.clusters.changes import KINDS
from benchmarks.clusters.measuring import installed, measured
from benchmarks.clusters.outcomes import Change, read
from benchmarks.clusters.tables import head, row, summary
from benchmarks.processes import machine
from benchmarks.raw import lines_of, write
from tests.cluster import cluster_binary, moves_at_once
from tests.servers import ServerBinary, all_server_binaries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="changes of each kind (3)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all that the server has")
    parser.add_argument("--library", action="append", help='such as "node-redis"; default: all installed')
    parser.add_argument("--server", help='such as "valkey 9.1"; default: the first that is installed')
    parser.add_argument("--keys", type=int, default=12, help="that a client uses at once (12)")
    parser.add_argument("--pause", type=float, default=2.0, help="milliseconds between two rounds (2)")
    parser.add_argument("--quiet", type=float, default=0.2, help="seconds of work before each change (0.2)")
    parser.add_argument(
        "--raw", type=Path, help="append all figures to this file; the tables are of all it has"
    )
    asked = parser.parse_args()
    binary = _server(asked.server) if asked.server else cluster_binary()
    assert binary is not None
    kinds = asked.kind or [one for one in KINDS if one != "atomic" or moves_at_once(binary)]
    print(f"{machine()}\n{binary.id}\n\nlongest time without service, and commands\n{head()}")
    found = read(lines_of(asked.raw))
    load = Load(asked.keys, asked.pause / 1000, asked.quiet)
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            for change in itertools.islice(
                measured(kind, Path(folder), binary, _libraries(asked.library), load), asked.count
            ):
                found.append(change)
                if asked.raw:
                    write(asked.raw, change)
                print("\n".join([row(change), *change.faults()]), flush=True)
    _print_summaries(found)
    sys.exit(any(True for one in found for _ in one.faults()))


def _print_summaries(found: list[Change]) -> None:
    for kind in KINDS:
        if of_kind := [one for one in found if one.kind == kind]:
            print(f"\n{kind}: {len(of_kind)} changes")
            print("\n".join(summary(of_kind)))


def _libraries(asked: Sequence[str] | None) -> list[str]:
    found = [one for one in installed() if asked is None or one.startswith(tuple(asked))]
    return found or sys.exit(f"none of these is installed here; there are {', '.join(installed())}")


def _server(name: str) -> ServerBinary:
    for binary in all_server_binaries():
        if f"{binary.name} {binary.version}".startswith(name):
            return binary
    sys.exit(f"{name}: not installed here; there are " + ", ".join(one.id for one in all_server_binaries()))


if __name__ == "__main__":
    main()
