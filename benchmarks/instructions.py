"""Counts the processor instructions of a command in a client's session, with callgrind.

Run it from the repository's root: `python -m benchmarks.instructions`; further arguments are parts of the
names of loads, and select these. The counts hardly vary between runs and machines, so
`tests/session/test_instructions.py` can compare them with limits. The unit is the number of
instructions that CPython needs to split the same requests at their CRLFs. This unit compensates for
differences between Python builds, but depends on the place of objects in memory, by up to 4 %. So compare two
states of the code by the instructions of one command. Needs valgrind, which slows everything down by a factor
of fifty.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks import sessions
from keyfence import _compiled

ROOT = Path(__file__).parents[1]
COMMANDS = 480
PIPELINES = (1, 16)
# callgrind ends a part of its count at each call of this function. The C library exports it, and nothing else
# calls it during the count.
_end_part = os.getpid
_END = "getpid"


class Unavailable(Exception):
    """Callgrind is missing or does not work here. The message gives the reason."""


class Count(NamedTuple):
    """The instructions of one load."""

    ratio: float  # as a multiple of those for splitting it at its CRLFs
    per_command: float


def count(only: str = "") -> dict[str, Count]:
    """Returns the instructions of each load whose name contains one of the texts in `only`, which commas
    separate."""
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
        names = _run(command, only)
        parts = sorted(out.parent.glob("parts.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path) for path in parts]
    # Each load has three parts: the preparation, the load itself, and the splitting of its requests.
    loads, splits = totals[1::3], totals[2::3]
    counts = (Count(load / split, load / COMMANDS) for load, split in zip(loads, splits, strict=True))
    return dict(zip(names, counts, strict=True))


def _run(command: list[str], only: str) -> list[str]:
    """Runs `work` under callgrind. Returns the names of the loads.

    Preparations are most of what there is to run. So they are not counted, which takes a tenth of the time of
    counting, if callgrind can be told from outside when to begin.
    """
    work = [sys.executable, "-m", "benchmarks.instructions", "--work", only]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    for options in (["--instr-atstart=no"], []):
        process = subprocess.Popen(
            [*command, *options, *work],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()  # it is prepared
            if options and not _begin_counting(process.pid):
                process.kill()
                continue
            output, errors = process.communicate("\n")
        if process.returncode:
            raise RuntimeError(f"the measured process ended with {process.returncode}: {errors[-2000:]}")
        return output.splitlines()
    raise AssertionError


def _begin_counting(pid: int) -> bool:
    """Has callgrind count from now on. Returns whether that is possible."""
    if not shutil.which("callgrind_control"):
        return False
    tell = ["callgrind_control", "--instr=on", str(pid)]
    told = subprocess.run(tell, capture_output=True, text=True, check=False, timeout=60)
    return told.returncode == 0 and "OK" in told.stdout


def _total(part: Path) -> int:
    found = re.search(r"^totals: ([0-9]+)$", part.read_text(errors="replace"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind wrote no totals into {part.name}")
    return int(found[1])


def work(only: str) -> None:
    """Runs under callgrind: serves each load twice, the second time counted, then splits its requests."""
    every = [load for pipeline in PIPELINES for load in sessions.loads(COMMANDS, pipeline)]
    loads = [load for load in every if any(text in load.name for text in only.split(","))]
    print("prepared", flush=True)
    sys.stdin.readline()
    for load in loads:
        session = sessions.session_for(load)
        requests = b"".join(data for data, _ in load.reads)
        sessions.serve(session, load.reads)
        gc.collect()
        gc.freeze()  # else a collection of everything falls into one part or another, by chance
        _end_part()
        sessions.serve(session, load.reads)
        _end_part()
        requests.split(b"\r\n")
        _end_part()
        print(load.name)


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
        return
    print(f"hot modules: {_compiled.describe()}")
    print("instructions, as a multiple of those for splitting at CRLF, and of one command")
    try:
        found = count(",".join(sys.argv[1:]))
    except Unavailable as exc:
        sys.exit(f"instructions: {exc}")
    for name, one in found.items():
        print(f"{name:40}{one.ratio:8.2f}{one.per_command:12,.0f}")


if __name__ == "__main__":
    main()
