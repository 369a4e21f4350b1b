"""Commands on Pub/Sub channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keyfence.commands.facts import KEYS_ONLY, Argv, Connection, Facts, Named, each, together
from keyfence.commands.model import Channel, sequence
from keyfence.commands.resources import Resources


def _publish(argv: Argv) -> Resources:
    """PUBLISH, SPUBLISH channel message."""
    return Resources(channels=tuple(Channel(1, name, True, False) for name in argv[1:2]))


def _channels_from(first: int, *, is_pattern: bool = False) -> Callable[[Argv], Resources]:
    """All arguments from this one on, as channels to subscribe to, or to count the subscribers of."""

    def find(argv: Argv) -> Resources:
        return Resources(channels=_channels(argv, range(first, len(argv)), is_pattern))

    return find


def _channels(argv: Argv, found: range, is_pattern: bool) -> Sequence[Channel]:
    return sequence(len(found), lambda: (Channel(i, argv[i], False, is_pattern) for i in found), [found])


def _active_channels(argv: Argv) -> Resources:
    """PUBSUB CHANNELS, SHARDCHANNELS [pattern]: the reply names the channels that have subscribers, all of
    them without a pattern. Channel names can contain keys (`__keyspace@0__:key`)."""
    pattern = Channel(2, argv[2], False, True) if len(argv) > 2 else Channel(0, b"*", False, True)
    return Resources(channels=(pattern,))


_PUBLISHING = Facts(
    named=Named(_publish, "channels", "a channel in 1"),
    decides=KEYS_ONLY,
    channel_at=1,
    connection=Connection.ANY,
)
_SUBSCRIBING = Facts(
    named=Named(_channels_from(1), "channels", "channels from 1 on"), connection=Connection.FOLLOWED
)
_LISTING = Facts(
    named=Named(_active_channels, "channels", "the active channels that the pattern in 2 admits, or all"),
    connection=Connection.ANY,
)
_COUNTING = Facts(
    named=Named(_channels_from(2), "channels", "the channels from 2 on"), connection=Connection.ANY
)

PUBSUB = together(
    each("PUBLISH SPUBLISH", _PUBLISHING),
    each("SSUBSCRIBE SUBSCRIBE", _SUBSCRIBING),
    each("PUBSUB|CHANNELS PUBSUB|SHARDCHANNELS", _LISTING),
    each("PUBSUB|NUMSUB PUBSUB|SHARDNUMSUB", _COUNTING),
    each("PUNSUBSCRIBE SUNSUBSCRIBE UNSUBSCRIBE", Facts(connection=Connection.FOLLOWED)),
    {
        "PSUBSCRIBE": Facts(
            named=Named(_channels_from(1, is_pattern=True), "channels", "channel patterns from 1 on"),
            connection=Connection.FOLLOWED,
        ),
        "PUBSUB HELP": Facts(connection=Connection.OWN),
        "PUBSUB NUMPAT": Facts(connection=Connection.ANY),
    },
)
