"""A store keeps versions as they were published. Of two who publish at once, one is told to look again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keyfence.fleet import folder_store, redis_store
from keyfence.fleet.folder_store import FolderStore
from keyfence.fleet.redis_store import RedisStore
from keyfence.fleet.redis_url import parse_redis_url
from keyfence.fleet.store import Conflict, Store, StoreError, Version, history
from tests.fleet.publishing import NAME, Publisher
from tests.servers import RedisServer, running_redis

Open = Callable[[], Store]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(tcp=True, password="SECRET") as one:
        yield one


def redis_of(server: RedisServer, password: str = "SECRET") -> RedisStore:
    return RedisStore(parse_redis_url(f"redis://:{password}@127.0.0.1:{server.port}/team"), NAME)


@pytest.fixture(params=["folder", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer) -> Open:
    server.clear()
    if request.param == "folder":
        return lambda: FolderStore(tmp_path / "store", NAME)
    return lambda: redis_of(server)


def test_what_was_published_comes_back_newest_first(open_store: Open) -> None:
    store, publisher = open_store(), Publisher()
    assert asyncio.run(history(store)) == []
    for text in ("one", "two"):
        publisher.push(store, text)
    found = asyncio.run(history(open_store()))
    assert found == [(2, publisher.version(2, "two")), (1, publisher.version(1, "one"))]
    assert asyncio.run(store.last()) == 2
    assert asyncio.run(store.read(9)) is None


def test_of_two_who_publish_at_once_one_succeeds(open_store: Open) -> None:
    one, two = Publisher(), Publisher()

    async def both() -> list[BaseException | None]:
        added = (open_store().add(who.version(1, "one"), 0) for who in (one, two))
        return await asyncio.gather(*added, return_exceptions=True)

    outcomes = asyncio.run(both())
    assert sorted(type(one) for one in outcomes if one is not None) == [Conflict]
    kept = asyncio.run(open_store().read(1))
    assert kept == (one, two)[outcomes.index(None)].version(1, "one")


def test_who_has_not_seen_the_newest_version_is_refused(open_store: Open) -> None:
    store, publisher = open_store(), Publisher()
    publisher.push(store, "one")
    with pytest.raises(Conflict, match="has got sequence 1 meanwhile, so nothing was stored"):
        asyncio.run(store.add(publisher.version(1, "late"), 0))
    assert asyncio.run(store.read(1)) == publisher.version(1, "one")


def test_a_sequence_may_be_skipped_and_old_versions_go(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (folder_store, redis_store):
        monkeypatch.setattr(module, "KEPT_VERSIONS", 2)
    store, publisher = open_store(), Publisher()
    for text in ("one", "two", "three"):
        publisher.push(store, text)
    assert asyncio.run(store.read(1)) is None
    asyncio.run(store.add(publisher.version(40, "forty"), 3))
    assert next(sequence for sequence, _ in asyncio.run(history(store))) == 40


def test_a_folder_shows_the_newest_version_under_current(tmp_path: Path) -> None:
    store, publisher = FolderStore(tmp_path, NAME), Publisher()
    publisher.push(store, "one")
    publisher.push(store, "two")
    assert (tmp_path / "current" / "shop.yaml").read_text() == "two"
    signature = publisher.version(2, "two").signed.text()
    assert {one.name for one in (tmp_path / "current").iterdir()} == {
        *("shop.yaml", "shop.yaml.sig", "policy.sig")
    }
    assert (tmp_path / "current" / "policy.sig").read_bytes() == signature
    assert sorted(one.name for one in tmp_path.iterdir()) == ["1", "2", "current"], "nothing is left over"


def test_a_folder_holds_one_policy_and_nothing_outside_it(tmp_path: Path) -> None:
    publisher = Publisher()
    publisher.push(FolderStore(tmp_path, NAME), "one")
    with pytest.raises(StoreError, match="holds the policy shop, and not other"):
        asyncio.run(FolderStore(tmp_path, "other").last())
    version = Version(publisher.sign(2, {"../x.yaml": "x"}), {"../x.yaml": b"x"})
    with pytest.raises(ValueError, match="is outside the policy's folder"):
        asyncio.run(FolderStore(tmp_path, NAME).add(version, 1))


def test_a_folder_of_another_purpose_with_a_number_for_a_name_is_no_version(tmp_path: Path) -> None:
    (tmp_path / "2025").mkdir()
    store, publisher = FolderStore(tmp_path, NAME), Publisher()
    publisher.push(store, "one")
    assert asyncio.run(store.last()) == 1


def test_a_real_folder_in_the_place_of_the_link_is_an_error_before_anything_is_stored(
    tmp_path: Path,
) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(StoreError, match="current is a folder, where keyfence links to the newest version"):
        Publisher().push(FolderStore(tmp_path, NAME), "one")
    assert [one.name for one in tmp_path.iterdir()] == ["current"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = FolderStore(tmp_path / "file", NAME)
    with pytest.raises(StoreError, match="file cannot be used: not a directory"):
        asyncio.run(store.last())


def test_redis_keeps_a_readable_hash_for_each_version(server: RedisServer) -> None:
    server.clear()
    Publisher().push(redis_of(server), "one")
    with server.client(decode_responses=True) as client:
        assert client.get("team:{shop}:sequence") == "1"
        row = client.hgetall("team:{shop}:version:1")
    assert (row["content"], row["author"], row["message"], row["sequence"]) == ("one", "ada", "a change", "1")


def test_redis_takes_one_file_only(server: RedisServer) -> None:
    two = {"a.yaml": "a", "b.yaml": "b"}
    version = Version(Publisher().sign(1, two), {name: text.encode() for name, text in two.items()})
    with pytest.raises(ValueError, match="push a folder, or scripts, to a folder"):
        asyncio.run(redis_of(server).add(version, 0))


def test_a_redis_that_does_not_do_as_it_should_is_named_without_its_password(server: RedisServer) -> None:
    def why(store: RedisStore) -> str:
        with pytest.raises(StoreError) as caught:
            asyncio.run(store.last())
        assert "SECRET" not in str(caught.value)
        return str(caught.value)

    server.clear()
    assert "/team/shop does not accept the login" in why(redis_of(server, "SECRET2"))
    with server.client() as client:
        client.hset("team:{shop}:sequence", "a", "b")
    assert "refuses a command" in why(redis_of(server))
    with server.client() as client:
        client.set("team:{shop}:sequence", "many")
    assert "has no sequence in the key team:{shop}:sequence" in why(redis_of(server))
    server.clear()
    nowhere = RedisStore(parse_redis_url("redis://:SECRET@127.0.0.1:1"), NAME)
    assert "cannot be reached" in why(nowhere)
