"""Effects on a key's time to live that several commands share."""

from __future__ import annotations

from .arguments import LONG_LONG_MAX, LONG_LONG_MIN, integer
from .model import Ttl

KEEPS = Ttl("keeps")
EDITS = Ttl("keeps", creates=False)  # it never creates the key
DROPS = Ttl("drops")
# It replaces the key and has no option for a time. A stored result replaces the key together with its time to
# live (`src/db.c`, setKey and dbDelete).
STORES = Ttl("drops", follows=True)
STORES_NEW = Ttl("drops", condition="NX", follows=True)
CARRIES = Ttl("carries")  # the time to live moves or is copied with the value
CARRIES_NEW = Ttl("carries", condition="NX")


def milliseconds(argument: bytes, unit: int) -> int | None:
    """A time in units of `unit` milliseconds. None if it is not an integer, or too large for Redis."""
    number = integer(argument)
    if number is None or not LONG_LONG_MIN <= number * unit <= LONG_LONG_MAX:
        return None
    return number * unit
