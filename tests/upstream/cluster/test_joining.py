"""Replies of several nodes become one, in both protocols, in bounded memory."""

from __future__ import annotations

import itertools

import hiredis
import pytest

from keyfence.upstream.cluster.fan_out import Join
from keyfence.upstream.cluster.joining import UNREACHABLE, Joined, joined, without_cluster

OK = b"+OK\r\n"
ERROR = b"-ERR one\r\n"
NOT_BUSY = b"-NOTBUSY No scripts in execution right now.\r\n"
NULLS = [b"$-1\r\n", b"_\r\n"]


def array(*items: bytes, kind: bytes = b"*") -> bytes:
    return b"%b%d\r\n%b" % (kind, len(items), b"".join(items))


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def number(value: int) -> bytes:
    return b":%d\r\n" % value


@pytest.mark.parametrize(
    ("join", "replies", "reply"),
    [
        (Join.FIRST, [bulk(b"a")], bulk(b"a")),
        (Join.SUM, [number(1), number(-3), number(40)], number(38)),
        (Join.SUM, [number(2**62), number(2**62 - 1)], number(2**63 - 1)),
        (
            Join.SUM,
            [
                array(bulk(b"a"), number(1), bulk(b"b"), number(0)),
                array(bulk(b"a"), number(2), bulk(b"b"), number(5)),
            ],
            array(bulk(b"a"), number(3), bulk(b"b"), number(5)),
        ),
        (Join.SUM, [array(), array()], array()),
        (Join.MINIMUM, [number(2), number(1), number(3)], number(1)),
        (
            Join.MINIMUM,
            [array(number(1), number(0)), array(number(0), number(2))],
            array(number(0), number(0)),
        ),
        (
            Join.CONCATENATED,
            [array(bulk(b"a")), array(), array(bulk(b"b"), bulk(b""))],
            array(bulk(b"a"), bulk(b"b"), bulk(b"")),
        ),
        (
            Join.CONCATENATED,
            [array(bulk(b"a"), kind=b"~"), array(bulk(b"b"), kind=b"~")],
            array(bulk(b"a"), bulk(b"b"), kind=b"~"),
        ),
        (
            Join.CONCATENATED,
            [array(array(number(1), array())), array(array(number(2), *NULLS))],
            array(array(number(1), array()), array(number(2), *NULLS)),
        ),
        (Join.CONCATENATED, [array(b"%1\r\n:1\r\n:2\r\n"), array()], array(b"%1\r\n:1\r\n:2\r\n")),
        (Join.CONCATENATED, [OK, OK], OK),
        (
            Join.DISTINCT,
            [array(bulk(b"a"), bulk(b"b")), array(bulk(b"b"), bulk(b"c"))],
            array(bulk(b"a"), bulk(b"b"), bulk(b"c")),
        ),
        (Join.TEXTS, [bulk(b"id=1\n"), bulk(b"id=2\n")], bulk(b"id=1\nid=2\n")),
        (Join.TEXTS, [b"=9\r\ntxt:id=1\n\r\n", b"=9\r\ntxt:id=2\n\r\n"], b"=14\r\ntxt:id=1\nid=2\n\r\n"),
        (Join.ALL_SUCCEED, [OK, OK], OK),
        (Join.ALL_SUCCEED, [bulk(b"lib"), bulk(b"lib")], bulk(b"lib")),
        (Join.ONE_SUCCEEDS, [NOT_BUSY, OK, NOT_BUSY], OK),
        (Join.ONE_SUCCEEDS, [NOT_BUSY, b"-UNKILLABLE no\r\n", NOT_BUSY], b"-UNKILLABLE no\r\n"),
        (Join.ONE_SUCCEEDS, [NOT_BUSY, NOT_BUSY], NOT_BUSY),
        (Join.RANDOM, [NULLS[0], bulk(b"k"), NULLS[0]], bulk(b"k")),
        (Join.RANDOM, [NULLS[1], NULLS[1]], NULLS[1]),
    ],
)
def test_replies_become_one(join: Join, replies: list[bytes], reply: bytes) -> None:
    assert joined(join, replies) == reply


@pytest.mark.parametrize("join", [one for one in Join if one is not Join.ONE_SUCCEEDS])
@pytest.mark.parametrize("error", [ERROR, b"!7\r\nERR one\r\n"])
def test_an_error_of_one_node_is_the_answer(join: Join, error: bytes) -> None:
    assert joined(join, [OK, error, b"-ERR two\r\n"]) == error


@pytest.mark.parametrize("resp", [2, 3])
def test_the_node_that_runs_a_script_answers(resp: int) -> None:
    def stats(running: bytes) -> bytes:
        parts = [bulk(b"running_script"), running, bulk(b"engines"), array()]
        return b"%%2\r\n%b" % b"".join(parts) if resp > 2 else array(*parts)

    idle = stats(NULLS[resp - 2])
    busy = stats(array(bulk(b"name"), bulk(b"f")))
    assert joined(Join.RUNNING, [idle, busy, idle]) == busy
    assert joined(Join.RUNNING, [idle, idle]) == idle


