"""Which primary is followed, of those that Sentinels name."""

from __future__ import annotations

import pytest

from keyfence.upstream.sentinel.answers import (
    Named,
    NotNamed,
    chosen,
    is_about,
    named_in,
    why_not,
)

OLD, NEW = Named("10.0.0.1", 6379, 3), Named("10.0.0.2", 6379, 4)


def reply(**fields: str) -> list[bytes]:
    """The reply to SENTINEL MASTER as RESP2 has it."""
    return [word.encode() for pair in fields.items() for word in (pair[0].replace("_", "-"), pair[1])]


def test_a_primary_is_read_from_resp2_and_resp3() -> None:
    fields = {"name": "main", "ip": "10.0.0.1", "port": "6379", "config_epoch": "3"}
    assert named_in(reply(**fields)) == OLD
    assert named_in({b"ip": b"10.0.0.1", b"port": b"6379", b"config-epoch": b"3"}) == OLD


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert Named("fd00::1", 6379, 0).shown == "[fd00::1]:6379"


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        None,
        7,
        b"OK",
        reply(ip="10.0.0.1", port="6379"),
        reply(ip="", port="6379", config_epoch="1"),
        reply(ip="10.0.0.1", port="0", config_epoch="1"),
        reply(ip="10.0.0.1", port="70000", config_epoch="1"),
        reply(ip="10.0.0.1", port="-1", config_epoch="1"),
        reply(ip="10.0.0.1", port="6379", config_epoch="x"),
        reply(ip="10.0.0.1", port="6379", config_epoch="9" * 30),
    ],
)
def test_any_other_reply_names_no_primary(wrong: object) -> None:
    with pytest.raises(NotNamed):
        named_in(wrong)


def test_the_answer_with_the_highest_epoch_counts() -> None:
    assert chosen([OLD, NEW, OLD], None, 3) == NEW


def test_of_answers_with_one_epoch_the_one_that_most_sentinels_give_counts() -> None:
    other = NEW._replace(host="10.0.0.9")
    assert chosen([other, NEW, NEW], None, 3) == NEW


def test_a_sentinel_that_missed_the_failover_undoes_nothing() -> None:
    assert chosen([OLD], NEW, 3) == NEW


def test_sentinels_that_were_set_up_anew_are_believed_once_most_of_them_say_so() -> None:
    anew = Named("10.0.0.3", 6379, 0)
    assert chosen([anew], NEW, 3) == NEW
    assert chosen([anew, anew], NEW, 3) == anew
    assert chosen([anew], NEW, 1) == anew


def test_most_sentinels_may_not_know_of_a_failover_yet() -> None:
    assert chosen([OLD, OLD], NEW, 3, is_settled=False) == NEW
    assert chosen([NEW, OLD, OLD], OLD, 3, is_settled=False) == NEW


def test_without_an_answer_the_known_primary_is_kept() -> None:
    assert chosen([], NEW, 3) == NEW
    assert chosen([], None, 3) is None


def test_a_message_counts_only_if_it_is_about_this_primary() -> None:
    text = b"main 10.0.0.1 6379 10.0.0.2 6379"
    assert is_about([b"message", b"+switch-master", text], "main")
    assert not is_about([b"message", b"+switch-master", text], "mai")
    assert not is_about([b"message", b"+sdown", text], "main")
    assert not is_about([b"pong", b""], "main")
    assert not is_about(b"PONG", "main")


def test_an_error_is_put_into_words() -> None:
    assert why_not("ERR No such master with that name", "main") == "it knows no primary called 'main'"
    assert why_not("ERR unknown command 'SENTINEL', with args …", "main") == "it is no Sentinel"
    assert why_not("NOPERM no", "main") == "it answered NOPERM no"
