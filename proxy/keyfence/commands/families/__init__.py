"""The rows of all commands, one module a family of commands (`commands.facts`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keyfence.commands.facts import Facts, together

from .connection import CONNECTION
from .generic import GENERIC
from .hashes import HASHES
from .key_space import KEY_SPACE
from .lists import LISTS
from .modules import MODULES
from .pubsub import PUBSUB
from .scripting import SCRIPTING
from .server import SERVER
from .sets import SETS
from .sorted_sets import SORTED_SETS
from .streams import STREAMS
from .strings import STRINGS

# By full name: `XGROUP CREATE`. A command without a row has nothing special.
FACTS: Final[Mapping[str, Facts]] = together(
    *(STRINGS, HASHES, LISTS, SETS, SORTED_SETS, STREAMS, GENERIC),
    *(KEY_SPACE, SCRIPTING, PUBSUB, CONNECTION, SERVER, MODULES),
)
