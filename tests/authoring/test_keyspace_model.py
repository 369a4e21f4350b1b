"""The model of Redis' key space agrees with Redis' documentation of the commands."""

from __future__ import annotations

import pytest

from keyfence.authoring.keyspace_model import Keyspace
from keyfence.commands.extract import extract

NOW = 1_000_000_000_000


def lives(*commands: str, key: bytes = b"k") -> int:
    """Returns PTTL of the key after the commands, with the clock stopped."""
    keyspace = Keyspace()
    for command in commands:
        keyspace.run(extract(command.encode().split()), NOW)
    return keyspace.pttl(key, NOW)


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        ([], -2),
        (["SET k v"], -1),
        (["SET k v EX 60"], 60_000),
        (["SET k v EX 60", "SET k v"], -1),
        (["SET k v EX 60", "SET k v KEEPTTL"], 60_000),
        (["SET k v EX 60", "SETNX k v"], 60_000),
        (["SETNX k v"], -1),
        (["SET k v XX EX 60"], -2),
        (["HSET k f v"], -1),
        (["HDEL k f"], -2),
        (["EXPIRE k 60"], -2),
        (["HSET k f v", "EXPIRE k 60"], 60_000),
        (["HSET k f v", "EXPIRE k 0"], -2),
        (["SET k v EX 60", "EXPIRE k 30 GT"], 60_000),
        (["SET k v EX 60", "EXPIRE k 90 GT"], 90_000),
        (["SET k v", "EXPIRE k 90 GT"], -1),
        (["SET k v", "EXPIRE k 90 LT"], 90_000),
        (["SET k v EX 60", "EXPIRE k 90 LT"], 60_000),
        (["SET k v EX 60", "EXPIRE k 90 NX"], 60_000),
        (["SET k v", "EXPIRE k 90 XX"], -1),
        (["SET k v EX 60", "PERSIST k"], -1),
        (["SET k v EX 60", "GETEX k PERSIST"], -1),
        (["SET k v", "GETEX k EX 5"], 5_000),
        (["SET k v", "EXPIREAT k 1"], -2),
        (["SET k v", "PEXPIREAT k 1000000000500"], 500),
        (["SET k v EX 60", "DEL k"], -2),
        (["SET k v EX 60", "INCR k"], 60_000),
        (["SET o v EX 60", "RENAME o k"], 60_000),
        (["SET o v", "SET k v EX 60", "RENAME o k"], -1),
        (["SET o v EX 60", "SET k v", "RENAMENX o k"], -1),
        (["RENAME o k"], -2),
        (["SET o v EX 60", "COPY o k"], 60_000),
        (["SET o v EX 60", "SET k v", "COPY o k"], -1),
        (["SET o v EX 60", "SET k v", "COPY o k REPLACE"], 60_000),
        (["SET k v", "MOVE k 0"], -1),
        (["RESTORE k 5000 x"], 5_000),
        (["RESTORE k 0 x"], -1),
        (["SET o v", "MSETNX k v o v"], -2),
        (["MSETNX k v o v"], -1),
        (["SET k v", "SET k v EX 0"], -1),
        (["SET k v", "SETEX k -1 v"], -1),
        (["SET k v", "SET k v EXAT 1"], -2),
        (["SET k v EX 60", "COPY k k"], 60_000),
    ],
)
def test_commands_leave_this_time_to_live(commands: list[str], left: int) -> None:
    assert lives(*commands) == left


def test_the_source_of_a_rename_goes_only_if_the_rename_happens() -> None:
    assert lives("SET o v", "RENAME o k", key=b"o") == -2
    assert lives("SET o v EX 60", "SET k v", "RENAMENX o k", key=b"o") == 60_000
    assert lives("SET o v EX 60", "RENAME o o", key=b"o") == 60_000


def test_a_key_goes_to_another_database() -> None:
    here, there = Keyspace({b"k": NOW + 60, b"o": None}), Keyspace({b"o": NOW + 90})

    def run(command: str) -> tuple[int, ...]:
        here.run(extract(command.encode().split()), NOW, there)
        return tuple(each.pttl(key, NOW) for each in (here, there) for key in (b"k", b"o"))

    assert run("COPY k k DB 1") == (60, -1, 60, 90)
    assert run("COPY o o DB 1") == (60, -1, 60, 90)
    assert run("MOVE o 1") == (60, -1, 60, 90)
    assert run("COPY o o DB 1 REPLACE") == (60, -1, 60, -1)
    assert run("COPY k x DB 1") == (60, -1, 60, -1)
    assert run("MOVE k 1") == (60, -1, 60, -1)
    assert there.pttl(b"x", NOW) == 60


def test_a_key_that_moves_to_another_database_is_gone_here() -> None:
    here, there = Keyspace({b"k": NOW + 60}), Keyspace()
    here.run(extract(b"MOVE k 1".split()), NOW, there)
    assert (here.pttl(b"k", NOW), there.pttl(b"k", NOW)) == (-2, 60)


def test_keys_expire_with_time() -> None:
    keyspace = Keyspace({b"a": NOW + 10, b"b": None})
    assert keyspace.exists(b"a", NOW + 9)
    assert not keyspace.exists(b"a", NOW + 10)
    assert keyspace.pttl(b"b", NOW * 2) == -1
    assert keyspace.pttl(b"a", NOW + 10) == -2
