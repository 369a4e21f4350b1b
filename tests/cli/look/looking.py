"""A `keyfence look` that runs, what it has printed, and its page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.servers import PATIENCE_SECONDS, PROJECT


class Looking:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out = folder / "out"
        self.folder = folder
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "keyfence", "look", *arguments],
                env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(PROJECT / "proxy")},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def printed(self) -> str:
        return self.out.read_text()

    def until(self, text: str) -> str:
        """Waits until this was printed. Returns everything that was."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while text not in self.printed:
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.02)
        return self.printed

    @property
    def admin(self) -> str:
        """The URL of its page."""
        return re.findall(r"The page is at (http://\S+?)/ ", self.printed)[0]

    def client(self, **options: object) -> redis.Redis:
        port = int(re.findall(r"redis-cli .*-p (\d+)", self.until("Ctrl-C ends it"))[0])
        return redis.Redis(port=port, **options)  # type: ignore[arg-type]

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_SECONDS) == 0
        return self.printed
