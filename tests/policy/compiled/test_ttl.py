"""The outcome of each command form for a key's time to live: found at once, or asked about later."""

from __future__ import annotations

import shlex

import pytest
import redis

from keyfence.commands.extract import extract
from keyfence.policy.compiled import ttl
from keyfence.policy.compiled.ttl import TtlRule, late_fault, outcome
from tests.servers import RedisServer

NOW = 2_000_000_000
RULES = {
    "must": TtlRule(min=10_000, max=100_000),
    "none": TtlRule(none=True, required=False),
    "may": TtlRule(required=False, min=10_000, max=100_000),
    "write": TtlRule(max=100_000, at="write"),
    "now": TtlRule(max=100_000, immediate=True),
    "none now": TtlRule(none=True, required=False, immediate=True),
    "may now": TtlRule(required=False, max=100_000, immediate=True),
}
NAMES = {getattr(ttl, name): name for name in (
    "FINE", "FORBIDDEN", "REQUIRED", "TOO_SHORT", "TOO_LONG", "ASKS_PRESENCE", "ASKS_ALL", "GIVES", "SETTLES",
    "ASKS_GONE",
)}  # fmt: skip

# command: its outcome under `must`, `none`, `may` and `write`. The key is k.
TABLE = """
SET k v                       REQUIRED       FINE       FINE       REQUIRED
SET k v NX                    REQUIRED       FINE       FINE       REQUIRED
SET k v KEEPTTL               ASKS_PRESENCE  FINE       FINE       REQUIRED
SET k v XX KEEPTTL            FINE           FINE       FINE       FINE
SET k v EX 60                 SETTLES        FORBIDDEN  SETTLES    SETTLES
SET k v EX 60 NX              FINE           FORBIDDEN  FINE       FINE
SET k v EX 60 XX              FINE           FORBIDDEN  FINE       FINE
SET k v IFEQ x EX 60          FINE           FORBIDDEN  FINE       FINE
SET k v EX 5                  TOO_SHORT      FORBIDDEN  TOO_SHORT  SETTLES
SET k v EX 500                TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
SET k v EX 0                  FINE           FINE       FINE       FINE
SET k v EX x                  FINE           FINE       FINE       FINE
SET k v EXAT 2000000060       SETTLES        FORBIDDEN  SETTLES    SETTLES
SET k v EXAT 2000000500       TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
SET k v EXAT 1000000000       FINE           FINE       FINE       FINE
SETEX k 60 v                  SETTLES        FORBIDDEN  SETTLES    SETTLES
PSETEX k 5000 v               TOO_SHORT      FORBIDDEN  TOO_SHORT  SETTLES
SETNX k v                     ASKS_PRESENCE  FINE       FINE       REQUIRED
GETSET k v                    ASKS_PRESENCE  FINE       FINE       REQUIRED
MSET k v                      ASKS_PRESENCE  FINE       FINE       REQUIRED
MSETNX k v                    ASKS_PRESENCE  FINE       FINE       REQUIRED
GETEX k                       FINE           FINE       FINE       FINE
GETEX k EX 60                 SETTLES        FORBIDDEN  SETTLES    SETTLES
GETEX k PXAT 2000000500000    TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
GETEX k PERSIST               REQUIRED       FINE       FINE       REQUIRED
PERSIST k                     REQUIRED       FINE       FINE       REQUIRED
EXPIRE k 60                   SETTLES        FORBIDDEN  SETTLES    SETTLES
EXPIRE k 60 NX                GIVES          FORBIDDEN  GIVES      GIVES
EXPIRE k 60 XX                FINE           ASKS_ALL   FINE       FINE
EXPIRE k 60 GT                FINE           ASKS_ALL   FINE       FINE
EXPIRE k 60 LT                GIVES          FORBIDDEN  GIVES      GIVES
EXPIRE k 5                    TOO_SHORT      FORBIDDEN  TOO_SHORT  SETTLES
EXPIRE k 5 GT                 FINE           ASKS_ALL   FINE       FINE
EXPIRE k 5 NX                 TOO_SHORT      FORBIDDEN  TOO_SHORT  GIVES
EXPIRE k 500                  TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
EXPIRE k 500 NX               TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
EXPIRE k 500 GT               TOO_LONG       ASKS_ALL   TOO_LONG   TOO_LONG
EXPIRE k 500 LT               ASKS_ALL       FORBIDDEN  ASKS_ALL   ASKS_ALL
EXPIRE k -1                   SETTLES        SETTLES    SETTLES    SETTLES
EXPIRE k -1 XX                FINE           FINE       FINE       FINE
EXPIRE k x                    FINE           FINE       FINE       FINE
PEXPIRE k 60000               SETTLES        FORBIDDEN  SETTLES    SETTLES
EXPIREAT k 2000000060         SETTLES        FORBIDDEN  SETTLES    SETTLES
EXPIREAT k 1000000000         SETTLES        SETTLES    SETTLES    SETTLES
PEXPIREAT k 2000000500000     TOO_LONG       FORBIDDEN  TOO_LONG   TOO_LONG
HSET k f v                    ASKS_PRESENCE  FINE       FINE       REQUIRED
INCR k                        ASKS_PRESENCE  FINE       FINE       REQUIRED
XADD k * f v                  ASKS_PRESENCE  FINE       FINE       REQUIRED
XADD k NOMKSTREAM * f v       FINE           FINE       FINE       FINE
HDEL k f                      FINE           FINE       FINE       FINE
LPUSHX k 1                    FINE           FINE       FINE       FINE
SUNIONSTORE k s               ASKS_PRESENCE  FINE       FINE       REQUIRED
SORT s STORE k                ASKS_PRESENCE  FINE       FINE       REQUIRED
RESTORE k 0 p                 REQUIRED       FINE       FINE       REQUIRED
RESTORE k 60000 p REPLACE     SETTLES        FORBIDDEN  SETTLES    SETTLES
RESTORE k 60000 p             FINE           FORBIDDEN  FINE       FINE
RENAME s k                    ASKS_ALL       ASKS_ALL   ASKS_ALL   ASKS_ALL
RENAME k d                    SETTLES        SETTLES    SETTLES    SETTLES
COPY s k                      ASKS_ALL       ASKS_ALL   ASKS_ALL   ASKS_ALL
MOVE k 1                      ASKS_ALL       ASKS_ALL   ASKS_ALL   ASKS_ALL
DEL k                         SETTLES        SETTLES    SETTLES    SETTLES
GETDEL k                      SETTLES        SETTLES    SETTLES    SETTLES
GET k                         FINE           FINE       FINE       FINE
EVAL "return 1" 1 k           ASKS_GONE      ASKS_GONE  ASKS_GONE  ASKS_GONE
EVAL_RO "return 1" 1 k        FINE           FINE       FINE       FINE
"""
ROWS = [line.rsplit(maxsplit=4) for line in TABLE.strip().splitlines()]


