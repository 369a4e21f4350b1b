"""Rights on Pub/Sub channels.

Rule: a channel of keyspace notifications needs the right to read the keys that it names. `__keyspace@n__:k`
is a read of `k`; a channel that can name any key (`__keyevent@n__:…`, a wide pattern) is a read of every key
that it can name.
"""

from __future__ import annotations

import re

from keyfence.commands.model import READ, WRITE, Channel
from keyfence.policy.budget import Budget
from keyfence.policy.compiled.keyspace import KEYSPACE_BEGINNING, NOTIFICATIONS, notifications_elsewhere
from keyfence.policy.compiled.policy import CompiledPolicy, Target, beginning_of
from keyfence.policy.compiled.tenants import Place, Values
from keyfence.policy.patterns.globs import Glob, positions_after

from .reach import MAX_GLOB, NOWHERE, Holds, Reach, Remembered, holding

_KEYEVENT_NAME = re.compile(rb"__keyevent@([0-9]+)__:.*", re.DOTALL)
# The beginning of a pattern after which only a pattern of keys follows.
_NAMED_DATABASE = re.compile(rb"__keyspace@[0-9]+__:")
_KEYSPACE_NAME = re.compile(rb"__keyspace@([0-9]+)__:(.*)", re.DOTALL)


def key_of(channel: Channel) -> bytes | None:
    """Returns the key that a subscriber of the channel reads; None if there is none."""
    if channel.publish or channel.is_pattern:
        return None
    match = _KEYSPACE_NAME.fullmatch(channel.name)
    return match[2] if match else None


def may_notify(channel: Channel) -> bool:
    """Whether a subscriber of the channel, or pattern, may be notified about keys."""
    if channel.publish:
        return False
    begins = beginning_of(channel.name) if channel.is_pattern else channel.name
    return begins.startswith(NOTIFICATIONS) or (channel.is_pattern and NOTIFICATIONS.startswith(begins))


class Channels:
    """The channels of one policy, of whose keys `keys` knows the reach."""

    def __init__(self, policy: CompiledPolicy, keys: Reach) -> None:
        self._policy = policy
        self._keys = keys
        self._reach = Reach(policy.channel_classifier, policy.channels)
        self._leaving: Remembered[tuple[str, bytes], bool | None] = Remembered()
        self._elsewhere = [] if policy.databases is None else notifications_elsewhere(policy.databases)

    def target(self, name: bytes) -> Target | None:
        """Returns the target of one channel; None if there is none."""
        index = self._policy.channel_classifier.first(name)
        return self._policy.channels[index] if index >= 0 else None

    def database_of(self, channel: Channel) -> int | None:
        """Returns the database of the keys that a channel reports on; None for other channels and for
        patterns."""
        if channel.publish or channel.is_pattern:
            return None
        match = _KEYSPACE_NAME.fullmatch(channel.name) or _KEYEVENT_NAME.fullmatch(channel.name)
        return int(match[1][:9]) if match else None

    def leaves_databases(self, channel: Channel, budget: Budget) -> bool | None:
        """Whether a pattern matches notifications from a database that the policy does not admit; None if
        that takes too long to find out."""
        if not channel.is_pattern or not self._elsewhere:
            return False
        if len(channel.name) > MAX_GLOB:
            return None
        glob = channel.name
        return self._leaving.get(("", glob), budget, lambda within: self._leaves(Glob(glob), within))

    def _leaves(self, glob: Glob, budget: Budget) -> bool | None:
        for beginning in self._elsewhere:
            positions = positions_after(glob, beginning, budget)
            if positions is None or positions:
                return None if positions is None else True
        return False

    def admits(
        self, service: int, channel: Channel, budget: Budget, values: Values = (), by: str = ""
    ) -> bool | None:
        """Whether the service may use the channel, or everything that the pattern can match; None if that
        takes too long to find out. `by` is the registered script that publishes, "" for a plain command."""
        if channel.is_pattern:
            return self.covers(service, channel.name, READ, budget, values)
        target = self.target(channel.name)
        if target is None:
            return False
        if target.kind == "keyevent" and not channel.publish:
            return self._reads_every_key(service, budget)
        if target.kind == "malformed" or (channel.publish and not target.is_written_by(by)):
            return False
        return bool(target.held(service, channel.name, values) & (WRITE if channel.publish else READ))

    def covers(
        self, service: int, glob: bytes, right: int, budget: Budget, values: Values = (), by: str = ""
    ) -> bool | None:
        """Whether the service may use every channel that the glob can match; None if that takes too long to
        find out. `by` is as for `admits`."""
        listens = right == READ
        own = self._reach.own_places(glob, values)

        def holds(target: Target) -> bool:
            if listens and target.kind == "keyspace":
                return True  # decided by its keys, below
            if listens and target.kind == "keyevent":
                return self._reads_every_key(service, Budget()) is True
            held = target.rights[service]
            if target.tenancy is not None:
                held = target.tenancy.held(service, target.rights, own)
            return bool(held & right) and (listens or target.is_written_by(by))

        covered = self._reach.covers(glob, holds, (service, right, by), budget, own=own)
        if not covered or not listens:
            return covered
        key = _NAMED_DATABASE.match(glob)
        own = self._keys.own_places(glob[key.end() :], values) if key is not None else NOWHERE
        return self._keys.covers(
            glob,
            self._reads(service, own),
            (service, READ, ""),
            budget,
            behind=KEYSPACE_BEGINNING,
            own=own,
        )

    def _reads_every_key(self, service: int, budget: Budget) -> bool | None:
        return self._keys.covers(b"*", self._reads(service, NOWHERE), (service, READ, ""), budget)

    def _reads(self, service: int, own: frozenset[Place]) -> Holds:
        """Returns a function that says whether a service may read all keys of a target, if these have the
        caller's own value at the places `own`. Of its grants, those of every command count."""
        return holding(service, READ, self._policy.grants_of(service, ""), own)
