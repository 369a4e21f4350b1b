"""Finds how a command may remove or replace what a key holds.

Rule: the flags of the key spec decide; the tables here list only the commands whose flags say too little.

Servers flag a key `OW` if the command overwrites it, and `delete` if the command takes elements out.
"""

from __future__ import annotations

from .model import DELETES, OVERWRITES, REMOVES, REPLACES
from .table import KeySpec

# Commands whose arguments hold the new value.
_REPLACING = frozenset(
    {"GETSET", "HIMPORT SET", "MSET", "MSETEX", "MSETNX", "PSETEX", "SET", "SETEX", "SETNX"}
)
# Commands that let fields expire later.
_EXPIRING_FIELDS = frozenset({"HEXPIRE", "HEXPIREAT", "HGETEX", "HPEXPIRE", "HPEXPIREAT", "HSETEX"})
# Modules give all their writes the same flags. A loss that depends on an option counts as if the option were
# given: a path to the root of a JSON document, OVERRIDE of TDIGEST.MERGE.
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
_MERGING = frozenset({"CMS.MERGE", "TDIGEST.MERGE"})  # they overwrite the key of role 0


def losses_of(name: str, role: int, spec: KeySpec | None, *, takes_key: bool) -> int:
    """REMOVES, DELETES, REPLACES or OVERWRITES for the keys that spec number `role` finds; 0 for none.

    `takes_key`: the command only removes the whole key (then DELETE says so), or only changes a consumer
    group's bookkeeping.
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
