"""The audit log: who changed what through the admin listener, and why.

Rule: every change is in the audit log, if the configuration names one. A change through the page is a line
for the operator too; others have lines of their own there. A log that cannot be written is reported, and
stops no change: an operator may be ending an outage.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

from keyfence.policy.show import one_line
from keyfence.telemetry.log_file import Tail
from keyfence.telemetry.operator_log import notice, tell

PROGRAM = "a program"  # who used the HTTP interface; only the page asks for a name


class Audit:
    """The audit log of one keyfence."""

    def __init__(
        self, path: str = "", say: Callable[[str], None] = tell, head: Callable[[], str] = lambda: ""
    ) -> None:
        """`path` is the file, "" for none; `say` prints a line for the operator. `head` is the last row of
        the history. It is kept here too, so that a row that is removed there is missed."""
        self._path = path
        self._head = head
        self._say = say
        self._tail = Tail()

    def note(
        self, who: str, address: str, action: str, detail: str, why: str, outcome: str, *, aloud: bool = True
    ) -> None:
        """Write down a change, or the attempt of one. `outcome` is "done", or why not. `aloud`: as a line for
        the operator too."""
        names = ("who", "address", "action", "detail", "why", "outcome")
        entry = dict(zip(names, map(one_line, (who, address, action, detail, why, outcome)), strict=True))
        if aloud:
            detail = f" ({entry['detail']})" if detail else ""
            reason = f": {entry['why']}" if why else ""
            by = f"by {entry['who']} from {entry['address']}"
            self._say(f"audit: {entry['action']}{detail} {by}{reason} [{entry['outcome']}]")
        if self._path:
            head = self._head()
            last = {"history": head} if head else {}
            self._write({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **entry, **last})

    def _write(self, entry: dict[str, str]) -> None:
        """Add a line. The file is opened each time, so it may be moved away at any time."""
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(self._path, flags, 0o640)
            try:
                self._tail.append(file, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(file)
        except OSError as exc:
            notice("audit log", f"the audit log {self._path} cannot be written: {exc.strerror}")
