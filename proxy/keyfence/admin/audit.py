"""The audit log: who changed what through the admin listener, and why.

Rule: every change is in the audit log, if the configuration names one. A change through the page is on
standard error too; others have lines of their own there. A log that cannot be written is reported, and stops
no change: an operator may be ending an outage.
"""

from __future__ import annotations

import collections
import json
import time
from typing import Any, NamedTuple

from keyfence.policy.show import one_line
from keyfence.telemetry.operator_log import notice, warn

KEPT = 50  # entries that the page shows
SHELL = "holder of the token"  # who used the HTTP interface; the page asks for a name


class Entry(NamedTuple):
    """One change, or the attempt of one."""

    at: float  # Unix seconds
    who: str
    address: str
    action: str
    detail: str
    why: str
    outcome: str  # "done", or why not


class Audit:
    """The audit log of one keyfence."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.latest: collections.deque[Entry] = collections.deque(maxlen=KEPT)

    def note(
        self, who: str, address: str, action: str, detail: str, why: str, outcome: str, *, aloud: bool = True
    ) -> None:
        """Write a change down. `aloud`: on standard error too."""
        entry = Entry(time.time(), *map(one_line, (who, address, action, detail, why, outcome)))
        self.latest.appendleft(entry)
        if aloud:
            self._tell(entry)
        if self.path:
            self._write(entry)

    def _tell(self, entry: Entry) -> None:
        parts = [f"audit: {entry.action}", f" ({entry.detail})" if entry.detail else ""]
        parts += [f" by {entry.who} from {entry.address}", f": {entry.why}" if entry.why else ""]
        warn("".join([*parts, f" [{entry.outcome}]"]))

    def _write(self, entry: Entry) -> None:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.at)),
            **entry._asdict(),
        }
        del line["at"]
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as exc:
            notice("audit log", f"the audit log {self.path} cannot be written: {exc.strerror}")
