"""MULTI, EXEC, DISCARD and WATCH, with all their errors."""

from __future__ import annotations

from functools import partial

from tests.differential.pairs import Pair, step

a, b = partial(step, "a"), partial(step, "b")


def test_a_transaction(pair: Pair) -> None:
    pair.same(a("MULTI"), a("SET k 1"), a("INCR k"), a("GET k"), a("EXEC"), a("GET k"))


def test_a_transaction_in_one_piece(pair: Pair) -> None:
    pair.same(a("MULTI", "SET k 1", "INCR k", "PING", "GET k", "EXEC", "GET k"))


def test_an_empty_transaction(pair: Pair) -> None:
    pair.same(a("MULTI", "EXEC"), a("MULTI", "DISCARD", "EXEC", "DISCARD"))


def test_exec_and_discard_without_multi(pair: Pair) -> None:
    pair.same(a("EXEC", "DISCARD", "PING"), a("SET k v", "EXEC"), a("DISCARD"))


def test_multi_inside_multi(pair: Pair) -> None:
    pair.same(
        a("MULTI", "MULTI", "SET k 1", "EXEC"), a("GET k"), a("MULTI", "SET k 2"), a("MULTI"), a("EXEC")
    )


def test_watch_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI"), a("WATCH k"), a("UNWATCH"), a("SET k 1"), a("EXEC"))
    pair.same(a("MULTI", "WATCH k", "SET k 1", "EXEC", "GET k"))


def test_an_error_while_queueing_aborts(pair: Pair) -> None:
    for wrong in ("SET", "NOSUCH k", "GET a b", "CLIENT NOSUCH", "OBJECT NOSUCH k", "MULTI now", "WATCH"):
        pair.same(a("MULTI", "SET k 1", wrong, "SET k 2", "EXEC"), a("GET k"), a("EXEC"))
        pair.same(a("MULTI"), a("SET k 1"), a(wrong), a("DISCARD"), a("GET k", "EXEC"))


def test_an_error_while_running_does_not_abort(pair: Pair) -> None:
    pair.same(a("SET k v"), a("MULTI", "LPUSH k 1", "INCR k", "SET n 1", "EXEC"), a("GET n"))


def test_exec_with_arguments_aborts_the_transaction(pair: Pair) -> None:
    pair.same(a("MULTI"), a("SET k 1"), a("EXEC now"), a("EXEC"), a("EXEC"))
    pair.same(a("MULTI", "SET k 1", "DISCARD now", "DISCARD", "GET k", "DISCARD"))


def test_a_watched_key_changed_by_another_client(pair: Pair) -> None:
    pair.same(
        a("WATCH k other"),
        a("GET k"),
        b("SET k 1"),
        a("MULTI", "SET k 2", "EXEC"),
        b("GET k"),
        a("MULTI", "SET k 3", "EXEC"),
        b("GET k"),
    )


def test_an_unchanged_watched_key(pair: Pair) -> None:
    pair.same(a("SET k 1", "WATCH k"), b("GET k"), b("SET other 1"), a("MULTI", "INCR k", "EXEC"), b("GET k"))


def test_unwatch_forgets_watched_keys(pair: Pair) -> None:
    pair.same(a("WATCH k", "UNWATCH"), b("SET k 1"), a("MULTI", "SET k 2", "EXEC"), b("GET k"))
    pair.same(a("WATCH k"), b("SET k 1"), a("UNWATCH"), a("MULTI", "SET k 2", "EXEC"))


def test_discard_forgets_watched_keys(pair: Pair) -> None:
    pair.same(a("WATCH k"), b("SET k 1"), a("MULTI", "DISCARD"), a("MULTI", "SET k 2", "EXEC"))


def test_a_watched_key_changed_by_the_watcher(pair: Pair) -> None:
    pair.same(a("WATCH k", "SET k 1", "MULTI", "SET k 2", "EXEC", "GET k"))


def test_watching_in_two_databases(pair: Pair) -> None:
    pair.same(a("SELECT 3", "WATCH k", "SELECT 4"), b("SELECT 4", "SET k 1"), a("MULTI", "PING", "EXEC"))
    pair.same(a("SELECT 3", "WATCH k", "SELECT 4"), b("SELECT 3", "SET k 1"), a("MULTI", "PING", "EXEC"))


