"""A client that asks a Sentinel: bytes in, answers out."""

from __future__ import annotations

import hiredis
import pytest

from keyfence.net.closures import HTTP, PROTOCOL_ERROR, QUIT
from keyfence.resp import encode
from keyfence.session.sentinel.facts import Primary, Sentinel
from keyfence.session.sentinel.session import LIMITS, Apart, SentinelSession
from keyfence.session.sentinel.subscriptions import MOST_HELD

MAIN = Primary("main", "redis.internal", 6380, [("2001:db8::7", 26379)])
OTHER = Primary("other", "10.0.0.9", 6381)


@pytest.fixture
def client() -> SentinelSession:
    return SentinelSession(Sentinel("0.0.0.0:26379", [MAIN, OTHER]), "app", "10.0.0.1:40000")


def sent(client: SentinelSession, data: bytes) -> bytes:
    """The bytes that a client gets."""
    client.from_client(data)
    while client.conversation.wants_turn:
        client.take_turn()
    taken = b"".join(client.conversation.replies.to_client)
    client.conversation.replies.to_client = []
    return taken


def asked(client: SentinelSession, *words: str | bytes) -> bytes:
    return sent(client, encode.command(*words))


def reply(client: SentinelSession, *words: str | bytes) -> object:
    """The reply as a client library reads it."""
    reader = hiredis.Reader(encoding="utf-8")
    reader.feed(asked(client, *words))
    found: object = reader.gets()
    assert reader.gets() is False
    return found


def test_a_client_asks_for_the_address_of_a_name(client: SentinelSession) -> None:
    known = asked(client, "SENTINEL", "get-master-addr-by-name", "main")
    assert known == b"*2\r\n$14\r\nredis.internal\r\n$4\r\n6380\r\n"
    assert reply(client, "sentinel", "GET-MASTER-ADDR-BY-NAME", "other") == ["10.0.0.9", "6381"]
    assert not client.conversation.to_upstream


