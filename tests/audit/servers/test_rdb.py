from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

import pytest

from keyfence.audit.checkpoint import Checkpoint
from keyfence.audit.scan import Audit, Options
from keyfence.audit.servers import rdb as module
from keyfence.audit.servers.links import Link
from keyfence.audit.servers.nodes import inspect
from keyfence.audit.servers.rdb import expired_keys, loaded
from keyfence.upstream.embedded import EmbeddedRedisError
from tests.audit.shop import fill, judge
from tests.servers import PATIENCE_SECONDS, RedisServer, ServerBinary, all_server_binaries, running_redis

VALKEYS = [one for one in all_server_binaries() if one.name == "valkey" and one.numbers >= (9,)]


def saved(server: RedisServer, folder: Path) -> Path:
    """An RDB file with the server's keys."""
    with server.client() as client:
        client.save()
        made = Path(client.config_get("dir")["dir"], "dump.rdb")
    return Path(shutil.move(made, folder / "a dump.rdb"))


def test_a_file_s_keys_are_audited_and_the_file_stays_as_it_is(
    redis_server: RedisServer, redis_binary: ServerBinary, tmp_path: Path
) -> None:
    with redis_server.client() as client:
        fill(client)
        size = client.dbsize()
    file = saved(redis_server, tmp_path)
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    with loaded(str(file), redis_binary.path) as endpoint:
        options = Options(is_file=True)
        result = Audit(judge(), [inspect(endpoint)], options, Checkpoint("", "audit", {})).run()
        assert expired_keys(endpoint) == 0
    assert result.seen == size
    assert list(result.notes) == ["idle times are not known: a file does not keep them"]
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert list(tmp_path.iterdir()) == [file]


def test_keys_that_have_expired_since_are_counted(fresh_redis: RedisServer, tmp_path: Path) -> None:
    if fresh_redis.version_info < (7,):
        pytest.skip("Redis 6.2 does not say how many keys had expired")
    with fresh_redis.client() as client:
        client.set("a", "1", px=1500)
        client.set("b", "1")
        until = time.time() + client.pttl("a") / 1000
    file = saved(fresh_redis, tmp_path)
    while time.time() <= until:
        time.sleep(0.05)
    with loaded(str(file)) as endpoint:
        assert expired_keys(endpoint) == 1
        assert inspect(endpoint).keys == {0: 1}
    assert time.time() < until + PATIENCE_SECONDS


@pytest.mark.parametrize("binary", VALKEYS, ids=lambda one: one.id)
def test_a_file_of_valkey_9_is_read_by_valkey_and_redis_says_who_can(
    binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_redis(binary) as server:
        with server.client() as client:
            client.mset({"a": "1", "b": "2"})
        file = saved(server, tmp_path)
    remedy = "is a file of Valkey, which .* does not read: install valkey-server"
    with pytest.raises(EmbeddedRedisError, match=remedy), loaded(str(file)):
        pass
    monkeypatch.setenv("PATH", str(binary.path.parent), prepend=":")
    with loaded(str(file)) as endpoint:
        assert inspect(endpoint).keys == {0: 2}


@pytest.mark.parametrize("content", [b"", b"not an RDB file"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(EmbeddedRedisError, match="file is not an RDB file"), loaded(str(tmp_path / "file")):
        pass


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match="cannot be read: no such file"), loaded(str(tmp_path / "x")):
        pass


def test_a_file_of_a_newer_redis_is_refused_with_the_server_s_words(tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").write_bytes(b"REDIS9999" + b"\xff" * 16)
    with (
        pytest.raises(EmbeddedRedisError, match="RDB format version 9999"),
        loaded(str(tmp_path / "dump.rdb")),
    ):
        pass


LOOP = b"#!lua name=never\nwhile true do end\n"
KEY = b"\xfe\x00\x00\x01k\x01v"  # of database 0: a string


def rdb(*parts: bytes) -> bytes:
    """A file of version 10, without a sum."""
    return b"REDIS0010" + b"".join(parts) + b"\xff" + bytes(8)


def library(code: bytes) -> bytes:
    return b"\xf5\x80" + len(code).to_bytes(4, "big") + code


def test_no_function_of_a_file_is_loaded(
    redis_server: RedisServer, redis_binary: ServerBinary, tmp_path: Path
) -> None:
    if redis_server.version_info < (7,):
        pytest.skip("Redis 6.2 has no functions")
    with redis_server.client() as client:
        code = "#!lua name=kept\nredis.register_function('f', function() return 1 end)"
        client.function_load(code, replace=True)
        client.set("k", "v")
        file = saved(redis_server, tmp_path)
        client.function_delete("kept")
    before = file.read_bytes()
    assert b"register_function" in before
    with loaded(str(file), redis_binary.path) as endpoint:
        assert Link(endpoint).one("FUNCTION", "LIST") == []
        assert Link(endpoint).one("GET", "k") == b"v"
    assert file.read_bytes() == before


def test_a_library_that_never_ends_does_not_hold_up_an_audit(
    redis_server: RedisServer, redis_binary: ServerBinary, tmp_path: Path
) -> None:
    if redis_server.version_info < (7,):
        pytest.skip("Redis 6.2 has no functions")
    file = tmp_path / "dump.rdb"
    file.write_bytes(rdb(b"\xfa\x03bit\xc0\x40", library(LOOP), library(LOOP), KEY))
    with loaded(str(file), redis_binary.path) as endpoint:
        assert inspect(endpoint).keys == {0: 1}


def test_a_library_after_the_first_key_meets_the_time_limit(
    redis_server: RedisServer, redis_binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if redis_server.version_info < (7,):
        pytest.skip("Redis 6.2 has no functions")
    monkeypatch.setattr(module, "LEAST_SECONDS", 1.0)
    file = tmp_path / "dump.rdb"
    file.write_bytes(rdb(KEY, library(LOOP)))
    with (
        pytest.raises(EmbeddedRedisError, match=r"is not loaded within 1 s, .* its code may not end"),
        loaded(str(file), redis_binary.path),
    ):
        pass


@pytest.mark.parametrize(
    "header", [b"\xf5", b"\xf5\x81" + b"\xff" * 8, b"\xf5\xc3", b"\xfa\xc3\x41", b"\xf5\x90", b"\xfa\x03bit"]
)
def test_a_broken_beginning_of_a_file_is_the_server_s_to_refuse(
    redis_binary: ServerBinary, tmp_path: Path, header: bytes
) -> None:
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0009" + header)
    with pytest.raises(EmbeddedRedisError), loaded(str(tmp_path / "dump.rdb"), redis_binary.path):
        pass
