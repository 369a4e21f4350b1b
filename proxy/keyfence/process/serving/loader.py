"""Loads policy and configuration in a separate process while clients are served.

Rule: no client waits for a load: compiling 2,000 entries takes a second of CPU. And no load waits for an
interpreter, which takes half a second to start: as long as policies come by themselves, the process is there
before. It forks for each load, so that nothing of one load is left for the next. It has no threads and no
event loop, so nothing is torn by the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from keyfence.policy.diagnostics import Diagnostic, FileError
from keyfence.policy.source.files import NOTHING_SEEN, Seen

from .packing import Packed, pack
from .reload import NotLoaded, Origin, load_failed, read_once
from .spawn import admit_signals, start_python

TIMEOUT = 600.0  # seconds
NICER = 10  # a tenth of the weight of the processes that serve clients, if processors are short
LOOK_SECONDS = 2.0  # between two looks whether the process is wanted
_SIZE = struct.Struct("!Q")  # of the bytes that follow

_Answer = Packed | tuple[list[Diagnostic], Seen]


class Loader:
    """The separate process, which is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None  # what it writes to stderr
        self._one_at_a_time = asyncio.Lock()
        self._is_over = False  # nobody keeps the process any more

    async def load(self, origin: Origin) -> Packed:
        """Load everything. Raises NotLoaded, or FileError if the process has failed."""
        async with self._one_at_a_time:
            try:
                process = self._running()
            except OSError as exc:
                raise load_failed(f"its process cannot start: {exc.strerror or exc}") from None
            try:
                # In a thread, because the process reads and writes through pipes.
                asked = asyncio.to_thread(_ask, process, pickle.dumps(origin))
                answer = await asyncio.wait_for(asked, TIMEOUT)
            except TimeoutError:
                self.close()
                raise load_failed(f"it took longer than {TIMEOUT:g} s") from None
            except (EOFError, OSError, pickle.UnpicklingError):
                raise load_failed(self._why_it_ended(process)) from None
            except BaseException:
                self.close()
                raise
            finally:
                if self._is_over:
                    self.close()
        if isinstance(answer, Packed):
            return answer
        raise NotLoaded(*answer)

    async def stay_ready(self, is_wanted: Callable[[], bool]) -> None:
        """Keep the process while it is wanted, and only then. If this is cancelled, a load that is under way
        goes on until it is cancelled itself."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if not self._one_at_a_time.locked():
                    if is_wanted():
                        with contextlib.suppress(OSError):  # a load will say it
                            self._running()
                    else:
                        self.close()
        finally:
            self._is_over = True
            if not self._one_at_a_time.locked():
                self.close()

    def close(self) -> None:
        """End the process, with a load that is under way."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, which is started if it is not there. Raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        # In memory, so that a reload needs no room on a disk.
        self._complaints = os.fdopen(os.memfd_create("keyfence-loader"), "w+b")
        self._process = start_python(
            __name__,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            own_session=True,
        )
        return self._process

    def _why_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        """What it said last, after it has stopped to answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
        assert self._complaints is not None
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        code = process.returncode
        self.close()
        return said or f"its process ended with {code}"


def _ask(process: subprocess.Popen[bytes], order: bytes) -> _Answer:
    """Have it load what is ordered. Raises EOFError and OSError if it has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(_SIZE.pack(len(order)) + order)
    process.stdin.flush()
    answer: _Answer = pickle.loads(_read(process.stdout))
    return answer


def _read(file: IO[bytes]) -> bytes:
    """Some bytes behind their size. Raises EOFError."""
    header = file.read(_SIZE.size)
    size = _SIZE.unpack(header)[0] if len(header) == _SIZE.size else 0
    data = file.read(size)
    if not size or len(data) < size:
        raise EOFError
    return data


# -- in the separate process


def main() -> None:
    """Loads one order after the other, each in a child, until the parent's end of the pipe closes."""
    admit_signals()
    _give_way()
    gc.freeze()  # the children share these pages
    with contextlib.suppress(EOFError):
        while True:
            order = _read(sys.stdin.buffer)
            child = os.fork()
            if not child:
                _answer(pickle.loads(order))
                os._exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code < 0:
                sys.exit(f"its process was ended by signal {-code}")
            if code:
                sys.exit(code)


def _answer(origin: Origin) -> None:
    answer: _Answer
    try:
        loaded, seen = read_once(origin.load, origin.given)
        answer = pack(*loaded)._replace(seen=seen)
    except NotLoaded as exc:
        answer = exc.diagnostics, exc.seen
    except FileError as exc:
        answer = exc.diagnostics, NOTHING_SEEN
    data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.write(_SIZE.pack(len(data)))
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _give_way() -> None:
    """Let the processes that serve clients have the processors first."""
    os.nice(NICER)
    with contextlib.suppress(OSError):  # Linux, which weighs sessions against each other before processes
        Path("/proc/self/autogroup").write_text(str(NICER))
