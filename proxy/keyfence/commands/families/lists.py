"""Commands on lists."""

from __future__ import annotations

from keyfence.commands.cache_forms import ELEMENTS, Layout
from keyfence.commands.content import of_key
from keyfence.commands.facts import KEYS_ONLY, Connection, Facts, OnKey, each, together
from keyfence.commands.model import REMOVES
from keyfence.commands.ttl import EDITS

_ELEMENTS = Layout(content=ELEMENTS, content_at=2)
_MOVES = Facts(on_keys=(OnKey(), OnKey(content=of_key("elements", 1))))

LISTS = together(
    each("BLMOVE BRPOPLPUSH", _MOVES._replace(decides=KEYS_ONLY, connection=Connection.BLOCKS)),
    each("LMOVE RPOPLPUSH", _MOVES._replace(decides=KEYS_ONLY)),
    each("BLMOVEM LMOVEM", _MOVES),
    each("BLMPOP BLPOP BRPOP", Facts(decides=KEYS_ONLY, connection=Connection.BLOCKS)),
    each("LPUSH RPUSH", Facts(layout=_ELEMENTS)),
    each("LPUSHX RPUSHX", Facts(on_keys=(OnKey(EDITS),), grows=True, layout=_ELEMENTS)),
    {
        "LINSERT": Facts(
            on_keys=(OnKey(EDITS),),
            grows=True,
            layout=Layout(content=ELEMENTS, content_at=4, is_single=True),
        ),
        "LMPOP": Facts(decides=KEYS_ONLY),
        "LSET": Facts(
            on_keys=(OnKey(EDITS, losses=REMOVES),),
            layout=Layout(content=ELEMENTS, content_at=3, is_single=True),
        ),
    },
)
