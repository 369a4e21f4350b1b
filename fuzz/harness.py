"""The shared part of all fuzzers: the build under test, the reading of inputs, and the start of a run.

Rule: a fuzzer is a function `check(data)` that raises if a property does not hold. Its arguments are
libFuzzer's options; `python fuzz/fuzz_x.py FILE` runs one input again.

KEYFENCE_FUZZ_BUILD names the directory of a `proxy` that was built for fuzzing (`run.py` does it): its
extensions count their branches, and AddressSanitizer watches their memory. Without it the checkout's own
runs.
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
BUILD = Path(os.environ.get("KEYFENCE_FUZZ_BUILD") or PROJECT)
sys.path[:0] = [str(BUILD), str(PROJECT)]  # the second for what stands in tests/

try:
    import atheris
except ImportError:
    print("atheris is not installed here (pip install atheris): not fuzzed", file=sys.stderr)
    sys.exit(77)


def instrumented(*modules: str) -> AbstractContextManager[None]:
    """Within it, what is imported of these modules counts its branches, where it is interpreted."""
    return atheris.instrument_imports(include=list(modules))  # type: ignore[no-any-return]


def interpreted(module: str) -> ModuleType:
    """A second copy of a compiled module, from its .py: the two must never differ."""
    path = BUILD.joinpath(*module.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"interpreted_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


class Choices:
    """An input read as choices, from its beginning; at its end every choice is 0 and all bytes are b""."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        """0 to 255."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.bytes(max(0, len(self._data) - self._at))

    def pieces(self) -> list[bytes]:
        """The rest, cut as a number in front says: whole, or in pieces of at most that size in turns."""
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
    """Run until libFuzzer's options say stop, or something is found."""
    # libFuzzer starts itself again by this name when it merges; a script needs an interpreter.
    again = os.environ.get("KEYFENCE_FUZZ_AGAIN", sys.argv[0])
    atheris.Setup([again, *sys.argv[1:]], check)
    atheris.Fuzz()
