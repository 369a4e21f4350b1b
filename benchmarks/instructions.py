"""Counts the processor instructions of a command in a client's session, with callgrind.

Run it from the repository's root: `python -m benchmarks.instructions`. The counts hardly vary between runs
and machines, so `tests/session/test_instructions.py` can compare them with limits. They are given as a
multiple of the instructions that CPython needs to split the same requests at their CRLFs, which compensates
for differences between Python builds. Needs valgrind, under which everything takes fifty times as long.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import sessions
from keyfence import _compiled

ROOT = Path(__file__).parents[1]
COMMANDS = 480
PIPELINES = (1, 16)
# Exported by the C library and called by nobody else meanwhile: callgrind ends a part of its count at a call.
_end_part = os.getpid
_END = "getpid"


class Unavailable(Exception):
    """Callgrind can't be had, or doesn't work here; says why."""


def count() -> dict[str, float]:
    """How many instructions each load takes, as a multiple of those that splitting it at CRLF takes."""
    if not shutil.which("valgrind"):
        raise Unavailable("valgrind is not installed")
    tool = ["valgrind", "--tool=callgrind"]
    tried = subprocess.run(
        [*tool, f"--callgrind-out-file={os.devnull}", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        raise Unavailable(f"callgrind ends with {tried.returncode}: {tried.stderr[-500:]}")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "parts"
        command = [*tool, f"--callgrind-out-file={out}", f"--dump-before={_END}"]
        command += [sys.executable, "-m", "benchmarks.instructions", "--work"]
        environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"what is counted ended with {done.returncode}: {done.stderr[-2000:]}")
        names = done.stdout.splitlines()
        parts = sorted(out.parent.glob("parts.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path) for path in parts]
    # Of each load: what led to it, itself, and splitting it.
    itself, splitting = totals[1::3], totals[2::3]
    return {name: mine / split for name, mine, split in zip(names, itself, splitting, strict=True)}


def _total(part: Path) -> int:
    found = re.search(r"^totals: ([0-9]+)$", part.read_text(errors="replace"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind wrote no totals into {part.name}")
    return int(found[1])


def work() -> None:
    """What runs under callgrind: each load twice, of which the second time is counted, and its splitting."""
    for pipeline in PIPELINES:
        for load in sessions.loads(COMMANDS, pipeline):
            session = sessions.session_for(load)
            requests = b"".join(data for data, _ in load.reads)
            sessions.serve(session, load.reads)
            _end_part()
            sessions.serve(session, load.reads)
            _end_part()
            requests.split(b"\r\n")
            _end_part()
            print(load.name)


def main() -> None:
    if sys.argv[1:] == ["--work"]:
        work()
        return
    print(f"hot modules: {_compiled.describe()}; instructions, as a multiple of splitting at CRLF")
    try:
        found = count()
    except Unavailable as exc:
        sys.exit(f"instructions: {exc}")
    for name, ratio in found.items():
        print(f"{name:40}{ratio:8.2f}")


if __name__ == "__main__":
    main()
