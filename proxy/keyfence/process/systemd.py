"""What keyfence says to systemd, or to whatever else listens as systemd does: sd_notify(3).

Rule: the supervisor hears the truth or nothing; a supervisor that doesn't listen is no fault.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

VARIABLE = "NOTIFY_SOCKET"

READY = "READY=1"
STOPPING = "STOPPING=1"

Notify = Callable[[str], None]


def notifier() -> Notify:
    """What sends a message to the supervisor; it does nothing where there is none.

    The variable goes, so that worker processes don't speak for their parent.
    """
    path = os.environ.pop(VARIABLE, "")
    if not path.startswith(("/", "@")):
        return _nobody_listens
    address = f"\0{path[1:]}" if path.startswith("@") else path

    def send(message: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(), address)

    return send


def _nobody_listens(_message: str) -> None:
    pass


def reloading() -> str:
    """A reload begins; READY says that it is over. systemd compares the time with those of its own."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