def found(rule: str, command: str) -> str:
    (access,) = (a for a in extract([w.encode() for w in shlex.split(command)]).accesses if a.key == b"k")
    return NAMES[outcome(RULES[rule], access, lambda: NOW)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_outcome_of_each_command_under_each_rule(row: list[str]) -> None:
    command, *expected = row
    assert [found(rule, command) for rule in ("must", "none", "may", "write")] == expected


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_immediate_rule_makes_each_question_a_fault(row: list[str]) -> None:
    for rule, as_asked in (("now", "must"), ("none now", "none"), ("may now", "may")):
        asked = found(rule, row[0])
        if row[0].startswith("EVAL"):
            continue  # it is not known whether a script writes at all
        assert not asked.startswith("ASKS")
        if found(as_asked, row[0]).startswith("ASKS"):
            assert asked in ("REQUIRED", "FORBIDDEN", "TOO_LONG")


# The key before: none, or a string without a time to live, with a correct one, with one that is too long.
BEFORE = {"gone": [], "bare": ["SET k 1"], "right": ["SET k 1 EX 60"], "long": ["SET k 1 EX 500"]}


def broken(rule: TtlRule, left: int, everything: bool = True) -> bool:
    return late_fault(left, everything, rule, "", "") is not None


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(
    "row", [r for r in ROWS if "2000000" not in r[0] and r[0] != "MOVE k 1"], ids=lambda row: row[0]
)
def test_every_key_that_a_server_leaves_wrong_is_found_or_asked_about(
    row: list[str], before: str, redis_server: RedisServer
) -> None:
    command = shlex.split(row[0])
    if redis_server.version_info < (7,) and command[0] in ("EXPIRE", "PEXPIRE") and len(command) > 3:
        pytest.skip("no conditions of EXPIRE in Redis 6")
    with redis_server.client() as client:
        for line in ["SET s 1 EX 300", *BEFORE[before]]:
            client.execute_command(*line.split())
        payload = client.dump("s")
        was = client.pttl("k")
        try:
            client.execute_command(*(payload if word == "p" else word for word in command))
        except redis.ResponseError:
            assert client.pttl("k") <= was  # the command did nothing
            return
        left = client.pttl("k")
    for name in ("must", "none", "may", "write"):
        rule, is_ = RULES[name], found(name, row[0])
        if is_ == "FINE":
            assert not broken(rule, left) or broken(rule, was), (name, was, left)
        elif is_ == "GIVES":
            assert left != ttl.NO_TTL
        elif is_ == "SETTLES":
            assert not broken(rule, left), (name, was, left)
        elif is_ == "ASKS_PRESENCE":
            assert not broken(rule, left) or broken(rule, left, False) or broken(rule, was), (name, was, left)


def test_a_late_fault_names_the_command_and_the_time_after_it() -> None:
    rule = TtlRule(default=60_000, max=100_000)
    fault = late_fault(-1, False, rule, "HSET", "a:b")
    assert fault is not None
    assert (fault.rule, fault.message) == ("ttl.required", "a:b has no time to live 5s after HSET")
    fault = late_fault(200_000, True, rule, "RENAME", "a:b")
    assert fault is not None
    assert (fault.rule, fault.message, fault.hint) == (
        "ttl.range", "the time to live of a:b is too long 5s after RENAME", "at most 100s",
    )  # fmt: skip
    fault = late_fault(1, True, TtlRule(none=True, required=False), "COPY", "a:b")
    assert fault is not None
    assert (fault.rule, fault.hint) == ("ttl.forbidden", "PERSIST it")
