"""Commands of modules, and on vector sets.

Modules give all their writes the same flags. A loss that depends on an option counts as if the option were
given: a path to the root of a JSON document, OVERRIDE of TDIGEST.MERGE.
"""

from __future__ import annotations

from keyfence.commands.content import of_counted_keys, of_key
from keyfence.commands.facts import Facts, OnKey, each, together
from keyfence.commands.model import DELETES, OVERWRITES, REMOVES, REPLACES
from keyfence.commands.ttl import EDITS


def _losing(losses: int) -> Facts:
    return Facts(on_keys=(OnKey(losses=losses),))


_VECTORS = OnKey(types=("vectorset",))

MODULES = together(
    each("CF.DEL FT.SUGDEL TDIGEST.RESET TS.DEL", _losing(REMOVES)),
    each(
        "CMS.MERGE TDIGEST.MERGE",
        Facts(on_keys=(OnKey(content=of_counted_keys("result"), losses=OVERWRITES),)),
    ),
    each("FT.ADD FT.SAFEADD JSON.MSET JSON.SET", _losing(REPLACES)),
    each("JSON.ARRPOP JSON.ARRTRIM JSON.CLEAR", _losing(REMOVES)),
    each("JSON.DEL JSON.FORGET", _losing(DELETES | REMOVES)),
    {
        "FT.DEL": _losing(DELETES),
        "JSON.MERGE": _losing(REPLACES | REMOVES),
        # aggregated samples of the source, from now on
        "TS.CREATERULE": Facts(on_keys=(OnKey(), OnKey(content=of_key("result", 1)))),
        "VREM": Facts(on_keys=(_VECTORS._replace(ttl=EDITS, losses=REMOVES),)),
        "VSETATTR": Facts(on_keys=(_VECTORS._replace(ttl=EDITS),)),
    },
    each(
        "VADD VCARD VDIM VEMB VGETATTR VINFO VISMEMBER VLINKS VRANDMEMBER VRANGE VSIM",
        Facts(on_keys=(_VECTORS,)),
    ),
)
