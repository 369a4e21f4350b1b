"""What `keyfence look` gives the keyfence that it starts, and what it tells it afterwards.

Rule: `keyfence look` finds everything out and writes it down; this keyfence only shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keyfence.policy.verdict import Peer


class Looking(NamedTuple):
    """How services are told apart, and where the page finds what was seen."""

    service_of: Callable[[str, Peer], str]  # see `telemetry.telemetry.Named`
    file: str  # JSON, replaced as a whole (`cli.look.picture`)

    def seen(self) -> Mapping[str, Any]:
        """What was seen so far; empty before anything was. Reads a file."""
        try:
            found: dict[str, Any] = json.loads(Path(self.file).read_bytes())
        except FileNotFoundError:
            return {}
        return found
