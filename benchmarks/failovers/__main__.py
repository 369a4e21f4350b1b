"""Measures failovers with clients at work: `python -m benchmarks.failovers --count 3 --kind graceful`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.failovers.measuring import measure
from benchmarks.failovers.outcomes import KINDS, Failover, read
from benchmarks.failovers.tables import head, row, summary
from benchmarks.processes import machine
from benchmarks.raw import lines_of, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3, help="failovers of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: both")
    parser.add_argument(
        "--raw", type=Path, help="append all figures to this file; the tables are of all it has"
    )
    asked = parser.parse_args()
    print(machine())
    found = read(lines_of(asked.raw))
    for kind in asked.kind or KINDS:
        for number in range(asked.count):
            one = _once(kind)
            found.append(one)
            if asked.raw:
                write(asked.raw, one)
            if not number:
                print(f"\nms without service, through keyfence/control\n{head([one])}")
            print("\n".join([row(one), *one.faults()]), flush=True)
    for kind in KINDS:
        if of_kind := [one for one in found if one.kind == kind]:
            again = sum(one.switches > 1 for one in of_kind)
            print(
                f"\n{kind}: {len(of_kind)} failovers, in {again} the Sentinels failed over again; times in ms"
            )
            print("\n".join(summary(of_kind)))
    sys.exit(any(True for one in found for _ in one.faults()))


def _once(kind: str) -> Failover:
    with tempfile.TemporaryDirectory() as folder:
        return measure(kind, Path(folder))


if __name__ == "__main__":
    main()
