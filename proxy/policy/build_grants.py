"""Commands and grants: what is forbidden or allowed by name, to everybody or to one service, and until when.

Rule: a command's name or category is one that Redis or Valkey has, or a module's with a dot.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..commands.table import known_names
from .build_legacy import end_of
from .compiled import Grant
from .diagnostics import did_you_mean
from .draft import Draft
from .globs import Glob
from .permissions import EVERY

KNOWN_COMMANDS, KNOWN_CATEGORIES = known_names()


def build_selectors(
    draft: Draft, names: Iterable[str], path: tuple[str | int, ...], *, may_be_every: bool = True
) -> frozenset[str]:
    """Command names in upper case and @categories in lower case; each must be known. `*` is every command,
    where that may be said."""
    selectors = set()
    for index, name in enumerate(names):
        selector = name.lower() if name.startswith("@") else " ".join(name.upper().split())
        if selector == EVERY:
            if not may_be_every:
                message = "* stands under allow and in grants; forbid commands by name or @category"
                draft.error((*path, index), message)
            selectors.add(selector)
            continue
        if "." in selector:  # a module's command, which only the server that has it can tell
            selectors.add(selector)
            continue
        known = KNOWN_CATEGORIES if selector.startswith("@") else KNOWN_COMMANDS
        if selector not in known:
            kind = "category" if selector.startswith("@") else "command"
            near = did_you_mean(selector, known)
            draft.error((*path, index), f"{name!r} is no {kind} of Redis or Valkey{near}")
        selectors.add(selector)
    return frozenset(selectors)


def build_grants(draft: Draft, home: int) -> dict[int, tuple[Grant, ...]]:
    """What services may do beyond the default, by service number."""
    grants: dict[int, tuple[Grant, ...]] = {}
    for service, model in draft.model.grants.items():
        path = ("grants", service)
        number = draft.number(service, path, of_key=True)
        if number is None:
            continue
        selectors = build_selectors(draft, model.commands, (*path, "commands"))
        for index, key in enumerate(model.keys):
            hole = draft.placeholder_in(key)
            if hole:
                message = f"{key!r}: a grant's keys are globs, so {hole} would have to stand in the keys"
                draft.error((*path, "keys", index), f"{message}; write * in its place")
        texts = tuple(key.encode() for key in model.keys if key != "legacy")
        ends = end_of(model.until) if model.on_expiry == "refuse" else None
        channels = tuple(channel.encode() for channel in model.channels)
        grant = Grant(selectors, tuple(map(Glob, texts)), "legacy" in model.keys, texts, ends, home, channels)
        grants[number] = (grant,)
    return grants