def test_an_unknown_name_has_no_address(client: SentinelSession) -> None:
    assert asked(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") == b"*-1\r\n"
    assert asked(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "MAIN") == b"*-1\r\n"
    for subcommand in ("MASTER", "REPLICAS", "SLAVES", "SENTINELS", "CKQUORUM"):
        assert asked(client, "SENTINEL", subcommand, "no") == b"-ERR No such master with that name\r\n"
    asked(client, "HELLO", "3")
    assert asked(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") == b"_\r\n"


def test_rows_are_flat_in_resp2_and_maps_in_resp3(client: SentinelSession) -> None:
    flat = reply(client, "SENTINEL", "MASTER", "main")
    assert isinstance(flat, list)
    row = dict(zip(flat[::2], flat[1::2], strict=True))
    assert (row["name"], row["ip"], row["port"], row["flags"]) == ("main", "redis.internal", "6380", "master")
    assert (row["num-slaves"], row["num-other-sentinels"], row["quorum"]) == ("0", "1", "2")
    assert reply(client, "SENTINEL", "MASTERS")[0] == flat  # type: ignore[index]
    asked(client, "HELLO", "3")
    assert reply(client, "SENTINEL", "MASTER", "main") == row
    assert [one["name"] for one in reply(client, "SENTINEL", "MASTERS")] == ["main", "other"]  # type: ignore[attr-defined]


def test_there_are_no_replicas_and_the_other_keyfences_are_sentinels(client: SentinelSession) -> None:
    asked(client, "HELLO", "3")
    assert reply(client, "SENTINEL", "REPLICAS", "main") == reply(client, "SENTINEL", "SLAVES", "main") == []
    (row,) = reply(client, "SENTINEL", "SENTINELS", "main")  # type: ignore[misc]
    assert (row["ip"], row["port"], row["flags"]) == ("2001:db8::7", "26379", "sentinel")
    assert row["name"] == row["runid"]
    assert reply(client, "SENTINEL", "SENTINELS", "other") == []
    assert asked(client, "SENTINEL", "CKQUORUM", "main").startswith(b"+OK 2 usable Sentinels")
    assert asked(client, "SENTINEL", "CKQUORUM", "other").startswith(b"+OK 1 usable Sentinels")


def test_each_worker_has_the_same_id(client: SentinelSession) -> None:
    mine = reply(client, "SENTINEL", "MYID")
    again = SentinelSession(Sentinel("0.0.0.0:26379", [MAIN, OTHER]), "app", "10.0.0.1:40000")
    elsewhere = SentinelSession(Sentinel("0.0.0.0:26379", [OTHER]), "app", "10.0.0.1:40000")
    assert reply(again, "SENTINEL", "MYID") == mine != reply(elsewhere, "SENTINEL", "MYID")
    assert isinstance(mine, str)
    assert len(mine) == 40


def test_it_says_that_it_is_a_sentinel(client: SentinelSession) -> None:
    assert reply(client, "ROLE") == ["sentinel", ["main", "other"]]
    hello = reply(client, "HELLO")
    assert isinstance(hello, list)
    assert hello[8:10] == ["mode", "sentinel"]
    assert "role" not in hello
    info = reply(client, "INFO")
    assert "redis_mode:sentinel\r\n" in str(info)
    assert "master0:name=main,status=ok,address=redis.internal:6380,slaves=0,sentinels=2\r\n" in str(info)
    assert str(reply(client, "INFO", "sentinel")).startswith("# Sentinel\r\nsentinel_masters:2\r\n")
    assert reply(client, "INFO", "memory") == ""


def test_hello_sets_protocol_login_and_name_or_nothing(client: SentinelSession) -> None:
    for words, error in {
        ("4",): "NOPROTO unsupported protocol version",
        ("x",): "ERR Protocol version is not an integer or out of range",
        ("3", "FOO"): "ERR Syntax error in HELLO option 'FOO'",
        ("3", "AUTH", "a"): "ERR Syntax error in HELLO option 'AUTH'",
        ("3", "SETNAME", "a b"): "ERR Client names cannot contain spaces, newlines or special characters.",
    }.items():
        assert asked(client, "HELLO", *words) == f"-{error}\r\n".encode()
    assert asked(client, "PING", "x") == b"$1\r\nx\r\n"
    assert asked(client, "HELLO", "3", "AUTH", "any", "word", "SETNAME", "me").startswith(b"%6\r\n")
    assert reply(client, "CLIENT", "GETNAME") == "me"
    assert asked(client, "HELLO", "2").startswith(b"*12\r\n")


def test_any_login_is_right(client: SentinelSession) -> None:
    assert asked(client, "AUTH", "word") == asked(client, "AUTH", "user", "word") == b"+OK\r\n"
    assert asked(client, "AUTH", "a", "b", "c") == b"-ERR syntax error\r\n"


def test_what_clients_say_of_themselves_is_taken(client: SentinelSession) -> None:
    assert asked(client, "CLIENT", "GETNAME") == b"$-1\r\n"
    for words in (
        ("SETNAME", "app"),
        ("SETINFO", "LIB-NAME", "x"),
        ("SETINFO", "lib-ver", "1"),
        ("NO-EVICT", "on"),
    ):
        assert asked(client, "CLIENT", *words) == b"+OK\r\n"
    number = reply(client, "CLIENT", "ID")
    text = f"id={number} addr=10.0.0.1:40000 name=app db=0 sub=0 psub=0 user=default resp=%d\n"
    assert reply(client, "CLIENT", "INFO") == text % 2
    asked(client, "HELLO", "3")
    assert asked(client, "CLIENT", "INFO") == b"=%d\r\ntxt:%b\r\n" % (len(text % 3) + 4, (text % 3).encode())
    assert asked(client, "CLIENT", "SETINFO", "x", "1") == b"-ERR Unrecognized option 'x'\r\n"
    assert asked(client, "CLIENT", "SETNAME", "a\nb").startswith(b"-ERR Client names")


def test_errors_are_those_of_a_sentinel(client: SentinelSession) -> None:
    for words, error in {
        ("SENTINEL",): "ERR wrong number of arguments for 'sentinel' command",
        ("SENTINEL", "MASTERS", "x"): "ERR wrong number of arguments for 'sentinel|masters' command",
        ("SENTINEL", "Foo"): "ERR unknown subcommand 'Foo'. Try SENTINEL HELP.",
        ("SENTINEL", "FAILOVER", "main"): "ERR unknown subcommand 'FAILOVER'. Try SENTINEL HELP.",
        ("GET", "x"): "ERR unknown command 'GET', with args beginning with: 'x' ",
        ("TIME",): "ERR unknown command 'TIME', with args beginning with: ",
        ("PUBLISH", "+switch-master", "x"): "ERR Only HELLO messages are accepted by Sentinel instances.",
        ("PING", "a", "b"): "ERR wrong number of arguments for 'ping' command",
        ("SUBSCRIBE",): "ERR wrong number of arguments for 'subscribe' command",
    }.items():
        assert asked(client, *words) == f"-{error}\r\n".encode()
    assert asked(client, "x" * 300, "y" * 300) == (
        f"-ERR unknown command '{'x' * 128}', with args beginning with: '{'y' * 128}' \r\n".encode()
    )


def test_a_clients_text_cannot_end_an_error_early(client: SentinelSession) -> None:
    found = asked(client, b"GET\r\n+OK", b"\xff\r\n")
    assert found.count(b"\r\n") == 1
    assert asked(client, "SENTINEL", b"\r\n$1\r\n").count(b"\r\n") == 1


def test_commands_are_listed(client: SentinelSession) -> None:
    names = reply(client, "COMMAND", "LIST")
    assert isinstance(names, list)
    assert reply(client, "COMMAND", "COUNT") == len(names)
    assert [one[:2] for one in reply(client, "COMMAND", "INFO", "role", "get") if one] == [["role", 1]]  # type: ignore[attr-defined]
    assert [one[0] for one in reply(client, "COMMAND")] == names  # type: ignore[attr-defined]
    assert reply(client, "COMMAND", "DOCS", "ping") == []
    assert "SENTINELS <master-name>" in reply(client, "SENTINEL", "HELP")  # type: ignore[operator]


def test_every_channel_is_confirmed(client: SentinelSession) -> None:
    assert asked(client, "SUBSCRIBE", "+switch-master", "+sdown") == (
        b"*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n*3\r\n$9\r\nsubscribe\r\n$6\r\n+sdown\r\n:2\r\n"
    )
    assert client.conversation.waits
    assert asked(client, "PSUBSCRIBE", "*") == b"*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:3\r\n"
    assert asked(client, "PING") == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    assert asked(client, "SENTINEL", "MASTERS").startswith(
        b"-ERR Can't execute 'sentinel|masters': only (P|S)"
    )
    assert asked(client, "UNSUBSCRIBE", "+sdown") == b"*3\r\n$11\r\nunsubscribe\r\n$6\r\n+sdown\r\n:2\r\n"
    assert asked(client, "UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"
    assert asked(client, "UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:1\r\n"
    assert asked(client, "PUNSUBSCRIBE") == b"*3\r\n$12\r\npunsubscribe\r\n$1\r\n*\r\n:0\r\n"
    assert not client.conversation.waits
    assert reply(client, "ROLE") == ["sentinel", ["main", "other"]]


def test_a_subscriber_of_resp3_asks_on(client: SentinelSession) -> None:
    asked(client, "HELLO", "3")
    assert asked(client, "SUBSCRIBE", "a") == b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
    assert asked(client, "PING") == b"+PONG\r\n"
    assert reply(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main") == ["redis.internal", "6380"]


def test_subscriptions_are_bounded(client: SentinelSession) -> None:
    for number in range(MOST_HELD):
        found = asked(client, "SUBSCRIBE", f"channel-{number}")
        if found.startswith(b"-ERR keyfence: "):
            break
        assert found.startswith(b"*3")
    assert number < 2000
    assert asked(client, "SUBSCRIBE", "channel-0").startswith(b"*3")  # it is held already
    assert asked(client, "UNSUBSCRIBE", "channel-0").startswith(b"*3")
    assert asked(client, "PSUBSCRIBE", "p-1").startswith(b"*3")


def test_requests_may_come_in_pieces_inline_or_together(client: SentinelSession) -> None:
    for byte in b"*1\r\n$4\r\nPIN":
        assert sent(client, bytes([byte])) == b""
    assert client.conversation.backlog() == 11
    assert sent(client, b"G\r\nPING\r\n\r\nping hi\r\n") == b"+PONG\r\n+PONG\r\n$2\r\nhi\r\n"
    assert client.conversation.backlog() == 0


def test_quit_ends_the_connection_and_what_follows_is_dropped(client: SentinelSession) -> None:
    assert sent(client, b"QUIT\r\nPING\r\n") == b"+OK\r\n"
    assert client.conversation.replies.closing.closure is QUIT
    assert sent(client, b"PING\r\n") == b""


def test_what_is_no_request_ends_the_connection(client: SentinelSession) -> None:
    assert sent(client, b"*1\r\n$x\r\n") == b"-ERR Protocol error: invalid bulk length\r\n"
    assert client.conversation.replies.closing.closure is PROTOCOL_ERROR


@pytest.mark.parametrize("data", [b"POST / HTTP/1.1\r\n", b"Host: x\r\n"])
def test_a_browser_is_hung_up_on(client: SentinelSession, data: bytes) -> None:
    assert sent(client, data) == b""
    assert client.conversation.replies.closing.closure is HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"*2\r\n$8\r\nSENTINEL\r\n$%d\r\n" % (LIMITS.max_bulk + 1),
        b"*%d\r\n" % (LIMITS.max_arguments + 1),
        b"x" * (LIMITS.max_inline + 1),
        b"*9\r\n" + b"$%d\r\n%b\r\n" % (LIMITS.max_bulk, b"x" * LIMITS.max_bulk) * 5,
    ],
)
def test_a_request_is_small(client: SentinelSession, data: bytes) -> None:
    assert sent(client, data).startswith(b"-ERR Protocol error")
    assert client.conversation.replies.closing.closure is PROTOCOL_ERROR


def test_many_requests_take_several_turns(client: SentinelSession, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([False, False, True])
    monkeypatch.setattr(Apart, "turn_is_over", lambda _: next(turns, False))
    talk = client.conversation
    client.from_client(b"PING\r\n" * 5)
    assert b"".join(talk.replies.to_client) == b"+PONG\r\n" * 2
    assert talk.wants_turn
    assert not talk.wants_input()
    assert (talk.holds_back, talk.awaits_more) == (True, True)
    client.take_turn()
    assert b"".join(talk.replies.to_client) == b"+PONG\r\n" * 5
    assert (talk.wants_turn, talk.holds_back, talk.awaits_more) == (False, False, False)
