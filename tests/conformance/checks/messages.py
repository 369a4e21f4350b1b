"""Publish and subscribe."""

from __future__ import annotations

from tests.conformance.check import all_same, check, holds, same, supported
from tests.conformance.trial import Trial
from tests.conformance.wire import PONG, Connection, array, bulk, bulks, integer, push, shown, value

GROUP = "publish and subscribe"


def _subscribed(word: str, channel: str, count: int) -> bytes:
    return array(bulk(word), bulk(channel), integer(count))


def _published(one: Connection, *words: str) -> None:
    """The number of receivers is not compared: in a cluster it counts those of one node."""
    came = one.ask(*words)
    holds(came.startswith(b":"), f"a number for {words[0]}", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """A subscriber gets what is published."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    _published(other, "PUBLISH", channel, "hello\r\n")
    same(one.reply(), bulks("message", channel, "hello\r\n"))


@check(GROUP)
def _(trial: Trial) -> None:
    """PSUBSCRIBE gets what is published to channels of its pattern."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    same(one.ask("PSUBSCRIBE", f"{channel}*"), _subscribed("psubscribe", f"{channel}*", 1))
    _published(other, "PUBLISH", f"{channel}.a", "hello")
    same(one.reply(), bulks("pmessage", f"{channel}*", f"{channel}.a", "hello"))


@check(GROUP)
def _(trial: Trial) -> None:
    """SSUBSCRIBE gets what SPUBLISH sends, whatever the hash slot."""
    other = trial.connect()
    for number in range(6):
        one, channel = trial.connect(), trial.name(f"shard{number}")
        same(one.ask("SSUBSCRIBE", channel), _subscribed("ssubscribe", channel, 1))
        _published(other, "SPUBLISH", channel, "hello")
        same(one.reply(), bulks("smessage", channel, "hello"))


@check(GROUP)
def _(trial: Trial) -> None:
    """Two thousand messages come in order, none twice, none lost."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    came = other.pipeline([("PUBLISH", channel, number) for number in range(2000)])
    holds(all(each.startswith(b":") for each in came), "a number for each PUBLISH", came[-1])
    all_same(one.replies(2000), [bulks("message", channel, number) for number in range(2000)])


@check(GROUP)
def _(trial: Trial) -> None:
    """Each of twenty subscribers gets each message."""
    other, channel = trial.connect(), trial.name("news")
    subscribers = [trial.connect() for _ in range(20)]
    for one in subscribers:
        same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    for text in "ab":
        _published(other, "PUBLISH", channel, text)
    for one in subscribers:
        all_same(one.replies(2), [bulks("message", channel, text) for text in "ab"])


@check(GROUP)
def _(trial: Trial) -> None:
    """UNSUBSCRIBE ends the messages, and the client is a plain one again."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    one.send("SUBSCRIBE", channel, f"{channel}2")
    wanted = [_subscribed("subscribe", channel, 1), _subscribed("subscribe", f"{channel}2", 2)]
    all_same(one.replies(2), wanted)
    same(one.ask("UNSUBSCRIBE", channel), _subscribed("unsubscribe", channel, 1))
    _published(other, "PUBLISH", channel, "lost")
    same(one.ask("UNSUBSCRIBE", f"{channel}2"), _subscribed("unsubscribe", f"{channel}2", 0))
    same(one.ask("SET", key := trial.key(), 1), b"+OK\r\n")
    same(one.ask("GET", key), bulk(1))


@check(GROUP)
def _(trial: Trial) -> None:
    """With RESP2 a subscriber may PING, and other commands get an error."""
    one, channel = trial.connect(), trial.name("news")
    same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    same(one.ask("PING"), bulks("pong", ""))
    for key in trial.keys(12):
        came = one.ask("GET", key)
        holds(came.startswith(b"-ERR "), "an error ERR", came if came.startswith(b"-") else shown(came))


@check(GROUP)
def _(trial: Trial) -> None:
    """With RESP3 a subscriber may run any command, and gets pushes."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    supported(one.ask("HELLO", 3))
    same(one.ask("SUBSCRIBE", channel), push(bulk("subscribe"), bulk(channel), integer(1)))
    for key in trial.keys(12):
        same(one.ask("INCR", key), integer(1))
    _published(other, "PUBLISH", channel, "hello")
    same(one.reply(), push(bulk("message"), bulk(channel), bulk("hello")))
    same(one.ask("PING"), PONG)


@check(GROUP)
def _(trial: Trial) -> None:
    """A subscription ends with its client."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    same(other.ask("PUBSUB", "NUMSUB", channel), array(bulk(channel), integer(1)))
    one.close()
    gone = array(bulk(channel), integer(0))
    trial.until(
        lambda: other.ask("PUBSUB", "NUMSUB", channel) == gone,
        "no subscriber when its client has gone",
        lambda: "still a subscriber after 3 s",
    )


@check(GROUP)
def _(trial: Trial) -> None:
    """PUBSUB CHANNELS lists the channels of all subscribers."""
    other, word = trial.connect(), trial.name("news")
    channels = [f"{word}{number}" for number in range(6)]
    for channel in channels:
        same(trial.connect().ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    came = other.ask("PUBSUB", "CHANNELS", f"{word}*")
    supported(came)
    found = sorted(value(came)) if came.startswith(b"*") else came
    holds(found == [each.encode() for each in channels], f"{word}0 to 5", came)


@check(GROUP)
def _(trial: Trial) -> None:
    """A message that is published in a transaction arrives."""
    one, other, channel = trial.connect(), trial.connect(), trial.name("news")
    same(one.ask("SUBSCRIBE", channel), _subscribed("subscribe", channel, 1))
    came = other.pipeline([("MULTI",), ("PUBLISH", channel, "a"), ("EXEC",)])
    all_same(came[:2], [b"+OK\r\n", b"+QUEUED\r\n"])
    same(one.reply(), bulks("message", channel, "a"))
