"""Commands about the server itself, and scripts, scans and similar commands."""

from __future__ import annotations

from functools import partial

import pytest

from tests.differential.differences import CLOCK, INFO_VALUES, LOG_ENTRY, STREAM_ID, TIME_LEFT
from tests.differential.pairs import Pair, step

a, b = partial(step, "a"), partial(step, "b")


@pytest.mark.parametrize(
    "section", ["", " server", " clients", " stats", " keyspace", " replication", " nosuch"]
)
def test_info(pair: Pair, section: str) -> None:
    pair.same(a("SET k 1"), a(f"INFO{section}", ignoring=[INFO_VALUES]))


def test_config(pair: Pair) -> None:
    pair.same(
        a(
            "CONFIG GET maxmemory*",
            "CONFIG GET nosuch",
            "CONFIG SET nosuch 1",
            "CONFIG SET maxmemory-samples x",
            "CONFIG",
            "CONFIG GET save",
            "CONFIG GET appendonly",
            "CONFIG RESETSTAT",
            "CONFIG HELP",
            "CONFIG SET slowlog-max-len 128",
        ),
    )


def test_the_command_table(pair: Pair) -> None:
    pair.same(
        a(
            "COMMAND COUNT",
            "COMMAND INFO get set nosuch",
            "COMMAND DOCS get",
            "COMMAND GETKEYS mset a 1 b 2",
            "COMMAND LIST",
            "COMMAND GETKEYS ping",
            "COMMAND NOSUCH",
            "COMMAND HELP",
            "COMMAND",
        ),
    )


def test_time_and_measurements(pair: Pair) -> None:
    pair.same(
        a("TIME", ignoring=[CLOCK]),
        a("LASTSAVE", ignoring=[CLOCK]),
        a("SET k 1 EX 100"),
        a("TTL k", ignoring=[TIME_LEFT]),
        a("PTTL k", ignoring=[TIME_LEFT]),
        a("XADD s * f v", ignoring=[STREAM_ID]),
        a("TTL nosuch"),
        digest=False,
    )


def test_logs(pair: Pair) -> None:
    pair.same(
        a(
            "SLOWLOG LEN",
            "SLOWLOG RESET",
            "LATENCY LATEST",
            "LATENCY RESET",
            "LATENCY HISTORY command",
            "LATENCY DOCTOR x",
        ),
        a(
            "SLOWLOG GET x",
            "SLOWLOG HELP",
            "LATENCY HELP",
            "ACL LOG",
            "ACL LOG RESET",
            "MEMORY USAGE nosuch",
            "MEMORY HELP",
        ),
        a("MEMORY STATS", ignoring=[LOG_ENTRY]),
        a("SET k 1", "MEMORY USAGE k", "OBJECT FREQ k", "OBJECT REFCOUNT k"),
    )


def test_access_lists(pair: Pair) -> None:
    pair.same(
        a(
            "ACL WHOAMI",
            "ACL LIST",
            "ACL USERS",
            "ACL CAT",
            "ACL CAT string",
            "ACL GETUSER default",
            "ACL GETUSER nosuch",
            "ACL SETUSER x nosuch",
            "ACL DELUSER nosuch",
            "ACL GENPASS x",
            "ACL HELP",
            "ACL DRYRUN default get k",
        )
    )


def test_roles_and_cluster(pair: Pair) -> None:
    pair.same(
        a(
            "ROLE",
            "CLUSTER INFO",
            "CLUSTER SLOTS",
            "CLUSTER KEYSLOT a",
            "READONLY",
            "READWRITE",
            "ASKING",
            "REPLICAOF x",
            "LOLWUT VERSION 1",
            "MODULE LIST",
            "FAILOVER ABORT",
            "SAVE x",
            "BGSAVE x",
            "SHUTDOWN NOSUCH",
            "SHUTDOWN ABORT",
        )
    )


