"""Messages to systemd, or to another supervisor with the same protocol: sd_notify(3).

Rule: a message is sent after what it reports has happened. A supervisor that does not listen is not an error.
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
    """A function that sends a message to the supervisor; without one it does nothing.

    The variable is removed from the environment, so that workers do not send messages for their parent.
    """
    path = os.environ.pop(VARIABLE, "")
    if not path.startswith(("/", "@")):
        return lambda _message: None
    address = f"\0{path[1:]}" if path.startswith("@") else path

    def send(message: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(message.encode(), address)

    return send


def reloading() -> str:
    """The message that a reload begins; READY ends it. systemd compares the time with its own clock."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
