"""SUBSCRIBE and related commands, in both protocols."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.pairs import Pair, step

a, b, c = partial(step, "a"), partial(step, "b"), partial(step, "c")


def test_messages_between_replies(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE news"),
        b("PUBLISH news 1", "PUBLISH other 2"),
        a("PING"),
        a("PING hello"),
        b("PUBLISH news 3"),
        a("UNSUBSCRIBE news"),
        b("PUBLISH news 4"),
        a("GET k"),
    )


def test_several_names_at_once(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE x y z x"),
        b("PUBLISH y 1", "PUBLISH x 1"),
        a("UNSUBSCRIBE x nosuch"),
        b("PUBLISH x 2"),
        a("UNSUBSCRIBE"),
        a("UNSUBSCRIBE"),
        b("PUBLISH y 2"),
        a("PING"),
    )


def test_patterns(pair: Pair) -> None:
    pair.same(
        a("PSUBSCRIBE n* *s"),
        b("PUBLISH news 1"),
        a("SUBSCRIBE news"),
        b("PUBLISH news 2"),
        a("PUNSUBSCRIBE n*"),
        b("PUBLISH news 3"),
        a("PUNSUBSCRIBE", "UNSUBSCRIBE"),
        b("PUBLISH news 4"),
    )


def test_unsubscribing_from_nothing(pair: Pair) -> None:
    pair.same(a("UNSUBSCRIBE", "PUNSUBSCRIBE", "UNSUBSCRIBE a b", "PUNSUBSCRIBE a*", "GET k"))


def test_everything_in_one_pipeline(pair: Pair) -> None:
    pair.same(
        a(
            "GET k",
            "SUBSCRIBE x y",
            "PING",
            "PSUBSCRIBE z*",
            "UNSUBSCRIBE x",
            "PING hi",
            "UNSUBSCRIBE",
            "PUNSUBSCRIBE",
            "GET k",
            "PING",
        ),
        b("PUBLISH x 1", "PUBLISH z 1"),
    )


def test_other_commands_while_subscribed(pair: Pair) -> None:
    """In RESP2, a subscriber may send only a few commands; RESP3 has no such limit."""
    pair.same(
        a("SUBSCRIBE x"),
        a("GET k"),
        a("SET k 1"),
        a("MULTI"),
        a("EXEC"),
        a("SELECT 1"),
        a("CLIENT ID x"),
        a("NOSUCH"),
        a("GET"),
        a("HELLO"),
        a("PING", "PING"),
        a("UNSUBSCRIBE"),
        a("GET k"),
    )


def test_publishing_to_oneself(pair: Pair) -> None:
    pair.same(a("SUBSCRIBE x"), a("PUBLISH x 1"), a("PUBLISH x 2", "PUBLISH y 3", "PUBLISH x 4", "PING"))


def test_arity(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE", "PSUBSCRIBE", "PUBLISH x", "PUBLISH", "GET k"),
        a("SUBSCRIBE x"),
        a("SUBSCRIBE", "PING"),
    )


def test_sharded_channels(pair: Pair) -> None:
    pair.same(
        a("SSUBSCRIBE x y"),
        b("SPUBLISH x 1"),
        a("SUNSUBSCRIBE x"),
        a("SUNSUBSCRIBE"),
        b("SPUBLISH y 1"),
        a("PING"),
    )


def test_quitting_while_subscribed(pair: Pair) -> None:
    pair.same(a("SUBSCRIBE x"), a("QUIT"), b("PUBLISH x 1"))


def test_reset_while_subscribed(pair: Pair) -> None:
    pair.same(a("SUBSCRIBE x", "PSUBSCRIBE y*"), a("RESET"), b("PUBLISH x 1", "PUBLISH y 1"), a("GET k"))


def test_disconnecting_while_subscribed(pair: Pair) -> None:
    pair.same(a("SUBSCRIBE x"), a(closes=True), b("PUBLISH x 1"))


def test_changing_the_protocol_while_subscribed(plain_pair: Pair) -> None:
    plain_pair.same(a("SUBSCRIBE x"), a("HELLO 3"), b("PUBLISH x 1"), a("GET k"))
    plain_pair.same(a("HELLO 3", "SUBSCRIBE x"), a("HELLO 2"), b("PUBLISH x 1"), a("GET k"), a("PING"))
    plain_pair.same(a("HELLO 3", "SUBSCRIBE x", "HELLO 2", "PING", "HELLO 3", "GET k"), b("PUBLISH x 1"))


def test_many_channels(pair: Pair) -> None:
    names = " ".join(f"c{number}" for number in range(1500))
    pair.same(a(f"SUBSCRIBE {names}"), b("PUBLISH c7 1"), a("UNSUBSCRIBE c7"), b("PUBLISH c8 2"), a("PING"))


def test_many_messages_in_a_row(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE x"),
        b(
            *(f"PUBLISH x {number}" for number in range(2000)),
            ("PUBLISH", "x", b"z" * 300_000),
            "PUBLISH x end",
        ),
        a("PING"),
    )


def test_messages_that_look_like_confirmations(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE subscribe message unsubscribe"),
        b("PUBLISH subscribe unsubscribe", "PUBLISH unsubscribe subscribe", "PUBLISH message message"),
        a("UNSUBSCRIBE unsubscribe", "PING message"),
        a("UNSUBSCRIBE"),
        a("LRANGE l 0 -1"),
    )


def test_lists_that_look_like_messages(pair: Pair) -> None:
    pair.same(
        a("RPUSH l message x 1", "LRANGE l 0 -1", "SUBSCRIBE x", "UNSUBSCRIBE x", "LRANGE l 0 -1"),
        a("SUBSCRIBE x", "LRANGE l 0 -1", "PING"),
        b("PUBLISH x 1"),
    )


@pytest.mark.parametrize("settings", ["KEA", ""])
def test_keyspace_notifications(pair: Pair, settings: str) -> None:
    with pair.server.client() as admin:
        admin.config_set("notify-keyspace-events", settings)
    try:
        pair.same(
            a("PSUBSCRIBE __key*__:*"),
            b("SET k 1", "DEL k", "LPUSH l 1 2", "RENAME l m"),
            a("PING"),
            c("SUBSCRIBE __keyspace@0__:k"),
            b("SET k 2 EX 100"),
            a("PUNSUBSCRIBE"),
        )
    finally:
        with pair.server.client() as admin:
            admin.config_set("notify-keyspace-events", "")


def test_pubsub_introspection(pair: Pair) -> None:
    pair.same(
        a("SUBSCRIBE x y", "PSUBSCRIBE z*"),
        b("PUBSUB CHANNELS x*", "PUBSUB NUMSUB x y z", "PUBSUB NUMPAT"),
        b("PUBSUB CHANNELS nosuch", "PUBSUB NOSUCH", "PUBSUB"),
        a("UNSUBSCRIBE x"),
        b("PUBSUB NUMSUB x"),
    )
