"""Compiles channels into targets, together with the channels on which Redis notifies about keys.

Rule: as with keys, a name that begins like a channel belongs to that channel even if it breaks its form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from keyfence.commands.model import READ, WRITE
from keyfence.policy.compiled.keyspace import KEYEVENT_NAMES, KEYSPACE_NAMES
from keyfence.policy.compiled.policy import Target
from keyfence.policy.compiled.tenants import head

from .bindings import bound_texts, held_by, holders, tenancy_of
from .context import CompilerContext
from .entries import named_scripts
from .prefixes import begins, fixed_parts, order
from .targets import secrets_behind


def build_channels(context: CompilerContext) -> list[Target]:
    """Returns the channels of a file as targets."""
    channels: list[Target] = []
    for name, model in context.model.channels.items():
        path = ("channels", name)
        held = context.given(model, {"publishers": WRITE, "subscribers": READ}, path)
        scripts = named_scripts(context, model.written_by, (*path, "written_by"))
        for one in bound_texts(context, model.channel, (*path, "channel")):
            pattern = context.pattern(one.text, (*path, "channel"))
            if pattern is None:
                continue
            whose = holders(context, one.values)
            reading = [rights & READ for rights in held]
            left = held_by(reading, reading, whose)
            channels.append(
                Target(
                    kind="channel",
                    name=name,
                    pattern=pattern,
                    rights=held_by(held, reading, whose),
                    tenancy=tenancy_of(context, pattern, left, (*path, "channel")),
                    denied=(0,) * len(context.services),
                    entry=None,
                    text=one.text,
                    secrets=context.secrets_in(pattern),
                    bound=one.values,
                    written_by=scripts,
                )
            )
    return channels


def order_channels(channels: Iterable[Target], services: Sequence[str]) -> list[Target]:
    """Returns channels in the order in which they decide; Redis' own notification channels come first."""
    ordered = sorted(channels, key=lambda target: target.pattern.specificity)
    # As with keys, a name that begins like a channel's belongs to it even if it breaks its form.
    heads = [(begins(head(one.pattern, one.tenancy)), one) for one in ordered]
    behind = secrets_behind(ordered)
    ordered += [
        dataclasses.replace(
            one,
            kind="malformed",
            pattern=beginning,
            secrets=behind[one.pattern.literal_prefix],
            standard=one.pattern,
        )
        for beginning, one in sorted(heads, key=lambda row: order(row[0]))
        if 0 < len(fixed_parts(beginning)) < len(one.pattern.parts)
    ]
    nothing = (0,) * len(services)
    return [
        Target("keyspace", "", KEYSPACE_NAMES, nothing, nothing, None, "__keyspace@…", frozenset()),
        Target("keyevent", "", KEYEVENT_NAMES, nothing, nothing, None, "__keyevent@…", frozenset()),
        *ordered,
    ]
