"""Compiles grants: what a service may do beyond its rights, and until when.

Rule: a grant names a service of the policy, and commands that `build_selectors` knows.
"""

from __future__ import annotations

from keyfence.policy.compiled.policy import Grant
from keyfence.policy.patterns.globs import Glob

from .commands import build_selectors
from .context import CompilerContext
from .legacy import end_of


def build_grants(context: CompilerContext, home: int) -> dict[int, tuple[Grant, ...]]:
    """Returns the grants by service number."""
    grants: dict[int, tuple[Grant, ...]] = {}
    for service, model in context.model.grants.items():
        path = ("grants", service)
        number = context.number(service, path, of_key=True)
        if number is None:
            continue
        selectors = build_selectors(context, model.commands, (*path, "commands"), may_be_own=True)
        for index, key in enumerate(model.keys):
            hole = context.placeholder_in(key)
            if hole:
                message = f"{key!r}: a grant's keys are globs, so {hole} means just this text"
                context.error((*path, "keys", index), f"{message}; write * in its place")
        texts = tuple(key.encode() for key in model.keys if key != "legacy")
        ends = end_of(model.until) if model.on_expiry == "refuse" else None
        channels = tuple(channel.encode() for channel in model.channels)
        grant = Grant(selectors, tuple(map(Glob, texts)), "legacy" in model.keys, texts, ends, home, channels)
        grants[number] = (grant,)
    return grants
