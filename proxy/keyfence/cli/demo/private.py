"""The demo's own keyfence: `keyfence run` in a process and a folder of its own, with a Redis of its own.

Rule: it ends with the demo, however the demo ends. Everything that it writes is in one temporary folder,
which the demo deletes at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keyfence.cli.rollout.served import ADMIN, START_SECONDS, stop

from .player import DemoError
from .running import asked
from .traffic import MASTER, PROXY, SERVICES, SIDECAR

PORT = 8379  # of the page, if it is free
TAKEN = "already in use"
WAIVER_DAYS = 30
# What the candidate policy changes: it allows one mistake, and breaks what two services do.
CANDIDATE = (
    ("values: [running, pausing, paused, resuming]", "values: [running, pausing, paused, resuming, killed]"),
    ("ttl: {max: 1h, at: write}", "ttl: {max: 20s, at: write}"),
)
OBSERVE = ("{mode: observe}",)
ENFORCE = ("{mode: enforce}",)
# On the way: what two services do is enforced, the others still mend their commands.
ON_THE_WAY = (f"{{service: {PROXY}, mode: enforce}}", f"{{service: {SIDECAR}, mode: enforce}}", *OBSERVE)
_NOT_OURS = ("KEYFENCE_UPSTREAM", "NOTIFY_SOCKET")  # the user's Redis, the user's supervisor
_POLL_SECONDS = 0.05


class _Files(NamedTuple):
    """The files of one keyfence. `port` is that of its admin listener, 0 for a free one."""

    folder: Path
    policy: Path
    port: int

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def config(self) -> Path:
        return self.folder / "keyfence.yaml"

    @property
    def printed(self) -> Path:
        return self.folder / "keyfence.out"

    @property
    def said(self) -> Path:
        return self.folder / "keyfence.err"

    def write(self) -> None:
        self.token.touch(mode=0o600)
        self.token.write_text(f"{secrets.token_hex(8)}\n")
        until = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=WAIVER_DAYS)
        (self.folder / "waivers.yaml").write_text(
            "waivers:\n"
            f"  - {{service: {MASTER}, rule: key.unregistered, keys: 'template_image_job_pull_progress:*',\n"
            f"     owner: template-team, reason: gets a standard key in the next release, until: {until}}}\n"
        )
        self.write_config(OBSERVE)

    def write_config(self, modes: Sequence[str]) -> None:
        lines = [
            f"policy: {json.dumps(str(self.policy))}",
            "waivers: waivers.yaml",
            "listeners:",
            *(f"  - {{listen: '127.0.0.1:0', service: {service}}}" for service in SERVICES),
            f"admin: {{listen: '127.0.0.1:{self.port}', token_file: token, audit_log: audit.log}}",
            "findings: sqlite:///findings.db",
            "drain: 1s",
            "modes:",
            *(f"  - {mode}" for mode in modes),
        ]
        self.config.write_text("\n".join([*lines, ""]), "utf-8")

    def write_candidate(self) -> Path | None:
        """The file of the candidate policy; None if this policy lacks what the candidate changes."""
        text = self.policy.read_text("utf-8") if self.policy.is_file() else ""
        changed = text
        for before, after in CANDIDATE:
            changed = changed.replace(before, after)
        if changed == text:
            return None
        file = self.folder / "candidate.yaml"
        file.write_text(changed, "utf-8")
        return file


class Private:
    """A keyfence that serves. `admin` is the URL of its page, `token` allows changes there."""

    def __init__(self, files: _Files, admin: str) -> None:
        self.admin = admin
        self.token = files.token.read_text().strip()
        self._files = files

    def set_modes(self, modes: Sequence[str]) -> None:
        """Put these modes in force. Raises DemoError."""
        self._files.write_config(modes)
        self._change("/-/reload", {})

    def compare(self) -> None:
        """Compare the policy with a candidate, if one can be made of it. Raises DemoError."""
        candidate = self._files.write_candidate()
        if candidate is not None:
            self._change("/-/candidate", {"file": str(candidate)})

    def _change(self, path: str, body: dict[str, str]) -> None:
        asked(self.admin, path, body, str(self._files.token))


@contextlib.asynccontextmanager
async def private_keyfence(policy: Path, *, copied: bool) -> AsyncIterator[Private]:
    """A keyfence in observe mode, with this policy. `copied`: it runs a copy of the file, so that nothing on
    its page concerns the file. Raises DemoError."""
    with tempfile.TemporaryDirectory(prefix="keyfence-demo-") as name:
        folder = Path(name)
        own = Path(shutil.copy(policy, folder / "policy.yaml")) if copied else policy.absolute()
        files = _Files(folder, own, PORT if _is_free(PORT) else 0)
        files.write()
        async with contextlib.AsyncExitStack() as stack:
            try:
                admin = await _serving(files, stack)
            except DemoError as exc:
                if not files.port or TAKEN not in str(exc):
                    raise
                files = files._replace(port=0)  # another program took the port meanwhile
                files.write()
                admin = await _serving(files, stack)
            yield Private(files, admin)


async def _serving(files: _Files, stack: contextlib.AsyncExitStack) -> str:
    """Starts a keyfence, which ends with the stack. Returns its admin URL. Raises DemoError."""
    process = _started(files)
    stack.callback(stop, process, lambda: False)
    return await _admin_of(process, files)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _started(files: _Files) -> subprocess.Popen[bytes]:
    """`keyfence run`, of this very package. It is in a session of its own: Ctrl-C ends the demo first."""
    path = [os.path.abspath(entry) for entry in sys.path]
    code = (
        f"import signal, sys; sys.path[:] = {path!r}; "
        # Until `serve` has its handlers, SIGTERM unwinds, so that the Redis leaves nothing behind.
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); "
        f"from keyfence.process.serving.spawn import end_with_parent; end_with_parent({os.getpid()}); "
        "from keyfence.cli.main import main; main()"
    )
    environment = {name: text for name, text in os.environ.items() if name not in _NOT_OURS}
    with files.printed.open("wb") as out, files.said.open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-c", code, "run", "--config", str(files.config)],
            cwd=files.folder,
            env=environment | {"TMPDIR": str(files.folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )


async def _admin_of(process: subprocess.Popen[bytes], files: _Files) -> str:
    """The admin URL, once keyfence serves. Raises DemoError."""
    deadline = time.monotonic() + START_SECONDS
    while (ready := ADMIN.search(files.printed.read_text(errors="replace"))) is None:
        if process.poll() is not None:
            last = (files.said.read_text(errors="replace").splitlines() or ["it printed nothing"])[-1]
            raise DemoError(f"keyfence did not start: {last.removeprefix('keyfence: ')}")
        if time.monotonic() > deadline:
            raise DemoError(f"keyfence did not start within {START_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)
    return ready[1]
