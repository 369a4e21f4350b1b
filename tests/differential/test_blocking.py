"""Blocking commands: they wait for data, for time to pass, or for other clients."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.pairs import Pair, step
from tests.differential.sides import Id

a, b, c = partial(step, "a"), partial(step, "b"), partial(step, "c")

# Blocking commands, and the commands of another client that unblock them.
WAITING = [
    ("BLPOP l 0", "RPUSH l 1 2"),
    ("BRPOP m l 0", "RPUSH l 1 2"),
    ("BLMOVE l m LEFT RIGHT 0", "RPUSH l 1"),
    ("BRPOPLPUSH l m 0", "RPUSH l 1"),
    ("BZPOPMIN z 0", "ZADD z 1 one 2 two"),
    ("BZPOPMAX y z 0", "ZADD z 1 one 2.5 two"),
    ("BLMPOP 0 2 k l LEFT COUNT 5", "RPUSH l 1 2 3"),
    ("BZMPOP 0 1 z MIN COUNT 2", "ZADD z 1 one 2 two"),
    ("XREAD BLOCK 0 STREAMS s $", "XADD s 1-1 f v"),
    ("XREAD COUNT 1 BLOCK 0 STREAMS s t 0 0", "XADD t 1-1 f v"),
]


def _known(pair: Pair, command: str) -> bool:
    return pair.server.version_info >= (7,) or not command.startswith(("BLMPOP", "BZMPOP"))


@pytest.mark.parametrize(
    ("waits", "ends"), WAITING, ids=[waits.split()[0] + waits.split()[1] for waits, _ in WAITING]
)
def test_a_command_blocks_until_another_client_adds_data(pair: Pair, waits: str, ends: str) -> None:
    if not _known(pair, waits):
        pair.same(a(waits, "PING"))
        return
    pair.same(a(waits), b("PING"), b(ends), a("PING"), b("EXISTS k l m z s t"))
    pair.same(b(ends), a(waits) if "$" not in waits else a("PING"), a("PING"))


@pytest.mark.parametrize("waits", [waits for waits, _ in WAITING])
def test_a_command_blocks_until_its_timeout(pair: Pair, waits: str) -> None:
    if not _known(pair, waits):
        pytest.skip("this server does not know it")
    words = waits.split()
    if words[0] in ("BLMPOP", "BZMPOP"):
        words[1] = "0.05"
    elif "BLOCK" in words:
        words[words.index("BLOCK") + 1] = "50"
    else:
        words[-1] = "0.05"
    pair.same(a(" ".join(words), replies=1), a("PING"))


def test_commands_after_a_blocked_one_wait_too(pair: Pair) -> None:
    pair.same(a("GET k", "BLPOP l 0", "GET k", "PING"), b("SET k 1"), b("RPUSH l x"), a("GET k"))
    pair.same(a("BLPOP l 0"), a("GET k"), a("INCR k"), b("SET k 1"), b("RPUSH l x"), a("GET k"))


def test_several_clients_block_on_one_key(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), b("BLPOP l 0"), c("RPUSH l 1"), c("RPUSH l 2"), a("PING"), b("PING"))
    pair.same(a("BLPOP l 0", "BLPOP l 0"), c("RPUSH l 1"), c("RPUSH l 2"))


def test_a_consumer_group(pair: Pair) -> None:
    pair.same(
        a("XGROUP CREATE s g $ MKSTREAM"),
        a("XREADGROUP GROUP g me COUNT 2 BLOCK 0 STREAMS s >"),
        b("XADD s 1-1 op create"),
        a("XACK s g 1-1", "XPENDING s g"),
        a("XREADGROUP GROUP nosuch me STREAMS s >"),
        a("XREADGROUP GROUP g me BLOCK 0 STREAMS s >"),
        b("XGROUP DESTROY s g"),
        a("PING"),
    )


def test_a_blocked_client_that_leaves_takes_nothing(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), a(closes=True), b("PING"), c("PING"), b("RPUSH l 1"), b("LRANGE l 0 -1"))


def test_data_of_the_wrong_type_does_not_unblock(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), b("SET l 1"), b("DEL l"), b("RPUSH l 1"))
    pair.same(a("SET l 1", "BLPOP l 0", "BLPOP l x", "BLPOP l -1", "BLPOP l", "BLPOP"), a("PING"))


def test_another_client_unblocks_a_client(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), b(("CLIENT", "UNBLOCK", Id("a"))), a("PING"), b(("CLIENT", "UNBLOCK", Id("a"))))
    pair.same(a("BLPOP l 0"), b(("CLIENT", "UNBLOCK", Id("a"), "ERROR")), a("PING"))
    pair.same(a("XREAD BLOCK 0 STREAMS s $"), b(("CLIENT", "UNBLOCK", Id("a"), "TIMEOUT")), a("PING"))
    pair.same(a("PING"), b(("CLIENT", "UNBLOCK", Id("a"), "NOSUCH"), "CLIENT UNBLOCK x", "CLIENT UNBLOCK"))


def test_a_blocked_client_is_killed(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), b(("CLIENT", "KILL", "ID", Id("a"))), b("RPUSH l 1", "LLEN l"))


def test_a_transaction_unblocks_clients(pair: Pair) -> None:
    pair.same(a("BLPOP l 0"), b("MULTI", "RPUSH l 1", "DEL l", "EXEC"), b("RPUSH l 2"))
    pair.same(a("BLPOP l 0"), b("MULTI", "RPUSH l 1", "RPUSH l 2", "EXEC"))
    pair.same(a("BLPOP l 0"), b(("EVAL", "return redis.call('RPUSH', KEYS[1], 1)", 1, "l")))


def test_wait_without_replicas(pair: Pair) -> None:
    """There are no replicas: WAIT 0 answers at once, any other WAIT after its timeout."""
    pair.same(
        a("WAIT 0 0", "SET k 1", "WAIT 0 0"), a("SET k 2", "WAIT 1 50", replies=2), a("WAIT 1 10", replies=1)
    )
    pair.same(a("WAIT x 1", "WAIT 0 -1", "WAIT 0", "WAIT"), a("PING"))
    pair.same(a("SET k 1", "WAIT 2 50", "GET k", replies=3), a("WAIT 0 0"))


def test_client_pause_of_writes(pair: Pair) -> None:
    pair.same(
        a("SET k 1", "CLIENT PAUSE 60000 WRITE"),
        b("GET k"),
        b("SET k 2"),
        a("CLIENT UNPAUSE"),
        b("GET k"),
        a("GET k"),
    )


def test_client_pause_of_everything(pair: Pair) -> None:
    pair.same(a("CLIENT PAUSE 60"), b("GET k", replies=1), a("CLIENT PAUSE 50 ALL"), b("SET k 1", replies=1))
    pair.same(
        a("CLIENT PAUSE x", "CLIENT PAUSE -1", "CLIENT PAUSE 1 NOSUCH", "CLIENT PAUSE", "CLIENT UNPAUSE")
    )


def test_a_sleeping_server(pair: Pair) -> None:
    pair.same(a("DEBUG SLEEP 0.1", "GET k"), b("SET k 1"), a("GET k"))


def test_half_closing_while_blocked(pair: Pair) -> None:
    pair.same(a("PING", "GET k", half_closes=True), b("PING"))