def test_scripts(pair: Pair) -> None:
    load = ("SCRIPT", "LOAD", "return {KEYS[1], ARGV[1]}")
    sha1 = "1e7c3a9e7d9e1f9f8f5e0a7e2c3b4d5e6f708192"
    pair.same(
        a(load, ("EVAL", "return redis.sha1hex(ARGV[1])", 0, "return {KEYS[1], ARGV[1]}")),
        a(
            f"EVALSHA {sha1} 0",
            f"SCRIPT EXISTS {sha1}",
            "SCRIPT FLUSH",
            "SCRIPT KILL",
            "SCRIPT DEBUG NOSUCH",
            "SCRIPT HELP",
        ),
        a(
            ("EVAL", "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])", 1, "k", "v"),
            "GET k",
        ),
        a(
            ("EVAL_RO", "return redis.call('GET', KEYS[1])", 1, "k"),
            ("EVAL_RO", "return redis.call('SET', KEYS[1], 1)", 1, "k"),
        ),
        a(
            ("EVAL", "return redis.call('SELECT', 3)", 0),
            "GET k",
            ("EVAL", "redis.call('PUBLISH', 'x', 'y') return 1", 0),
        ),
    )


def test_a_loaded_script_runs_by_its_sha1(pair: Pair) -> None:
    pair.same(
        a(("SCRIPT", "LOAD", "return 1")),
        a("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0"),
        b("SCRIPT FLUSH"),
        a("EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0"),
    )


def test_functions(pair: Pair) -> None:
    code = b"function(keys) return redis.call('INCR', keys[1]) end"
    library = b"#!lua name=lib\nredis.register_function('bump', %b)" % code
    pair.same(
        a(
            ("FUNCTION", "LOAD", library),
            ("FUNCTION", "LOAD", library),
            "FCALL bump 1 k",
            "FCALL nosuch 0",
            "FCALL bump x",
        ),
        a(
            "FUNCTION LIST",
            "FUNCTION STATS",
            "FCALL_RO bump 1 k",
            "FUNCTION DELETE lib",
            "FCALL bump 1 k",
            "FUNCTION DUMP",
        ),
        a(("FUNCTION", "LOAD", "x"), "FUNCTION KILL", "FUNCTION HELP", "FUNCTION NOSUCH"),
    )


def test_scanning(pair: Pair) -> None:
    pair.same(
        a(
            *(f"SET key:{number} {number}" for number in range(200)),
            ("HSET", "h", *range(400)),
            ("SADD", "s", *range(700, 900)),
        ),
        a(
            "SCAN 0",
            "SCAN 0 COUNT 1000",
            "SCAN 0 MATCH key:1* COUNT 500",
            "SCAN 0 TYPE hash COUNT 500",
            "SCAN 12345",
            "HSCAN h 0 COUNT 20",
            "SSCAN s 0 COUNT 20",
            "ZSCAN nosuch 0",
            "KEYS key:19*",
            "DBSIZE",
            "KEYS *",
        ),
    )


def test_whole_databases(pair: Pair) -> None:
    pair.same(
        a(
            "SET k 1",
            "SELECT 1",
            "SET k 2",
            "FLUSHDB",
            "DBSIZE",
            "SELECT 0",
            "DBSIZE",
            "FLUSHALL ASYNC",
            "DBSIZE",
            "FLUSHDB x",
            replies=10,  # Redis 8 answers nothing behind FLUSHDB until another thread has flushed
        )
    )


def test_moving_values(pair: Pair) -> None:
    pair.same(
        a(
            "SET k v",
            "RENAME k l",
            "RENAMENX l m",
            "COPY m n",
            "TOUCH m n o",
            "UNLINK m",
            "EXISTS m n",
            "RANDOMKEY",
            "PERSIST n",
            "EXPIREAT n 99999999999",
            "OBJECT HELP",
            "DUMP n",
            "SORT nosuch",
            "WAIT 0 1",
        )
    )
