"""Rule: what may become of what a key holds is read from its key spec's flags; a few names say the rest.

The servers flag a key as `OW` where a command overwrites it, and as `delete` where it takes elements out.
"""

from __future__ import annotations

from .model import DELETES, OVERWRITES, REMOVES, REPLACES
from .table import KeySpec

# The new value stands in the command itself.
_REPLACING = frozenset(
    {"GETSET", "HIMPORT SET", "MSET", "MSETEX", "MSETNX", "PSETEX", "SET", "SETEX", "SETNX"}
)
# In time these take fields out.
_EXPIRING_FIELDS = frozenset({"HEXPIRE", "HEXPIREAT", "HGETEX", "HPEXPIRE", "HPEXPIREAT"})


def losses_of(name: str, spec: KeySpec | None, *, takes_key: bool) -> int:
    """REMOVES, DELETES, REPLACES or OVERWRITES, for the keys that a spec finds; 0 for none.

    `takes_key`: it removes the whole key (DELETE says so), or touches a consumer group's books only.
    """
    flags = spec.flags if spec is not None else frozenset[str]()
    if name == "MOVE":
        return DELETES
    if name in _REPLACING:
        return REPLACES
    if "OW" in flags:
        return OVERWRITES
    takes_out = "delete" in flags and not takes_key
    return REMOVES if takes_out or name in _EXPIRING_FIELDS else 0
