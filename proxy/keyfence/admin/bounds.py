"""The limits of an admin listener: how many connections, and for how long.

Rule: this module is for those who plan with the limits, so it imports nothing of the listener itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

CONNECTIONS = 64  # of each admin listener, if there are enough descriptors
ARRIVING = 8  # further ones for a moment, while an old connection is closed for a new one


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """How long each part of a request may take, in seconds."""

    header: float = 10.0  # from the connection, or from the first byte of a further request
    body: float = 10.0
    answer: float = 60.0  # to read the answer and begin another request


def _uncounted(_listener: str, _reason: str) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of an admin listener, and a function that counts refusals."""

    connections: int = CONNECTIONS
    times: Times = Times()
    count: Callable[[str, str], None] = _uncounted  # takes the listener's name and the reason


DEFAULT_BOUNDS = Bounds()
