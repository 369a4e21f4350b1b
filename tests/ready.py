"""Reads the line that keyfence prints when it is ready.

Needs the standard library only, since tools use it outside the environment.
"""

from __future__ import annotations

from typing import NamedTuple

READY_PREFIX = "keyfence: ready: "


class Ready(NamedTuple):
    """The contents of keyfence's ready line."""

    listeners: dict[str, tuple[str, int]]  # service to address; of a unix socket the path, and 0
    admin: str  # URL, or "" without an admin listener
    upstream: str  # URL without a password
    metrics: str = ""  # URL, or "" without a listener for metrics alone


def parse_ready_line(line: str) -> Ready:
    """Reads `keyfence: ready: A on HOST:PORT, B on HOST:PORT; admin URL; upstream URL`.

    Raises ValueError where it is another line.
    """
    if not line.startswith(READY_PREFIX):
        raise ValueError(f"not a ready line: {line!r}")
    first, *rest = line.removeprefix(READY_PREFIX).strip().split("; ")
    listeners: dict[str, tuple[str, int]] = {}
    for listener in first.split(", "):
        service, _, address = listener.rpartition(" on ")
        if address.startswith("unix:"):
            listeners[service] = (address.removeprefix("unix:"), 0)
            continue
        host, _, port = address.rpartition(":")
        listeners[service] = (host.strip("[]"), int(port))
    named = dict(part.split(" ", 1) for part in rest)
    return Ready(listeners, named.get("admin", ""), named.get("upstream", ""), named.get("metrics", ""))
