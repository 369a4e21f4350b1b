"""The names that a shape or an entry can stand for, as samples that answer for all of them under one policy.

Rule: no sample is left out. A shape or an entry has no samples if some of its names are not known well
enough: a rule that asks about them cannot be decided then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keyfence.policy.compiled.policy import CompiledPolicy, Target
from keyfence.policy.enforcement.waiver_keys import keys_of_shape, waived_keys
from keyfence.policy.patterns.automaton import Classifier
from keyfence.policy.patterns.set_operations import TooLarge, joint_samples, uncovered
from keyfence.shapes.shapes import Placeholder, parsed

# Placeholders for text of any length. Of a name that is too long, the evaluator knows the beginning only, so
# it has no target, whatever the policy says of shorter ones.
_ENDLESS = frozenset({"more", "bytes"})


class Sample(NamedTuple):
    """A name, and the target that it belongs to, with all names for which it answers."""

    name: bytes
    target: Target | None


def keys_of(policy: CompiledPolicy, shape: str) -> list[Sample]:
    """A key of each target that keys of a shape may belong to; none if that is not known."""
    return _samples(shape, policy.targets, policy.classifier)


def keys_of_entry(policy: CompiledPolicy, name: str) -> list[Sample]:
    """A key of each target of an entry or scope, its malformed keys included; none if that is not known."""
    found: list[Sample] = []
    for at, target in enumerate(policy.targets):
        if target.name != name:
            continue
        key = target.pattern.example()
        if policy.target(key) is not target:
            try:
                own = uncovered(target.pattern, [one.pattern for one in policy.targets[:at]])
            except TooLarge:
                return []
            if own is None:
                continue  # all its keys belong to other targets
            if policy.target(own) is not target:
                return []
            key = own
        found.append(Sample(key, target))
    return found


def channels_of(policy: CompiledPolicy, shape: str) -> list[Sample]:
    """A channel of each target that channels of a shape may belong to; none if that is not known."""
    return _samples(shape, policy.channels, policy.channel_classifier)


def only_name_of(shape: str) -> bytes | None:
    """The one name that a shape stands for; None if it stands for several."""
    parts = parsed(shape)
    if not keys_of_shape(shape) or any(isinstance(part, Placeholder) for part in parts):
        return None
    return "".join(map(str, parts)).encode("utf-8", "surrogateescape")


def _samples(shape: str, targets: Sequence[Target], classifier: Classifier) -> list[Sample]:
    keys = keys_of_shape(shape)
    is_endless = any(isinstance(part, Placeholder) and part.kind in _ENDLESS for part in parsed(shape))
    language = waived_keys((keys,)) if keys and not is_endless else None
    if language is None:
        return []
    automaton = classifier.automaton
    try:
        samples = joint_samples(language, automaton)
    except TooLarge:
        return []
    found: list[Sample] = []
    for (left, right), name in samples.items():
        if left < 0:
            continue
        members = automaton.sets[right] if right >= 0 else ()
        for target in _by_length(targets, members):
            known = (name,) if target is None else (name, target.pattern.example())
            ours = [one for one in known if _target(one, targets, classifier) is target]
            if not ours:
                return []
            found.append(Sample(ours[0], target))
    return found


def _target(name: bytes, targets: Sequence[Target], classifier: Classifier) -> Target | None:
    index = classifier.first(name)
    return targets[index] if index >= 0 else None


def _by_length(targets: Sequence[Target], members: Sequence[int]) -> Iterator[Target | None]:
    """The targets among which the length of a name decides, of those that cover its characters."""
    for index in members:
        yield targets[index]
        if not targets[index].pattern.needs_verification:
            return
    yield None
