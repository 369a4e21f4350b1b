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
_EXPIRING_FIELDS = frozenset({"HEXPIRE", "HEXPIREAT", "HGETEX", "HPEXPIRE", "HPEXPIREAT", "HSETEX"})
# Modules flag all their writes alike. What options decide counts as if it were asked for: a path that is the
# root of a JSON document, OVERRIDE of TDIGEST.MERGE.
_OF_MODULES = {
    **dict.fromkeys(("CF.DEL", "FT.SUGDEL", "TDIGEST.RESET", "TS.DEL", "VREM"), REMOVES),
    **dict.fromkeys(("JSON.ARRPOP", "JSON.ARRTRIM", "JSON.CLEAR"), REMOVES),
    **dict.fromkeys(("JSON.DEL", "JSON.FORGET"), DELETES | REMOVES),
    **dict.fromkeys(("JSON.MSET", "JSON.SET"), REPLACES),
    "JSON.MERGE": REPLACES | REMOVES,
    "FT.ADD": REPLACES,
    "FT.SAFEADD": REPLACES,
    "FT.DEL": DELETES,
}
_MERGING = frozenset({"CMS.MERGE", "TDIGEST.MERGE"})  # into the key of their first role


def losses_of(name: str, role: int, spec: KeySpec | None, *, takes_key: bool) -> int:
    """REMOVES, DELETES, REPLACES or OVERWRITES, for the keys that a spec, of this number, finds; 0 for none.

    `takes_key`: it removes the whole key (DELETE says so), or touches a consumer group's books only.
    """
    flags = spec.flags if spec is not None else frozenset[str]()
    if name == "MOVE":
        return DELETES
    if name in _REPLACING:
        return REPLACES
    if name in _OF_MODULES or (name in _MERGING and role == 0):
        return _OF_MODULES.get(name, OVERWRITES)
    if "OW" in flags:
        return OVERWRITES
    takes_out = "delete" in flags and not takes_key
    return REMOVES if takes_out or name in _EXPIRING_FIELDS or name == "LSET" else 0
