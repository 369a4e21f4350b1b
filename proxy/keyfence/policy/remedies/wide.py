"""Remedies for glob patterns: a grant of exactly the pattern, or a right on each channel it reaches.

Rule: no proposal is wider than the command's own patterns, and the evaluator accepts each proposal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from keyfence.commands.model import READ, Channel
from keyfence.commands.table import KNOWN_COMMANDS
from keyfence.policy.compiled.permissions import EVERY
from keyfence.policy.compiled.policy import CompiledPolicy, Grant, Target, beginning_of
from keyfence.policy.patterns.globs import Glob
from keyfence.policy.wording.masking import shown_in

from .remedy import Proposal, Proposals, Question
from .values import hint_proposals

_LEGACY = b"legacy"  # has a special meaning among a grant's keys
MAX_LISTED = 16  # channels that one remedy lists


def by_grant(
    question: Question, text: str, keys: Sequence[bytes] = (), channels: Sequence[bytes] = ()
) -> Proposal:
    """Proposes to grant the command on exactly these patterns, if it then passes.

    A service has only one grant. An existing grant is not widened.
    """
    policy, name = question.policy, question.name
    is_known = name in KNOWN_COMMANDS or "." in name
    is_writable = all(_is_text(policy, glob) for glob in (*keys, *channels))
    if not is_known or not is_writable or policy.grants.get(question.service):
        return Proposal(text)
    grants = tuple(
        Grant(
            frozenset({name}),
            tuple(map(Glob, keys)),
            legacy=False,
            texts=tuple(keys),
            home=home,
            channels=tuple(channels),
        )
        for home in range(len(policy.homes))
    )
    if not question.would_pass(
        dataclasses.replace(policy, grants={**policy.grants, question.service: grants})
    ):
        return Proposal(text)
    patterns = {"keys": [glob.decode() for glob in keys], "channels": [glob.decode() for glob in channels]}
    lines = {section: globs for section, globs in patterns.items() if globs}
    each = " in each file" if len(policy.homes) > 1 else ""
    return Proposal(
        f"{text}; or grant it{each}", add={"grants": {question.who: {"commands": [name], **lines}}}
    )


def _is_text(policy: CompiledPolicy, glob: bytes) -> bool:
    """Whether a grant can hold the pattern unchanged, and the pattern shows no secret."""
    if not glob or not glob.isascii() or b"<" in glob or glob == _LEGACY:
        return False
    return glob.decode().isprintable() and shown_in(policy, glob, None) == glob.decode()


def channel_pattern_proposals(question: Question, channel: Channel) -> Proposals:
    """Yields a channel that the pattern reaches without right, and what would permit the pattern."""
    found = next((name for name in _reached(question, channel.name) if _is_refused(question, name)), None)
    if found is not None:
        shown = shown_in(question.policy, found, None) if found else "the channel with the empty name"
        yield Proposal(f"it also reaches {shown}, where {question.who} may not listen")
    else:
        yield from hint_proposals(question)
    listed = _list_subscriber(question, channel.name)
    if listed is not None:
        yield listed
        return
    every = EVERY.encode()
    keys = [every] if channel.name == every else []  # it also reaches the notifications of every key
    yield by_grant(question, "ask for a narrower pattern", keys, [channel.name])


def _list_subscriber(question: Question, glob: bytes) -> Proposal | None:
    """Proposes to list the service as a subscriber of exactly the channels that the pattern reaches; None if
    that is not enough."""
    policy, begins = question.policy, beginning_of(glob)
    near: dict[str, None] = {}
    for one in policy.channels:
        prefix = one.pattern.literal_prefix
        may_reach = prefix.startswith(begins) or begins.startswith(prefix)
        if one.kind == "channel" and may_reach and not one.rights[question.service] & READ:
            if one.bound or one.tenancy is not None:
                return None
            near[one.name] = None
    if not near or len(near) > MAX_LISTED or not question.would_pass(_with_subscriber(question, near)):
        return None
    for name in list(near):
        others = {other: None for other in near if other != name}
        if question.would_pass(_with_subscriber(question, others)):
            near = others
    places = "channel" if len(near) == 1 else "channels"
    text = f"list {question.who} under subscribers of the {places} {', '.join(near)}"
    return Proposal(text, add={"channels": {name: {"subscribers": [question.who]} for name in near}})


def _with_subscriber(question: Question, names: Collection[str]) -> CompiledPolicy:
    """Returns the policy with the service as a subscriber of these channels."""

    def rights(target: Target) -> tuple[int, ...]:
        held = list(target.rights)
        held[question.service] |= READ
        return tuple(held)

    channels = (
        dataclasses.replace(one, rights=rights(one)) if one.name in names else one
        for one in question.policy.channels
    )
    return dataclasses.replace(question.policy, channels=tuple(channels))


def _reached(question: Question, glob: bytes) -> Iterator[bytes]:
    """Yields some channels that the pattern matches."""
    policy, pattern = question.policy, Glob(glob)
    notified = (
        b"__keyspace@0__:" + one.pattern.example()
        for one in policy.targets
        if one.kind in ("entry", "scope", "legacy") and not one.secrets
    )
    examples = (one.pattern.example() for one in policy.channels if not one.secrets)
    made = (glob.replace(b"*", b"x").replace(b"?", b"x"), glob.replace(b"*", b"xyz0").replace(b"?", b"0"))
    names = (b"", b"__keyevent@0__:set", b"__keyspace@0__:x", *examples, *notified, *made)
    return (name for name in names if pattern.matches(name))


def _is_refused(question: Question, name: bytes) -> bool:
    return bool(question.evaluator.decide(question.service, [b"SUBSCRIBE", name], question.values).violations)