def test_two_transactions_side_by_side(pair: Pair) -> None:
    pair.same(
        a("MULTI"),
        b("MULTI"),
        a("INCR k"),
        b("INCRBY k 10"),
        b("EXEC"),
        a("GET k"),
        a("EXEC"),
        b("GET k"),
    )


def test_a_client_that_leaves_inside_multi_runs_nothing(pair: Pair) -> None:
    pair.same(a("MULTI", "SET k 1"), a(closes=True), b("GET k"))
    pair.same(a("MULTI", "SET k 1", b"*1\r\n$4\r\nEX"), a(closes=True), b("GET k"))


def test_blocking_commands_do_not_block_inside_multi(pair: Pair) -> None:
    pair.same(
        a("MULTI", "BLPOP l 0", "BRPOPLPUSH l m 0", "BZPOPMIN z 0", "XREAD BLOCK 0 STREAMS s $", "EXEC")
    )
    pair.same(a("RPUSH l 1", "MULTI", "BLPOP l 0", "BLMOVE l m LEFT LEFT 0", "EXEC"))


def test_connection_settings_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI", "SELECT 5", "SET k 5", "EXEC", "GET k"), b("GET k"), a("SELECT 0", "GET k"))
    pair.same(a("MULTI", "CLIENT SETNAME me", "CLIENT GETNAME", "EXEC", "CLIENT GETNAME"))
    pair.same(a("MULTI", "SELECT 99", "SELECT x", "SET k 1", "EXEC", "GET k"))
    pair.same(a("MULTI"), a("SELECT 5"), a("SELECT 6"), a("DISCARD"), a("SET k 5"), b("GET k"))


def test_switching_the_protocol_inside_multi(pair: Pair) -> None:
    for version in (2, 3):
        pair.same(a("MULTI", f"HELLO {version}", "HGETALL h", "EXEC"), a("HGETALL h", "GET k"))
    pair.same(a("MULTI", "HELLO 4", "GET k", "EXEC"), a("HELLO"))
    pair.same(a("MULTI", "HELLO 3", "DISCARD"), a("GET k"))
    pair.same(a("MULTI", "HELLO 3 SETNAME me", "CLIENT GETNAME", "EXEC"), a("GET k"))
    pair.same(a("MULTI", "HELLO 3 AUTH default wrong", "EXEC"), a("GET k"))


def test_auth_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI", "AUTH wrong", "GET k", "EXEC"), a("GET k"))
    pair.same(a("MULTI", "AUTH default anything", "GET k", "EXEC"), a("GET k"))
    pair.same(a("MULTI", "AUTH a b c", "GET k", "EXEC"), a("GET k"))


def test_reset_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI", "SET k 1", "RESET", "GET k", "EXEC"), a("GET k"))
    pair.same(a("WATCH k", "SELECT 3", "MULTI", "SET k 1"), a("RESET"), a("SET k 2"), b("GET k"))


def test_quit_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI", "SET k 1", "QUIT", "EXEC"), b("GET k"))


def test_monitor_inside_multi(pair: Pair) -> None:
    pair.same(a("MULTI", "MONITOR", "GET k", "EXEC"), a("GET k"))


def test_client_reply_inside_multi(pair: Pair) -> None:
    """Only the cases that keyfence follows; docs/differences.md has the others."""
    pair.same(a("MULTI", "CLIENT REPLY ON", "GET k", "EXEC", "GET k"))


def test_scripts_inside_multi(pair: Pair) -> None:
    script = ("EVAL", "return redis.call('INCR', KEYS[1])", 1, "k")
    pair.same(a("MULTI", script, "EVALSHA abc 0", script, "EXEC"), a("GET k"))


def test_many_transactions_in_one_pipeline(pair: Pair) -> None:
    some = (
        "MULTI",
        "INCR k",
        "GET k",
        "EXEC",
        "GET k",
        "MULTI",
        "NOSUCH",
        "EXEC",
        "MULTI",
        "SET k 0",
        "DISCARD",
    )
    pair.same(a(*some * 200))
    pair.same(a(*some * 20, pieces=[1, 2, 3, 50, 7, 400, 1, 1]))
