"""Where commands with several keys, a script, a pattern or a channel have them: for the decision cache.

Rule: positions count from the command's name. The decision cache leaves a command without a layout to the
evaluator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from .cache_forms import Layout
from .extract import ONE_KEY
from .facts import KEYS_ONLY
from .model import Command
from .table import COMMANDS, KeySpec


class CallLayout(NamedTuple):
    """Where such a command has its keys and channels, and which other arguments decide about it."""

    command: Command
    keys: tuple[KeySpec, ...]  # each is a run of arguments with equal effects
    channel_at: int  # 0: it names none
    decides: tuple[int, int]  # as in `facts.Facts`
    layout: Layout  # what it writes behind each key


def _layouts() -> dict[bytes, CallLayout]:
    """All layouts by the command's name, in upper and in lower case."""
    several = {one.command.name for one in ONE_KEY.values() if one.may_have_more and not one.options_decide}
    found = {}
    for name, row in COMMANDS.items():
        decides = KEYS_ONLY if row.command.name in several else row.facts.decides
        if decides is not None:
            keys = tuple(spec for spec in row.specs if spec.is_key)
            layout = CallLayout(row.command, keys, row.facts.channel_at, decides, row.facts.layout)
            found[name] = found[name.lower()] = layout
    return found


CALL_LAYOUTS: Final[Mapping[bytes, CallLayout]] = _layouts()