@pytest.mark.parametrize(
    ("join", "replies"),
    [
        (Join.SUM, [number(1), bulk(b"x")]),
        (Join.SUM, [array(number(1)), array(number(1), number(2))]),
        (Join.SUM, [b":x\r\n", number(1)]),
        (Join.MINIMUM, [number(1), NULLS[0]]),
        (Join.CONCATENATED, [array(), bulk(b"x")]),
        (Join.CONCATENATED, [array(), array(kind=b"~")]),
        (Join.CONCATENATED, [array(), OK]),
        (Join.DISTINCT, [array(), OK]),
        (Join.TEXTS, [bulk(b"x"), number(1)]),
    ],
)
def test_what_cannot_be_joined_is_an_error_that_names_the_command(join: Join, replies: list[bytes]) -> None:
    one = Joined("SOME COMMAND", join, ["a", "b"])
    for node, reply in zip("ab", replies, strict=True):
        one.came(node, reply, True)
    assert one.reply().startswith(b"-ERR keyfence cannot join the nodes' replies to SOME COMMAND: ")


def test_replies_come_in_any_order_and_are_joined_in_that_of_the_nodes() -> None:
    replies = {"a": array(bulk(b"1")), "b": array(bulk(b"2")), "c": array(bulk(b"3"))}
    for order in itertools.permutations(replies):
        one = Joined("KEYS", Join.CONCATENATED, list(replies))
        for node in order:
            assert not one.is_complete
            one.came(node, replies[node], True)
        assert one.is_complete
        assert one.reply() == array(bulk(b"1"), bulk(b"2"), bulk(b"3"))


def test_a_node_that_cannot_be_asked_is_an_error() -> None:
    one = Joined("DBSIZE", Join.SUM, ["a", "b"])
    one.came("a", number(1), True)
    one.unreachable("b")
    assert one.reply() == UNREACHABLE


def test_one_node_that_succeeds_is_enough_even_if_another_cannot_be_asked() -> None:
    one = Joined("SCRIPT KILL", Join.ONE_SUCCEEDS, ["a", "b"])
    one.unreachable("a")
    one.came("b", OK, True)
    assert one.reply() == OK


def test_memory_is_bounded() -> None:
    one = Joined("KEYS", Join.CONCATENATED, ["a", "b", "c"], limit=30)
    one.came("a", array(bulk(b"x" * 10)), True)
    assert one.held == 21
    one.came("b", array(bulk(b"x" * 10))[:9], False)
    one.came("c", array(bulk(b"x" * 10))[:1], False)
    assert (one.held, one.is_complete) == (0, False)
    one.came("b", array(bulk(b"x" * 10))[9:], True)
    one.unreachable("c")
    assert one.held == 0
    assert one.reply() == (
        b"-ERR the nodes' replies to KEYS are longer than 30 bytes together, which is what keyfence joins: "
        b"ask for less at once\r\n"
    )


def test_the_pieces_of_a_node_that_is_lost_are_dropped() -> None:
    one = Joined("KEYS", Join.CONCATENATED, ["a", "b"])
    one.came("a", b"*1\r\n$1", False)
    one.unreachable("a")
    one.came("b", array(), True)
    assert one.reply() == UNREACHABLE


INFO = (
    b"# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nserver_mode:cluster\r\n"
    b"# Cluster\r\ncluster_enabled:1\r\n"
)
PLAIN = INFO.replace(b"mode:cluster", b"mode:standalone").replace(b"enabled:1", b"enabled:0")


def test_info_and_hello_are_those_of_a_redis_without_a_cluster() -> None:
    assert without_cluster("INFO", bulk(INFO)) == bulk(PLAIN)
    verbatim = b"=%d\r\ntxt:%b\r\n"
    assert without_cluster("INFO", verbatim % (len(INFO) + 4, INFO)) == verbatim % (len(PLAIN) + 4, PLAIN)
    for head in (b"*4\r\n", b"%2\r\n"):
        hello = head + bulk(b"proto") + number(2) + bulk(b"mode") + bulk(b"cluster")
        assert without_cluster("HELLO", hello) == hello.replace(bulk(b"cluster"), bulk(b"standalone"))


@pytest.mark.parametrize("reply", [ERROR, OK, number(1), b"$9\r\nshort\r\n", array()])
@pytest.mark.parametrize("name", ["INFO", "HELLO", "GET"])
def test_any_other_reply_stays_as_it_is(name: str, reply: bytes) -> None:
    assert without_cluster(name, reply) == reply


def test_what_is_joined_can_be_read() -> None:
    reader = hiredis.Reader()
    reader.feed(joined(Join.CONCATENATED, [array(bulk(b"%d" % one)) for one in range(500)]))
    assert reader.gets() == [b"%d" % one for one in range(500)]
