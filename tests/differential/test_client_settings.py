"""Settings of a connection: protocol, user, database, name, replies, tracking, monitoring."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.differences import CLIENT_ID, CLIENT_LIST, MONITOR_LINE
from tests.differential.pairs import Pair, step
from tests.differential.sides import Id
from tests.differential.ways import UNANSWERED
from tests.servers import ServerBinary

a, b, c = partial(step, "a"), partial(step, "b"), partial(step, "c")


# -- HELLO, AUTH, RESET, QUIT, SELECT


def test_hello(plain_pair: Pair) -> None:
    plain_pair.same(
        a("HELLO"), a("HELLO 3"), a("HGETALL h"), a("HELLO"), a("HELLO 2"), a("HGETALL h"), a("HELLO")
    )


@pytest.mark.parametrize("first", ["HELLO", "HELLO 2", "HELLO 3"])
def test_hello_as_the_first_command(plain_pair: Pair, first: str) -> None:
    plain_pair.same(a(first, "GET k", "HGETALL h"))


WRONG_HELLOS = [
    "HELLO 4",
    "HELLO 1",
    "HELLO x",
    "HELLO 99999999999999999999",
    "HELLO 3 AUTH",
    "HELLO 3 AUTH default",
    "HELLO 3 SETNAME",
    "HELLO 3 NOSUCH",
    "HELLO 3 SETNAME a NOSUCH",
    "HELLO 3 AUTH default x NOSUCH",
    "HELLO 3 AUTH nosuch x",
    "HELLO 3 AUTH nosuch x SETNAME n",
    "HELLO 3 SETNAME n AUTH nosuch x",
    "HELLO -3",
    "HELLO 03",
    "HELLO +3",
    "HELLO 3.0",
]


@pytest.mark.parametrize("hello", WRONG_HELLOS)
def test_a_wrong_hello_has_the_same_effects_as_in_redis(plain_pair: Pair, hello: str) -> None:
    plain_pair.same(a(hello), a("GET k", "CLIENT GETNAME", "HELLO"))


def test_hello_with_options(plain_pair: Pair) -> None:
    plain_pair.same(a("HELLO 3 AUTH default anything"), a("GET k", "ACL WHOAMI"))
    plain_pair.same(
        a("HELLO 3 SETNAME me"), a("CLIENT GETNAME"), a("HELLO 2 SETNAME you"), a("CLIENT GETNAME")
    )
    plain_pair.same(
        a("HELLO 3 AUTH default x SETNAME me", "CLIENT GETNAME"), a("hello 2 setname you auth default x")
    )
    plain_pair.same(a(("HELLO", 3, "SETNAME", "white space")), a("GET k", "CLIENT GETNAME"))


def test_auth(pair: Pair) -> None:
    pair.same(
        a("AUTH x"),
        a("AUTH default x"),
        a("AUTH nosuch x"),
        a("AUTH a b c", "AUTH"),
        a("GET k", "ACL WHOAMI"),
    )
    if not pair.answers_failed_logins:
        pytest.skip(UNANSWERED)
    pair.same(a("AUTH x", "AUTH default x", "AUTH nosuch x", "SET k 1", "AUTH nosuch y", "GET k"))


def test_reset(pair: Pair) -> None:
    pair.same(
        a("SELECT 3", "CLIENT SETNAME me", "SET k 3"),
        a("RESET"),
        a("GET k", "CLIENT GETNAME", "HGETALL h", "HELLO"),
    )
    pair.same(a("SET k 1", "RESET", "GET k", "RESET", "RESET", "HGETALL h"), a("RESET now"), a("GET k"))


def test_quit(pair: Pair) -> None:
    pair.same(a("SET k 1", "QUIT", "SET k 2"), b("GET k"))
    pair.same(a("QUIT now"), b("GET k"))
    pair.same(a(b"QUIT\r\n"), b("GET k"))


def test_select(pair: Pair) -> None:
    pair.same(
        a(
            "SET k 0",
            "SELECT 1",
            "GET k",
            "SET k 1",
            "SELECT 15",
            "GET k",
            "SELECT 16",
            "SELECT -1",
            "SELECT x",
            "SELECT",
            "SELECT 1 2",
            "GET k",
            "SELECT 0",
            "GET k",
        ),
        b("GET k"),
        a("SELECT 1"),
        a("GET k"),
        b("GET k"),
        a("MOVE k 2", "SELECT 2", "GET k"),
        a("SWAPDB 0 2"),
        b("GET k"),
        a("COPY k k2 DB 5", "SELECT 5", "GET k2"),
    )


# -- names, ids, lists


def test_connection_names(pair: Pair) -> None:
    pair.same(
        a("CLIENT GETNAME"),
        a("CLIENT SETNAME me"),
        a("CLIENT GETNAME"),
        b("CLIENT GETNAME"),
        a(("CLIENT", "SETNAME", "no space")),
        a(("CLIENT", "SETNAME", "")),
        a("CLIENT GETNAME", "CLIENT SETNAME"),
        a("CLIENT SETNAME a b", "CLIENT GETNAME x"),
    )


def test_library_names(pair: Pair) -> None:
    """Redis knows library names since 7.2. Before, the command is an error that libraries ignore."""
    pair.same(
        a("CLIENT SETINFO LIB-NAME redis-py", "CLIENT SETINFO LIB-VER 5", "client setinfo lib-name", "PING")
    )


def test_connection_ids(pair: Pair) -> None:
    pair.same(
        a("CLIENT ID", ignoring=[CLIENT_ID]), a("CLIENT ID x", "CLIENT", "CLIENT NOSUCH", "CLIENT NOSUCH a")
    )


def test_client_info(pair: Pair) -> None:
    if pair.server.version_info < (6, 2):
        pytest.skip("not in this version")
    pair.same(
        a("CLIENT SETNAME me", "SELECT 3"), a("CLIENT INFO", ignoring=[CLIENT_LIST]), a("CLIENT INFO x")
    )


def test_client_list(pair: Pair) -> None:
    mine = [CLIENT_LIST]
    pair.same(
        a(("CLIENT", "LIST", "ID", Id("a")), ignoring=mine), a("CLIENT LIST TYPE pubsub", ignoring=mine)
    )
    pair.same(
        a("CLIENT SETNAME a"),
        b("SUBSCRIBE x"),
        a(("CLIENT", "LIST", "ID", Id("a"), Id("b")), ignoring=mine),
        a(
            "CLIENT LIST TYPE nosuch",
            "CLIENT LIST NOSUCH",
            "CLIENT LIST ID x",
            "CLIENT LIST ID",
            "CLIENT LIST TYPE",
        ),
        a("CLIENT LIST TYPE pubsub", ignoring=mine),
        a("CLIENT LIST TYPE replica", ignoring=mine),
    )


def test_killing_another_client(pair: Pair) -> None:
    pair.same(b("GET k"), a(("CLIENT", "KILL", "ID", Id("b"))), a(("CLIENT", "KILL", "ID", Id("b")), "GET k"))
    pair.same(b("SUBSCRIBE x"), a(("CLIENT", "KILL", "ID", Id("b"))), a("PUBLISH x 1"))
    pair.same(b("MULTI", "SET k 1"), a(("CLIENT", "KILL", "ID", Id("b"), "SKIPME", "no")), a("GET k"))


def test_killing_oneself(pair: Pair) -> None:
    pair.same(a(("CLIENT", "KILL", "ID", Id("a")), "GET k"), b("GET k"))
    pair.same(a(("CLIENT", "KILL", "ID", Id("a"), "SKIPME", "no"), "GET k"), b("GET k"))
    pair.same(a("SET k 1", ("CLIENT", "KILL", "ID", Id("a"), "SKIPME", "no"), "SET k 2"), b("GET k"))


def test_wrong_kills(pair: Pair) -> None:
    pair.same(
        a(
            "CLIENT KILL",
            "CLIENT KILL nosuch:1",
            "CLIENT KILL ID x",
            "CLIENT KILL ID 99999999",
            "CLIENT KILL NOSUCH x",
            "CLIENT KILL TYPE nosuch",
            "CLIENT KILL USER nosuch",
            "CLIENT KILL ADDR 1.2.3.4:5",
            "CLIENT KILL SKIPME maybe",
            "CLIENT KILL ID 99999999 SKIPME yes",
            "CLIENT KILL LADDR 1.2.3.4:5",
            "CLIENT KILL ID",
        ),
    )


def test_no_evict_and_no_touch(pair: Pair) -> None:
    pair.same(
        a("CLIENT NO-EVICT ON", "CLIENT NO-EVICT OFF", "CLIENT NO-EVICT", "CLIENT NO-EVICT x"),
        a(
            "CLIENT NO-TOUCH ON",
            "CLIENT NO-TOUCH OFF",
            "CLIENT NO-TOUCH x",
            "CLIENT UNPAUSE",
            "CLIENT UNPAUSE x",
        ),
        a("SET k 1", "GET k", "CLIENT HELP"),
    )


# -- CLIENT REPLY


def test_replies_off_and_on(pair: Pair) -> None:
    pair.same(
        a("SET k 1", "CLIENT REPLY OFF", "SET k 2", "NOSUCH", "GET k", silent=True),
        b("GET k"),
        a("SET k 3", silent=True),
        b("GET k"),
        a("CLIENT REPLY ON"),
        a("GET k"),
    )
    pair.same(a("CLIENT REPLY OFF", "GET k", "CLIENT REPLY ON", "GET k", "CLIENT REPLY ON", "GET k"))


def test_skipping_one_reply(pair: Pair, redis_binary: ServerBinary) -> None:
    pair.same(
        a("CLIENT REPLY SKIP", "SET k 1", "GET k", "CLIENT REPLY SKIP", "CLIENT REPLY SKIP", "GET k", "GET k")
    )
    pair.same(a("CLIENT REPLY SKIP", silent=True), a("SET k 1", silent=True), a("GET k"))
    pair.same(a("CLIENT REPLY SKIP", "CLIENT REPLY ON", "GET k", "CLIENT REPLY SKIP", "NOSUCH", "GET k"))
    pair.same(a("CLIENT REPLY OFF", "CLIENT REPLY SKIP", "GET k", "CLIENT REPLY ON", "GET k"))
    if redis_binary.version.startswith("8.0."):
        pytest.skip("an empty request does not end the effect of SKIP in Redis 8.0")
    pair.same(a("CLIENT REPLY SKIP", b"\r\n*0\r\n", "GET k", "GET k"))


def test_wrong_client_reply(pair: Pair) -> None:
    pair.same(a("CLIENT REPLY", "CLIENT REPLY MAYBE", "CLIENT REPLY ON OFF", "CLIENT REPLY ON", "GET k"))
    pair.same(a("CLIENT REPLY OFF", "CLIENT REPLY MAYBE", "CLIENT REPLY", "CLIENT REPLY ON", "GET k"))


def test_transactions_without_replies(pair: Pair) -> None:
    pair.same(
        a("CLIENT REPLY OFF", "MULTI", "INCR k", "EXEC", silent=True),
        b("GET k"),
        a("CLIENT REPLY ON", "GET k"),
    )
    pair.same(a("MULTI", "INCR k", "CLIENT REPLY ON", "EXEC", "GET k"))
    pair.same(a("CLIENT REPLY SKIP", "MULTI", "INCR k", "EXEC", "GET k"))


def test_subscriptions_without_replies(pair: Pair) -> None:
    pair.same(
        a("CLIENT REPLY OFF", "SUBSCRIBE x", silent=True),
        b("PUBLISH x 1"),
        a("UNSUBSCRIBE x", silent=True),
        a("CLIENT REPLY ON"),
        a("GET k"),
    )
    pair.same(a("CLIENT REPLY SKIP", "SUBSCRIBE x y", silent=True), b("PUBLISH x 1"), a("PING"))


def test_ending_without_replies(pair: Pair) -> None:
    pair.same(a("CLIENT REPLY OFF", "RESET", "GET k", silent=True), a("GET k"))
    pair.same(a("CLIENT REPLY SKIP", "RESET", "GET k", "GET k"), a("GET k"))
    pair.same(
        a("CLIENT REPLY OFF", "SELECT 3", "SET k 3", "HELLO 3", "CLIENT REPLY ON", "GET k", "HGETALL h")
    )
    pair.same(a("CLIENT REPLY OFF", "AUTH wrong", "AUTH default wrong", "CLIENT REPLY ON", "GET k"))


# -- CLIENT TRACKING


def test_tracking(pair: Pair) -> None:
    pair.same(
        a("SET k 0", "CLIENT TRACKING ON"),
        a("GET k", "MGET k l"),
        b("SET k 1"),
        b("SET k 2", "SET l 1"),
        a("GET k"),
        b("DEL k"),
        a("GET l", "CLIENT TRACKING OFF"),
        b("SET l 3"),
        a("GET l"),
        a("CLIENT TRACKINGINFO"),
    )


def test_tracking_in_a_pipeline_with_own_writes(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON", "GET k", "SET k 1", "GET k", "SET k 2", "INCR k", "GET k", "PING"),
        b("SET k 5"),
    )
    pair.same(a("CLIENT TRACKING ON NOLOOP", "GET k", "SET k 1", "GET k", "PING"), b("SET k 5"), a("PING"))


def test_tracking_by_prefix(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON BCAST PREFIX u: PREFIX o:"),
        b("SET u:1 1", "SET x 1", "SET o:1 1"),
        b("SET u:1 2"),
        a("PING", "CLIENT TRACKINGINFO"),
        a("CLIENT TRACKING OFF"),
        b("SET u:1 3"),
        a("PING"),
    )
    pair.same(
        a("CLIENT TRACKING ON BCAST"), b("SET x 1"), b("MULTI", "SET x 2", "SET y 2", "EXEC"), a("PING")
    )
    pair.same(a("CLIENT TRACKING ON BCAST NOLOOP", "SET x 1", "PING"), b("SET x 2"), a("PING"))


def test_tracking_with_optin_and_optout(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON OPTIN", "GET x", "CLIENT CACHING YES", "GET y", "GET z"),
        b("SET x 1", "SET y 1", "SET z 1"),
        a("PING"),
        a("CLIENT CACHING NO"),
    )
    pair.same(
        a("CLIENT TRACKING ON OPTOUT", "GET x", "CLIENT CACHING NO", "GET y", "GET z"),
        b("SET x 1", "SET y 1", "SET z 1"),
        a("PING"),
        a("CLIENT CACHING YES"),
    )


def test_tracking_redirected_to_another_connection(plain_pair: Pair) -> None:
    """RESP2's form of tracking: messages on a channel of Redis' own."""
    plain_pair.same(
        b("SUBSCRIBE __redis__:invalidate"),
        a(("CLIENT", "TRACKING", "ON", "REDIRECT", Id("b"))),
        a("GET k"),
        c("SET k 1"),
        a("PING", "CLIENT TRACKING OFF"),
        c("SET k 2"),
        b("UNSUBSCRIBE"),
        b("PING"),
    )
    plain_pair.same(
        b("HELLO 3"),
        a(("CLIENT", "TRACKING", "ON", "REDIRECT", Id("b"))),
        a("GET k"),
        c("SET k 1"),
        b("PING"),
        a("PING"),
        a(("CLIENT", "GETREDIR"), ignoring=[CLIENT_ID]),
        b(closes=True),
        a("GET k"),
        c("SET k 2"),
        a("PING"),
    )
    plain_pair.same(
        b("SUBSCRIBE __redis__:invalidate"),
        a(("CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", Id("b"))),
        c("SET k 1"),
        a("SET k 2"),
        c("FLUSHDB ASYNC"),
        a("PING"),
    )


def test_tracking_redirected_to_an_unknown_connection(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON REDIRECT x", "CLIENT TRACKING ON REDIRECT", "CLIENT GETREDIR"),
        a("GET k"),
    )


def test_wrong_tracking_settings(pair: Pair) -> None:
    pair.same(
        a(
            "CLIENT TRACKING",
            "CLIENT TRACKING MAYBE",
            "CLIENT TRACKING ON NOSUCH",
            "CLIENT TRACKING ON OPTIN OPTOUT",
            "CLIENT TRACKING ON PREFIX a",
            "CLIENT TRACKING ON BCAST PREFIX a PREFIX ab",
            "CLIENT TRACKING ON BCAST OPTIN",
            "CLIENT CACHING YES",
            "CLIENT CACHING MAYBE",
            "CLIENT TRACKING ON",
            "CLIENT TRACKING ON BCAST",
            "GET k",
        ),
    )


def test_tracking_and_transactions(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON", "MULTI", "GET k", "SET k 1", "GET k", "EXEC", "PING"), b("SET k 2"), a("PING")
    )


def test_tracking_in_the_middle_of_another_client_s_pipeline(pair: Pair) -> None:
    pair.same(
        a("CLIENT TRACKING ON", *(f"GET k{number}" for number in range(300))),
        b(*(f"SET k{number} 1" for number in range(300))),
        a("FLUSHALL ASYNC", "PING"),
        b("FLUSHALL ASYNC"),
        a("PING"),
    )


def test_reset_ends_tracking(plain_pair: Pair) -> None:
    plain_pair.same(
        a("HELLO 3", "CLIENT TRACKING ON", "GET k"), a("RESET"), b("SET k 1"), a("PING", "CLIENT GETREDIR")
    )


# -- MONITOR


def test_monitoring(pair: Pair) -> None:
    seen = [MONITOR_LINE]
    pair.same(
        b("GET k"),  # the setup of shared connections is seen too
        b("SELECT 3", "GET k", "SELECT 0", "GET k"),
        a("MONITOR", ignoring=seen),
        b("SET k 1", "GET k", ignoring=seen),
        b("SELECT 3", "GET k", ignoring=seen),
        a("QUIT", ignoring=seen),
        b("GET k"),
    )


def test_a_monitor_sends_other_commands(pair: Pair) -> None:
    seen = [MONITOR_LINE]
    pair.same(
        b("GET k"),  # the setup of shared connections is seen too
        a("GET k", "MONITOR", ignoring=seen),
        a("MONITOR", ignoring=seen),
        a("GET k", ignoring=seen),
        b("INCR k", ignoring=seen),
        a("PING", "SET k 7", ignoring=seen),
        a("RESET", ignoring=seen),
        b("GET k"),
        a("GET k"),
    )
    pair.same(a("MONITOR x", "GET k"))


def test_monitoring_scripts_and_transactions(pair: Pair) -> None:
    seen = [MONITOR_LINE]
    pair.same(
        b("GET k"),  # the setup of shared connections is seen too
        a("MONITOR", ignoring=seen),
        b("MULTI", "SET k 1", "EXEC", ignoring=seen),
        b(("EVAL", "return redis.call('GET', KEYS[1])", 1, "k"), ignoring=seen),
        b(("ECHO", b'\x00\r\n"\\'), ignoring=seen),
    )


def test_a_monitor_disconnects(pair: Pair) -> None:
    pair.same(a("MONITOR", ignoring=[MONITOR_LINE]), a(closes=True), b("SET k 1"))
