"""The kept inputs of the fuzzers: a file for each target, with one input a line, as Python writes bytes.

Rule: the inputs above the first empty line have found a fault; they stay. `run.py --minimize` chooses those
below anew, so that together they cover what all known inputs cover.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
CHOSEN = "# Each covers what no input above it covers (fuzz/run.py --minimize).\n"


def of_lines(text: str) -> list[bytes]:
    """Returns the inputs of a corpus, without its comments."""
    return [ast.literal_eval(line) for line in text.splitlines() if line and not line.startswith("#")]


def file_of(target: str) -> Path:
    return FOLDER / f"{target}.txt"


def regressions(target: str) -> list[bytes]:
    return of_lines(file_of(target).read_text().partition("\n\n")[0])


def inputs(target: str) -> list[bytes]:
    return of_lines(file_of(target).read_text())


def keep(target: str, chosen: Iterable[bytes]) -> None:
    """Replaces the chosen inputs of a corpus; those that have found a fault stay."""
    above = file_of(target).read_text().partition("\n\n")[0]
    below = sorted(set(chosen) - set(of_lines(above)), key=lambda data: (len(data), data))
    file_of(target).write_text(f"{above}\n\n{CHOSEN}" + "".join(f"{data!r}\n" for data in below))


def unpack(data: Iterable[bytes], folder: Path) -> Path:
    """Writes inputs as libFuzzer reads them: a folder with a file for each."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for one in data:
        (folder / hashlib.sha1(one).hexdigest()).write_bytes(one)
    return folder
