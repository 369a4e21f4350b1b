"""Which verdicts depend on more than a stored command shows: on its caller, or on a script's arguments.

Rule: a doubt counts as a dependence.
"""

from __future__ import annotations

from keyfence.commands.model import Channel, Script, Touches
from keyfence.policy.compiled.keyspace import NOTIFICATIONS
from keyfence.policy.compiled.policy import CompiledPolicy


def makes_keys_of_arguments(policy: CompiledPolicy, script: Script | None) -> bool:
    """Returns whether a registered script builds keys from its arguments, which no log holds."""
    registration = policy.registration(script) if script is not None else None
    if registration is None:
        return False
    templates = [*(template for template, _ in registration.touches), *registration.publishes]
    own = [f"<{name}>" for name, _ in registration.bound]
    return any(text in template.text for template in templates for text in ("<ARGV.", *own))


def depends_on_the_caller(policy: CompiledPolicy, touches: Touches) -> bool:
    """Returns whether the verdict depends on the caller beyond the command's keys.

    A log holds no callers. The replay assumes that keys belong to the caller, but patterns name no key, and
    neither do channels.
    """
    if not policy.bindings:
        return False
    return touches.pattern is not None or any(_has_an_owner(policy, one) for one in touches.channels)


def _has_an_owner(policy: CompiledPolicy, channel: Channel) -> bool:
    """Whether only some callers may use a channel, or any of those that a pattern matches."""
    if channel.is_pattern or channel.name.startswith(NOTIFICATIONS):
        return True
    index = policy.channel_classifier.first(channel.name)
    return index >= 0 and policy.depends_on_caller(policy.channels[index])
