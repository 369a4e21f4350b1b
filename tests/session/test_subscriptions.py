"""Subscriptions are followed: messages are never taken for replies, nor replies for messages."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyfence.policy.enforcement.modes import ModeRule
from keyfence.session.conversation.subscriptions import Subscriptions, leading_word
from tests.session.sessions import (
    ADMITTED,
    REFUSED,
    RecordingObserver,
    Session,
    cmd,
    is_refusal,
    observed,
    passed,
    replies,
    sent,
    session,
)

OPEN = [ModeRule("observe", "channel.read"), ModeRule("enforce")]


def frame(*words: bytes | int, version: int = 2) -> bytes:
    """An array, or in RESP3 a push, of bulk strings and integers."""
    parts = [
        b":%d\r\n" % word if isinstance(word, int) else b"$%d\r\n%b\r\n" % (len(word), word) for word in words
    ]
    return (b">" if version == 3 else b"*") + b"%d\r\n" % len(words) + b"".join(parts)


def message(text: bytes, version: int = 2) -> bytes:
    return frame(b"message", b"news", text, version=version)


def subscribed(version: int = 2, *names: bytes) -> Session:
    """A session that is subscribed to `names`."""
    one = session(rules=OPEN)
    if version == 3:
        one.from_client(cmd("HELLO", 3))
        one.from_upstream(b"%1\r\n+proto\r\n:3\r\n")
    one.from_client(cmd("SUBSCRIBE", *names))
    for count, name in enumerate(names, 1):
        one.from_upstream(frame(b"subscribe", name, count, version=version))
    sent(one), passed(one)
    return one


@pytest.mark.parametrize("version", [2, 3])
def test_each_name_is_confirmed_and_messages_come_between(version: int) -> None:
    observer = RecordingObserver()
    one = session(rules=OPEN, observer=observer)
    if version == 3:
        one.from_client(cmd("HELLO", 3))
        one.from_upstream(b"%1\r\n+proto\r\n:3\r\n")
        sent(one), passed(one)
    one.from_client(cmd("SUBSCRIBE", "a", "b"))
    assert passed(one) == cmd("SUBSCRIBE", "a", "b")
    assert one.outstanding == 2
    confirmations = [
        frame(b"subscribe", name, at, version=version) for at, name in enumerate([b"a", b"b"], 1)
    ]
    stream = confirmations[0] + message(b"one", version) + confirmations[1] + message(b"two", version)
    one.from_upstream(stream)
    assert sent(one) == stream
    assert one.outstanding == 0
    assert not one.is_opaque
    assert not one.closing
    assert ("CubeProxy", "SUBSCRIBE", "forwarded") in observer.commands
    assert observer.sessions == []


def test_a_refusal_takes_its_place_between_messages() -> None:
    one = subscribed(3, b"news")
    one.from_client(ADMITTED + REFUSED)
    assert passed(one) == ADMITTED
    one.from_upstream(message(b"x", 3) + b"%0\r\n" + message(b"y", 3)[:9])
    first, reply, refusal = replies(sent(one))
    assert (first, reply) == (message(b"x", 3), b"%0\r\n")
    assert is_refusal(refusal, "scope.write")
    one.from_upstream(message(b"y", 3)[9:])
    assert sent(one) == message(b"y", 3)


def test_a_refusal_never_stands_inside_a_message() -> None:
    one = subscribed(2, b"news")
    long = message(b"x" * 500)
    one.from_upstream(long[:300])
    one.from_client(REFUSED)
    one.from_upstream(long[300:])
    data = sent(one)
    assert data.startswith(long)
    assert is_refusal(data[len(long) :], "scope.write")


def test_a_subscription_that_the_policy_forbids_is_refused_and_the_rest_goes_on() -> None:
    one = session()
    one.from_client(cmd("SUBSCRIBE", "news") + ADMITTED)
    assert is_refusal(sent(one), "channel.read")
    assert passed(one) == ADMITTED


def test_a_subscription_waits_for_the_due_replies() -> None:
    one = session(rules=OPEN)
    one.from_client(ADMITTED + cmd("SUBSCRIBE", "a") + REFUSED)
    assert passed(one) == ADMITTED
    assert one.holds_back
    one.from_upstream(b"*2\r\n$7\r\nmessage\r\n$1\r\nx\r\n")  # a reply that only looks like one
    assert passed(one) == cmd("SUBSCRIBE", "a")
    one.from_upstream(frame(b"subscribe", b"a", 1))
    assert is_refusal(replies(sent(one))[-1], "scope.write")


def test_unsubscribing_from_all_is_confirmed_for_each() -> None:
    one = subscribed(2, b"a", b"b", b"c")
    one.from_client(cmd("UNSUBSCRIBE") + cmd("PING"))
    one.from_upstream(frame(b"unsubscribe", b"b", 2) + message(b"late") + frame(b"unsubscribe", b"a", 1))
    assert one.outstanding == 2
    one.from_upstream(frame(b"unsubscribe", b"c", 0))
    assert one.outstanding == 1
    one.from_upstream(b"+PONG\r\n")
    assert one.outstanding == 0
    assert not one.closing


def test_unsubscribing_from_nothing_is_confirmed_once() -> None:
    one = subscribed(2, b"a")
    for request, confirmation in (
        (cmd("PUNSUBSCRIBE"), b"*3\r\n$12\r\npunsubscribe\r\n$-1\r\n:1\r\n"),
        (cmd("UNSUBSCRIBE", "x", "a"), frame(b"unsubscribe", b"x", 1) + frame(b"unsubscribe", b"a", 0)),
    ):
        one.from_client(request)
        one.from_upstream(confirmation)
        assert sent(one) == confirmation
        assert one.outstanding == 0


def test_once_nothing_is_subscribed_an_array_is_a_reply_whatever_it_begins_with() -> None:
    one = subscribed(2, b"a")
    one.from_client(cmd("UNSUBSCRIBE"))
    one.from_upstream(frame(b"unsubscribe", b"a", 0))
    one.from_client(ADMITTED + REFUSED)
    one.from_upstream(message(b"a list"))
    data = sent(one)
    assert is_refusal(replies(data)[-1], "scope.write")
    assert one.outstanding == 0


def test_once_nothing_is_subscribed_a_list_may_begin_with_the_word_that_ends_shard_channels() -> None:
    one = subscribed(2, b"a")
    one.from_client(cmd("UNSUBSCRIBE"))
    one.from_upstream(frame(b"unsubscribe", b"a", 0))
    one.from_client(ADMITTED)
    sent(one)
    one.from_upstream(frame(b"sunsubscribe", b"s", b"t"))
    assert sent(one) == frame(b"sunsubscribe", b"s", b"t")
    assert one.outstanding == 0


def test_too_many_names_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyfence.session.conversation.subscriptions.MAX_BYTES", 1000)
    monkeypatch.setattr("keyfence.session.conversation.subscriptions.MAX_NAMES", 3)
    one = subscribed(2, b"x" * 900)
    one.from_client(cmd("SUBSCRIBE", "y" * 200))
    assert is_refusal(sent(one), "session.opaque")
    one.from_client(cmd("UNSUBSCRIBE", "x" * 900))
    passed(one)
    one.from_upstream(frame(b"unsubscribe", b"x" * 900, 0))
    sent(one)
    one.from_client(cmd("SUBSCRIBE", "y" * 200))
    assert passed(one) == cmd("SUBSCRIBE", "y" * 200)
    one.from_upstream(frame(b"subscribe", b"y" * 200, 1))
    sent(one)
    one.from_client(cmd("SUBSCRIBE", "a", "b", "c"))
    assert is_refusal(sent(one), "session.opaque")


def test_in_resp3_an_array_is_a_reply_also_for_a_subscriber() -> None:
    one = subscribed(3, b"a")
    one.from_client(ADMITTED)
    one.from_upstream(message(b"a list"))
    assert one.outstanding == 0
    assert not one.closing


def test_an_error_stands_for_all_confirmations() -> None:
    one = session(rules=OPEN)
    one.from_client(cmd("SUBSCRIBE", "a", "b") + cmd("PING"))
    one.from_upstream(b"-NOPERM this user has no permissions\r\n")
    assert one.outstanding == 1  # of PING
    one.from_upstream(b"+PONG\r\n")
    one.from_client(cmd("UNSUBSCRIBE"))
    one.from_upstream(b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")
    assert one.outstanding == 0
    assert not one.closing


def test_a_subscription_without_names_is_an_error_of_redis() -> None:
    one = session(rules=OPEN)
    one.from_client(cmd("SUBSCRIBE"))
    one.from_upstream(b"-ERR wrong number of arguments for 'subscribe' command\r\n")
    assert sent(one).startswith(b"-ERR wrong")
    assert one.outstanding == 0


def test_a_shard_channel_that_moves_away_ends_its_subscription_unasked() -> None:
    one = subscribed(2, b"a")
    one.from_upstream(frame(b"sunsubscribe", b"s", 0))
    assert sent(one) == frame(b"sunsubscribe", b"s", 0)
    assert not one.closing


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_shard_channels_that_redis_has_ended_are_not_awaited_again(version: int, size: int) -> None:
    one = session(rules=OPEN)
    if version == 3:
        one.from_client(cmd("HELLO 3"))
        one.from_upstream(b"%1\r\n$2\r\nid\r\n:7\r\n")
    one.from_client(cmd("SSUBSCRIBE", "s", "t"))
    begin = b"*" if version == 2 else b">"
    confirmed = frame(b"ssubscribe", b"s", 1) + frame(b"ssubscribe", b"t", 2)
    one.from_upstream(confirmed.replace(b"*3", begin + b"3"))
    sent(one)
    ended = (frame(b"sunsubscribe", b"s", 1) + frame(b"sunsubscribe", b"t", 0)).replace(b"*3", begin + b"3")
    for at in range(0, len(ended), size):
        one.from_upstream(ended[at : at + size])
    assert sent(one) == ended
    one.from_client(cmd("SUNSUBSCRIBE"))
    one.from_upstream(begin + b"3\r\n$12\r\nsunsubscribe\r\n$-1\r\n:0\r\n")
    assert one.outstanding == 0
    assert not one.closing


def test_reset_ends_every_subscription() -> None:
    one = subscribed(2, b"a", b"b")
    one.from_client(cmd("RESET") + cmd("UNSUBSCRIBE"))
    one.from_upstream(message(b"x") + b"+RESET\r\n")
    assert sent(one) == message(b"x") + b"+RESET\r\n"
    assert passed(one).endswith(cmd("UNSUBSCRIBE"))
    one.from_upstream(b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n")
    assert one.outstanding == 0


def test_subscribing_inside_multi_cannot_be_followed() -> None:
    one = session(rules=[ModeRule("enforce", "session.opaque"), ModeRule("observe")])
    one.from_client(cmd("MULTI") + cmd("SUBSCRIBE", "a") + cmd("EXEC"))
    one.from_upstream(b"+OK\r\n-ERR arity\r\n-EXECABORT\r\n")
    assert is_refusal(replies(sent(one))[1], "session.opaque")


def test_a_session_that_becomes_opaque_loses_no_part_of_a_message() -> None:
    one = observed()
    one.from_client(cmd("SUBSCRIBE", "a"))
    one.from_upstream(frame(b"subscribe", b"a", 1))
    sent(one), passed(one)
    whole = message(b"x")
    one.from_upstream(whole[:10])
    one.from_client(cmd("SYNC"))
    one.from_upstream(whole[10:])
    assert one.is_opaque
    assert sent(one) == whole


def test_a_lost_upstream_ends_a_waiting_subscription() -> None:
    one = session(rules=OPEN)
    one.from_client(ADMITTED + cmd("SUBSCRIBE", "a", "b"))
    one.upstream_lost("upstream x is gone")
    assert sent(one) == b""
    assert one.closing


def test_a_reply_that_nothing_asked_for_ends_a_subscriber_too() -> None:
    one = subscribed(2, b"a")
    one.from_upstream(b"+OK\r\n")
    assert sent(one) == b""
    assert one.closing == "upstream sent a reply that no request asked for"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"*3\r\n$7\r\nmessage\r\n", b"message"),
        (b">3\r\n$9\r\nsubscribe\r\n$1", b"subscribe"),
        (b"*3\r\n$7\r\nmess", None),
        (b"*", None),
        (b"+OK", b""),
        (b"*2\r\n:1\r\n" + b"x" * 60, b""),
    ],
)
def test_the_first_word_of_a_frame(data: bytes, word: bytes | None) -> None:
    assert leading_word(data) == word


@given(st.integers(0, 2**32), st.sampled_from([2, 3]))
def test_in_any_pieces_every_reply_is_in_its_place(seed: int, version: int) -> None:
    """A subscriber's random conversation, cut at random: what it gets is what upstream sent, in that order,
    with the refusals where their turn is."""
    dice = random.Random(seed)
    one = subscribed(version, b"news")
    expected = b""
    for _ in range(12):
        chance = dice.random()
        if chance < 0.4:
            stream = message(dice.randbytes(dice.choice([0, 3, 90])), version)
        elif chance < 0.6:
            one.from_client(REFUSED)
            got = sent(one)
            assert is_refusal(got, "scope.write")
            continue
        elif chance < 0.8:
            name = b"c%d" % dice.randrange(9)
            one.from_client(cmd("SUBSCRIBE", name, name))
            stream = frame(b"subscribe", name, 2, version=version) + message(b"x", version)
            stream += frame(b"subscribe", name, 2, version=version)
        else:
            one.from_client(cmd("PING"))
            stream = message(b"before", version) + (frame(b"pong", b"") if version == 2 else b"+PONG\r\n")
        expected = stream
        got = b""
        while stream:
            size = dice.randint(1, len(stream))
            one.from_upstream(stream[:size])
            stream = stream[size:]
            got += sent(one)
        assert got == expected
        assert one.outstanding == 0
        assert not one.closing


WORDS = ("SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(WORDS),
            st.booleans(),
            st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=3),
        ),
        max_size=12,
    )
)
def test_the_number_of_subscriptions_is_that_of_different_names(
    commands: list[tuple[str, bool, list[bytes]]],
) -> None:
    known = Subscriptions()
    expected: dict[str, set[bytes]] = {word: set() for word in WORDS}
    for word, adds, names in commands:
        if adds and not names:  # Redis refuses it
            continue
        command = word if adds else word.replace("SUBSCRIBE", "UNSUBSCRIBE")
        due = known.expect([command.encode(), *names])
        for _ in range(due.count):
            due.confirmed()
        if adds:
            expected[word] |= set(names)
        else:
            expected[word] -= set(names or expected[word])
        assert len(known) == sum(map(len, expected.values()))
        assert bool(known) is any(expected.values())
    known.clear()
    assert not known


def test_names_count_from_their_confirmation_on() -> None:
    known = Subscriptions()
    due = known.expect([b"SUBSCRIBE", b"a", b"b"])
    due.confirmed()
    assert len(known) == 1
    due.confirmed()
    assert len(known) == 2
    ended = known.expect([b"UNSUBSCRIBE"])
    ended.confirmed()
    assert len(known) == 2  # Redis names them in its own order
    ended.confirmed()
    assert not known
