"""The checks of channels, and of patterns over channels.

Rule: a service needs the right on every channel that a pattern can match, and on every key that
notifications tell of. If that cannot be found out, the rule is broken.
"""

from __future__ import annotations

from collections.abc import Iterator

from keyfence.commands.model import READ, WRITE, Access, Channel, Streamed
from keyfence.commands.table import COMMANDS
from keyfence.policy.compiled.keyspace import INVALIDATIONS, KEYSPACE, NOTIFICATIONS
from keyfence.policy.compiled.policy import CompiledPolicy, Target, beginning_of
from keyfence.policy.compiled.scripts import Name
from keyfence.policy.reach.channels import Channels, key_of
from keyfence.policy.show import LAST_DATABASE
from keyfence.policy.verdict import Found

from .evaluation import Evaluation, Use
from .keys import KeyChecks
from .patterns import LESS, TOO_LONG, Patterns
from .permissions import Grants, Permissions

_BEYOND = "it reaches channels that the service may not use"
_TRACKING = COMMANDS[b"CLIENT"].subcommands[b"TRACKING"].command
_COUNTING = frozenset({"PUBSUB NUMSUB", "PUBSUB SHARDNUMSUB"})  # the number of a channel's subscribers


class ChannelChecks:
    """Checks the channels and databases that a command names, under one policy."""

    def __init__(
        self,
        policy: CompiledPolicy,
        grants: Grants,
        permissions: Permissions,
        keys: KeyChecks,
        patterns: Patterns,
    ) -> None:
        self._policy = policy
        self._grants = grants
        self._permissions = permissions
        self._keys = keys
        self._patterns = patterns
        self._channels = Channels(policy, patterns.keys)

    def target(self, name: bytes) -> Target | None:
        """Returns the target of one channel; None if there is none."""
        return self._channels.target(name)

    def _databases_hint(self) -> str:
        return f"the policy covers database {', '.join(map(str, sorted(self._policy.databases or ())))}"

    def check_database(self, evaluation: Evaluation, position: int, number: int) -> Iterator[Found]:
        admitted = self._policy.databases
        if admitted is not None and number not in admitted:
            shown = number if abs(number) <= LAST_DATABASE else "?"
            yield evaluation.plain(
                "database.forbidden",
                position,
                f"{evaluation.who()} may not {evaluation.name} database {shown}",
                self._databases_hint(),
            )

    def check(self, evaluation: Evaluation, channel: Channel) -> Iterator[Found | None]:
        """Checks that the caller has the right on every channel that a name can mean. A service that may
        track keys may also receive their changes."""
        hears = channel.name == INVALIDATIONS and not channel.publish
        if hears and not self._permissions.reason(evaluation.asker.service, _TRACKING):
            return
        if isinstance(channel.name, Streamed):
            begins = bytes(channel.name)
            if not self._is_granted_channel(evaluation, channel):
                yield self._no_channel(evaluation, channel._replace(name=begins, is_pattern=False), None)
            return
        service, budget, values = evaluation.asker.service, evaluation.budget, evaluation.asker.values
        database = self._channels.database_of(channel)
        leaves = False if database is not None else self._channels.leaves_databases(channel, budget)
        if database is not None:
            yield from self.check_database(evaluation, channel.position, database)
        elif leaves:
            yield evaluation.plain(
                "database.forbidden",
                channel.position,
                f"{evaluation.who()} may not {evaluation.name} channels "
                "that report on keys in other databases",
                self._databases_hint(),
            )
        key = key_of(channel)
        if key is not None:
            yield from self._keys.access(Use(evaluation, Access(channel.position, key, READ), None))
            return
        is_granted = self._is_granted_channel(evaluation, channel)
        admitted = is_granted or self._channels.admits(service, channel, budget, values)
        if not admitted and evaluation.name in _COUNTING:  # PUBLISH answers the number too
            speaks = channel._replace(publish=True)
            admitted = self._channels.admits(service, speaks, budget, values)
        if not admitted or leaves is None:
            target = None if channel.is_pattern else self._channels.target(channel.name)
            is_told = admitted is not None and leaves is not None
            yield self._no_channel(evaluation, channel, target, is_told=is_told)

    def check_of_script(
        self, evaluation: Evaluation, position: int, channel: Name, by: str
    ) -> Iterator[Found]:
        one = Channel(position, channel.text, True, channel.is_pattern)
        if self._is_granted_channel(evaluation, one):
            return
        service, budget, values = evaluation.asker.service, evaluation.budget, evaluation.asker.values
        if channel.is_pattern:
            admitted = self._channels.covers(service, channel.text, WRITE, budget, values, by)
        else:
            admitted = self._channels.admits(service, one, budget, values, by)
        if not admitted:
            target = None if channel.is_pattern else self._channels.target(channel.text)
            yield self._no_channel(evaluation, one, target, is_told=admitted is not None)

    def _is_granted_channel(self, evaluation: Evaluation, channel: Channel) -> bool:
        """Whether a grant covers a channel, or everything that a pattern can match. Keyspace notifications
        also need the right to read the keys."""
        grants = [one for one in self._grants.of(evaluation.asker.service, evaluation.name) if one.channels]
        if not grants:
            return False
        everywhere = set(range(len(self._policy.homes)))
        if channel.is_pattern or isinstance(channel.name, Streamed):
            if {grant.home for grant in grants if grant.covers_channels(channel.name)} != everywhere:
                return False
            return channel.publish or self._hears_only_own(evaluation, channel.name)
        granting = {grant.home for grant in grants if grant.covers_channel(channel.name)}
        target = self._channels.target(channel.name)
        if target is None or target.kind in ("keyspace", "keyevent"):
            is_told = not channel.publish and target is not None and target.kind == "keyevent"
            return granting >= self._grants.unclaimed_by and (not is_told or self._reads_all(evaluation))
        return target.home in granting

    def _hears_only_own(self, evaluation: Evaluation, pattern: bytes) -> bool:
        """Whether a pattern matches no notifications about keys that the service may not read."""
        beginning = beginning_of(pattern)
        apart = not (beginning.startswith(NOTIFICATIONS) or NOTIFICATIONS.startswith(beginning))
        return apart or self._reads_all(evaluation)

    def _reads_all(self, evaluation: Evaluation) -> bool:
        return self._patterns.reach_only_own(evaluation, evaluation.name, b"*", READ) is True

    def _no_channel(
        self, evaluation: Evaluation, channel: Channel, target: Target | None, *, is_told: bool = True
    ) -> Found:
        """Makes the violation. Not `is_told`: it takes too long to find out what the pattern reaches."""
        position, name, publish, is_pattern = channel

        def words() -> tuple[str, str]:
            shown = evaluation.wording.shown(name, target)
            message = f"{evaluation.who()} may not {evaluation.name} {shown}"
            if not is_told:
                return f"{message}: {TOO_LONG}", LESS
            if is_pattern and name.startswith(KEYSPACE + b"*"):
                return message, "name the database: the * also matches what comes before a later __: in a key"
            if publish and _is_for_scripts(evaluation.asker.service, target):
                message += ": only scripts publish there"
            if is_pattern:
                return message, _BEYOND
            return message, self._channel_hint(evaluation, channel, target)

        rule = "channel.write" if publish else "channel.read"
        return evaluation.violation(rule, position, name, target, words)

    def _channel_hint(self, evaluation: Evaluation, channel: Channel, target: Target | None) -> str:
        service, publish = evaluation.asker.service, channel.publish
        right, verb = (WRITE, "publishers") if publish else (READ, "subscribers")
        who = target.names_with(right, self._policy.services) if target is not None else []
        if target is not None and target.kind in ("keyspace", "keyevent"):
            return (
                "only Redis publishes there"
                if publish
                else "it reports on keys that the service may not read"
            )
        if target is not None and target.kind == "malformed":
            return f"the form is {target.text}"
        if target is not None and publish and _is_for_scripts(service, target):
            return f"it is written by {', '.join(sorted(target.written_by))}"
        if (
            target is not None
            and target.tenancy is not None
            and target.rights[service] & ~target.denied[service] & right
        ):
            return self._keys.own_hint(evaluation, channel.name, target)
        if target is not None:
            return evaluation.wording.who_may(verb, who)
        if channel.name == INVALIDATIONS and not publish:
            return "it is for services that may use CLIENT TRACKING"
        return "no channel of the policy covers it"


def _is_for_scripts(service: int, target: Target | None) -> bool:
    """Whether a service may publish on a channel only by certain scripts, and has used none of these."""
    return (
        target is not None
        and target.kind == "channel"
        and bool(target.written_by)
        and bool(target.rights[service] & WRITE)
    )
