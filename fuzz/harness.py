"""The shared part of all fuzzers: the build under test, the reading of inputs, and the start of a run.

Rule: a fuzzer is a function `check(data)` that raises if a property does not hold. The fuzzer's arguments are
libFuzzer's options; `python fuzz/fuzz_x.py FILE` runs one input again.

KEYFENCE_FUZZ_BUILD is the path of a `proxy` directory built for fuzzing (by `run.py`). Its extensions count
their branches, and AddressSanitizer checks their memory. Without it, the fuzzers test the checkout itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("KEYFENCE_FUZZ_BUILD") or PROJECT / "proxy")
sys.path[:0] = [str(BUILD), str(PROJECT)]  # PROJECT for imports from tests/

try:
    import atheris
except ImportError:
    print("atheris is not installed (pip install atheris): nothing is fuzzed", file=sys.stderr)
    sys.exit(77)


def instrumented(*modules: str) -> AbstractContextManager[None]:
    """A context in which imports of these modules count branches, as far as they are interpreted."""
    return atheris.instrument_imports(include=list(modules))  # type: ignore[no-any-return]


def interpreted(module: str) -> ModuleType:
    """Imports a second, interpreted copy of a compiled module. Both must always behave the same."""
    path = BUILD.joinpath(*module.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"{module}_interpreted", path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


class Choices:
    """Reads an input as a sequence of choices. After its end, every number is 0 and all bytes are b""."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        """Reads a number from 0 to 255."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.bytes(max(0, len(self._data) - self._at))

    def pieces(self) -> list[bytes]:
        """Returns the rest in pieces. Their sizes alternate between two numbers; a first 0: one piece."""
        first, second = self.number(), self.number() + 1
        data = self.rest()
        if first == 0:
            return [data]
        pieces, at, sizes = [], 0, (first, second)
        while at < len(data):
            size = sizes[len(pieces) % 2]
            pieces.append(data[at : at + size])
            at += size
        return pieces


def fuzz(check: Callable[[bytes], None]) -> None:
    """Runs until libFuzzer's options end the run, or a check fails."""
    # When libFuzzer merges, it restarts itself by this name. A script would need an interpreter there.
    again = os.environ.get("KEYFENCE_FUZZ_AGAIN", sys.argv[0])
    atheris.Setup([again, *sys.argv[1:]], check)
    atheris.Fuzz()
