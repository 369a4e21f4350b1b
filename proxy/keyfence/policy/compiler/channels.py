"""Channels in the order in which they decide, then what Redis itself publishes about keys.

Rule: as with keys, names under a channel's literal prefix are its own in any form.
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
    """The channels of a file."""
    channels: list[Target] = []
    for name, model in context.model.channels.items():
        path = ("channels", name)
        held = [0] * len(context.services)
        for names, field, bit in (
            (model.publishers, "publishers", WRITE),
            (model.subscribers, "subscribers", READ),
        ):
            for number in context.numbers(names, (*path, field)):
                held[number] |= bit
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
                    secrets=frozenset(context.secrets.keys() & {hole.name for hole in pattern.holes}),
                    bound=one.values,
                    written_by=scripts,
                )
            )
    return channels


def order_channels(channels: Iterable[Target], services: Sequence[str]) -> list[Target]:
    """Channels in the order in which they decide, after what Redis itself publishes about keys."""
    ordered = sorted(channels, key=lambda target: target.pattern.specificity)
    # As with keys, patterns are judged by rights: names under a rule's prefix are its own in any form.
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
