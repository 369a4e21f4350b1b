"""Commands on sets."""

from __future__ import annotations

from keyfence.commands.cache_forms import ELEMENTS, Layout
from keyfence.commands.content import member_at, of_keys_from
from keyfence.commands.facts import KEYS_ONLY, Facts, OnKey, each, together
from keyfence.commands.ttl import STORES

_STORES = Facts(on_keys=(OnKey(STORES, of_keys_from("elements", 2)),), decides=KEYS_ONLY)

SETS = together(
    each("SDIFFSTORE SINTERSTORE SUNIONSTORE", _STORES),
    {
        "SADD": Facts(layout=Layout(content=ELEMENTS, content_at=2)),
        "SINTERCARD": Facts(decides=KEYS_ONLY),
        "SMOVE": Facts(on_keys=(OnKey(), OnKey(content=member_at(1))), decides=KEYS_ONLY),
    },
)
