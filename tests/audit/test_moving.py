"""Moves of single keys in real servers: what moves, what is left, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from keyfence.audit.moving import MAX_COMPARED, Fate, Mover, Outcome, _Copied, _Old
from keyfence.audit.renames import Rename
from keyfence.audit.servers.links import Endpoint, Link
from keyfence.audit.servers.nodes import Topology
from keyfence.audit.servers.router import Router
from keyfence.policy.compiled.hash_slots import hash_slot
from keyfence.upstream.address import parse_upstream
from tests.cluster import NO_CLUSTER, Cluster, cluster_binary, running_cluster
from tests.servers import RedisServer, ServerBinary, all_server_binaries, running_redis

OLD, NEW = "order-7", "shop:main:order:7"
Ask = Callable[[list[tuple[bytes, ...]]], list[object]]


def rename(old: str = OLD, new: str | None = NEW, kind: str = "string", **more: object) -> Rename:
    fields = {"database": 0, "ttl": None, "sets_ttl": False, "why": "", **more}
    return Rename(
        old.encode(),
        old,
        int(fields["database"]),  # type: ignore[call-overload]
        "order",
        kind,
        None if new is None else new.encode(),
        fields["ttl"],  # type: ignore[arg-type]
        bool(fields["sets_ttl"]),
        str(fields["why"]),
    )


@pytest.fixture
def mover(router: Router) -> Mover:
    return Mover(router, apply=True)


MAKE: dict[str, Callable[[redis.Redis], object]] = {
    "string": lambda client: client.set(OLD, "x" * 50),
    "hash": lambda client: client.hset(OLD, mapping={f"field{n}": "x" * n for n in range(300)}),
    "list": lambda client: client.rpush(OLD, *range(300)),
    "set": lambda client: client.sadd(OLD, *(f"member{n}" for n in range(3000))),
    "zset": lambda client: client.zadd(OLD, {f"member{n}": n / 7 for n in range(300)}),
    "stream": lambda client: [client.xadd(OLD, {"op": n}) for n in range(20)],
}


def dump(client: redis.Redis, key: str) -> object:
    """What a key holds, in a form in which equal contents are equal."""
    kind = client.type(key)
    return {
        "string": lambda: client.get(key),
        "hash": lambda: client.hgetall(key),
        "list": lambda: client.lrange(key, 0, -1),
        "set": lambda: client.smembers(key),
        "zset": lambda: client.zrange(key, 0, -1, withscores=True),
        "stream": lambda: client.xrange(key),
    }[kind]()


@pytest.mark.parametrize("kind", MAKE)
def test_a_key_of_each_type_moves_whole(client: redis.Redis, mover: Mover, kind: str) -> None:
    MAKE[kind](client)
    before = dump(client, OLD)
    assert mover.move(rename(kind=kind)) == Outcome(Fate.MOVED)
    assert not client.exists(OLD)
    assert dump(client, NEW) == before
    assert client.pttl(NEW) == -1


def test_a_stream_keeps_its_groups(client: redis.Redis, mover: Mover) -> None:
    MAKE["stream"](client)
    client.xgroup_create(OLD, "workers", "0")
    client.xreadgroup("workers", "one", {OLD: ">"}, count=3)
    assert mover.move(rename(kind="stream")).fate is Fate.MOVED
    assert client.xpending(NEW, "workers")["pending"] == 3


def large(client: redis.Redis) -> None:
    client.hset(OLD, mapping={str(number): "x" * 1000 for number in range(2000)})
    assert client.memory_usage(OLD) > MAX_COMPARED


def test_a_large_key_is_renamed_and_not_copied(client: redis.Redis, mover: Mover) -> None:
    large(client)
    client.config_resetstat()
    assert mover.move(rename(kind="hash", ttl=600_000, sets_ttl=True)) == Outcome(Fate.MOVED)
    assert client.hlen(NEW) == 2000
    assert 500_000 < client.pttl(NEW) <= 600_000
    assert not {"cmdstat_copy", "cmdstat_dump"} & client.info("commandstats").keys()


def before_asking(
    monkeypatch: pytest.MonkeyPatch, link: Link, command: bytes, do: Callable[[Ask], object]
) -> None:
    """Do something just before the link asks for several things, of which the second is this command."""
    ask = link.ask

    def asked(requests: list[tuple[bytes, ...]]) -> list[object]:
        if requests[1][0] == command:
            do(ask)
        return ask(requests)

    monkeypatch.setattr(link, "ask", asked)


@pytest.mark.parametrize("command", [b"EXISTS", b"RENAMENX"])
def test_a_new_key_that_appears_before_a_large_key_is_renamed_stays(
    client: redis.Redis, router: Router, monkeypatch: pytest.MonkeyPatch, command: bytes
) -> None:
    large(client)
    before_asking(monkeypatch, router.link(b"", 0), command, lambda _: client.set(NEW, "x"))
    outcome = Mover(router, apply=True).move(rename(kind="hash", ttl=600_000, sets_ttl=True))
    assert outcome == Outcome(Fate.LEFT, "the new key exists already")
    assert (client.get(NEW), client.ttl(NEW), client.hlen(OLD)) == ("x", -1, 2000)


# Before 6.0.9, Redis does not see that a watched key has expired.
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_large_key_that_ends_before_it_is_renamed_is_gone(
    client: redis.Redis, router: Router, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    large(client)

    def end(ask: Ask) -> None:
        if not is_seen:
            ask([(b"UNWATCH",)])
        client.delete(OLD)

    before_asking(monkeypatch, router.link(b"", 0), b"RENAMENX", end)
    assert Mover(router, apply=True).move(rename(kind="hash")) == Outcome(Fate.GONE)


def test_a_time_to_live_goes_along(client: redis.Redis, mover: Mover) -> None:
    client.set(OLD, "x", px=600_000)
    assert mover.move(rename(ttl=600_000)) == Outcome(Fate.MOVED)
    assert 500_000 < client.pttl(NEW) <= 600_000


def test_a_missing_time_to_live_is_set(client: redis.Redis, mover: Mover) -> None:
    client.set(OLD, "x")
    assert mover.move(rename(ttl=600_000, sets_ttl=True)) == Outcome(Fate.MOVED)
    assert 500_000 < client.pttl(NEW) <= 600_000


def test_a_key_moves_within_its_database(redis_server: RedisServer, mover: Mover) -> None:
    with redis_server.client(db=3, decode_responses=True) as third:
        third.set(OLD, "x")
        assert mover.move(rename()).fate is Fate.GONE
        assert mover.move(rename(database=3)).fate is Fate.MOVED
        assert third.get(NEW) == "x"


def test_the_second_time_finds_it_moved(client: redis.Redis, mover: Mover) -> None:
    client.set(OLD, "x")
    assert [mover.move(rename()).fate for _ in range(2)] == [Fate.MOVED, Fate.DONE]


def test_a_key_that_went_is_gone(mover: Mover) -> None:
    assert mover.move(rename()) == Outcome(Fate.GONE)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (rename(new=None, why="nobody knows"), "nobody knows"),
        (rename(kind="hash"), "its type is not as in the plan; audit again"),
        (rename(ttl=60_000), "its time to live is not as in the plan; audit again"),
    ],
)
def test_what_is_not_as_planned_is_left(client: redis.Redis, mover: Mover, one: Rename, why: str) -> None:
    client.set(OLD, "x")
    assert mover.move(one) == Outcome(Fate.LEFT, why)
    assert client.get(OLD) == "x"
    assert not client.exists(NEW)


def test_an_existing_key_is_never_overwritten(client: redis.Redis, mover: Mover) -> None:
    client.mset({OLD: "old", NEW: "new"})
    assert mover.move(rename()) == Outcome(Fate.LEFT, "the new key exists already")
    assert client.mget(OLD, NEW) == ["old", "new"]


def test_an_interrupted_move_is_finished(client: redis.Redis, mover: Mover, router: Router) -> None:
    """The copy was made, and the old key is still there. Both are the same."""
    MAKE["hash"](client)
    client.copy(OLD, NEW)
    assert Mover(router, apply=False).move(rename(kind="hash")) == Outcome(Fate.MOVABLE)
    assert mover.move(rename(kind="hash")) == Outcome(Fate.MOVED)
    assert client.keys() == [NEW]


def test_a_new_key_with_another_time_to_live_is_no_copy(client: redis.Redis, mover: Mover) -> None:
    client.set(OLD, "x")
    client.set(NEW, "x", ex=600)
    assert mover.move(rename()).why == "the new key exists already"
    assert client.exists(OLD, NEW) == 2


def test_a_stream_without_the_groups_is_no_copy(client: redis.Redis, mover: Mover) -> None:
    MAKE["stream"](client)
    client.copy(OLD, NEW)
    client.xgroup_create(OLD, "workers", "0")
    client.xreadgroup("workers", "one", {OLD: ">"}, count=3)
    assert mover.move(rename(kind="stream")).why == "the new key exists already"
    assert client.xpending(OLD, "workers")["pending"] == 3


@pytest.mark.parametrize("binary", all_server_binaries(), ids=lambda one: one.id)
def test_fields_that_expire_are_a_part_of_a_hash(binary: ServerBinary) -> None:
    with running_redis(binary) as server, server.client(decode_responses=True) as client:
        MAKE["hash"](client)
        try:
            client.copy(OLD, NEW)
            client.hexpire(OLD, 1000, "field1", "field2")
        except redis.ResponseError:
            pytest.skip("no field of a hash expires there")
        mover = Mover(Router(Topology(Endpoint(parse_upstream(server.url)))), apply=True)
        assert mover.move(rename(kind="hash")).why == "the new key exists already"
        client.delete(NEW)
        ends = client.hpexpiretime(OLD, "field1", "field2", "field3")
        assert mover.move(rename(kind="hash")) == Outcome(Fate.MOVED)
        assert client.hpexpiretime(NEW, "field1", "field2", "field3") == ends


@pytest.mark.parametrize("binary", all_server_binaries(), ids=lambda one: one.id)
def test_a_vector_set_which_redis_does_not_copy_is_moved(binary: ServerBinary) -> None:
    with running_redis(binary) as server, server.client(decode_responses=True) as client:
        try:
            client.execute_command("VADD", OLD, "VALUES", 2, 1, 2, "an element")
        except redis.ResponseError:
            pytest.skip("there are no vector sets")
        client.expire(OLD, 1000)
        mover = Mover(Router(Topology(Endpoint(parse_upstream(server.url)))), apply=True)
        assert mover.move(rename(kind="vectorset", ttl=1_000_000)) == Outcome(Fate.MOVED)
        assert client.keys() == [NEW]
        assert 990 < client.ttl(NEW) <= 1000


def test_a_large_new_key_is_never_taken_for_a_copy(client: redis.Redis, mover: Mover) -> None:
    for key in (OLD, NEW):
        client.hset(key, mapping={str(number): "x" * 1000 for number in range(2000)})
    assert mover.move(rename(kind="hash")).why == "the new key exists already"
    assert client.exists(OLD, NEW) == 2


def test_a_dry_run_changes_nothing(client: redis.Redis, router: Router) -> None:
    client.mset({OLD: "x", "order-8": "x", "shop:main:order:8": "y"})
    mover = Mover(router, apply=False)
    assert mover.move(rename()) == Outcome(Fate.MOVABLE)
    assert mover.move(rename("order-8", "shop:main:order:8")).why == "the new key exists already"
    assert sorted(client.keys()) == ["order-7", "order-8", "shop:main:order:8"]


# -- what others do meanwhile


class Meanwhile(Mover):
    """A mover, between whose steps somebody else does something."""

    def __init__(self, router: Router, *, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__(router, apply=True)
        self._before = before
        self._after = after

    def _copy(self, link: Link, one: Rename, new: bytes, old: _Old) -> _Copied | None:
        self._before()
        copied = super()._copy(link, one, new, old)
        self._after()
        return copied


def meanwhile(
    router: Router,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    one: Rename | None = None,
) -> Outcome:
    return Meanwhile(router, before=before, after=after).move(one or rename())


AGAIN = "it changed meanwhile; run it again"


def test_a_key_that_changes_before_the_copy_is_left(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "first")
    outcome = meanwhile(router, before=lambda: client.set(OLD, "second"))
    assert outcome == Outcome(Fate.LEFT, AGAIN)
    assert (client.get(OLD), client.exists(NEW)) == ("second", 0)


def test_a_key_that_changes_after_the_copy_is_left_and_the_copy_taken_back(
    client: redis.Redis, router: Router
) -> None:
    client.set(OLD, "first")
    assert meanwhile(router, after=lambda: client.set(OLD, "second")) == Outcome(Fate.LEFT, AGAIN)
    assert (client.get(OLD), client.exists(NEW)) == ("second", 0)
    assert Mover(router, apply=True).move(rename()).fate is Fate.MOVED
    assert client.get(NEW) == "second"


def test_a_change_that_leaves_the_same_content_is_a_change(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "same")
    assert meanwhile(router, after=lambda: client.set(OLD, "same")).why == AGAIN


def test_a_key_that_is_deleted_meanwhile_does_not_live_on(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "x")
    assert meanwhile(router, after=lambda: client.delete(OLD)) == Outcome(Fate.LEFT, AGAIN)
    assert client.keys() == []


def test_a_new_key_that_appears_meanwhile_stays(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "old")
    outcome = meanwhile(router, before=lambda: client.set(NEW, "new"))
    assert outcome == Outcome(Fate.LEFT, "the new key exists already")
    assert client.mget(OLD, NEW) == ["old", "new"]


def test_a_copy_that_somebody_writes_to_stays_with_the_old_key(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "old")
    outcome = meanwhile(router, after=lambda: client.append(NEW, "!"))
    assert outcome.why == "the copy differs: the new key was changed meanwhile; compare both keys"
    assert client.mget(OLD, NEW) == ["old", "old!"]


BOTH = "both keys changed meanwhile; compare them and remove one"


def test_a_write_to_the_copy_survives_a_change_of_the_old_key(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "first")
    outcome = meanwhile(router, after=lambda: client.mset({NEW: "theirs", OLD: "second"}))
    assert outcome == Outcome(Fate.LEFT, BOTH)
    assert client.mget(OLD, NEW) == ["second", "theirs"]


def test_a_time_to_live_that_somebody_gives_the_copy_is_a_write_to_it(
    client: redis.Redis, router: Router
) -> None:
    client.set(OLD, "first")
    outcome = meanwhile(router, after=lambda: (client.expire(NEW, 600), client.set(OLD, "second")))
    assert outcome == Outcome(Fate.LEFT, BOTH)
    assert client.ttl(NEW) > 500


def test_nothing_is_taken_back_if_somebody_has_removed_the_copy(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "first")
    outcome = meanwhile(router, after=lambda: (client.delete(NEW), client.set(OLD, "second")))
    assert outcome == Outcome(Fate.LEFT, AGAIN)
    assert client.keys() == [OLD]


@pytest.mark.parametrize("kind", MAKE)
def test_an_unchanged_copy_of_each_type_is_taken_back(client: redis.Redis, router: Router, kind: str) -> None:
    MAKE[kind](client)
    outcome = meanwhile(router, after=lambda: client.expire(OLD, 600), one=rename(kind=kind))
    assert outcome == Outcome(Fate.LEFT, AGAIN)
    assert client.keys() == [OLD]


def test_a_large_copy_is_never_taken_back(
    client: redis.Redis, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "may_copy", lambda _old, _new: False)  # as between two hash slots
    large(client)
    outcome = meanwhile(router, after=lambda: client.hset(OLD, "1", "y"), one=rename(kind="hash"))
    assert outcome.fate is Fate.LEFT
    assert outcome.why.startswith("it changed meanwhile, and its copy is too large to be sure of; compare")
    assert (client.hget(OLD, "1"), client.hget(NEW, "1")) == ("y", "x" * 1000)


def test_a_key_that_ends_before_the_copy_is_gone(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "x")
    assert meanwhile(router, before=lambda: client.delete(OLD)) == Outcome(Fate.GONE)


def test_a_key_that_somebody_else_moves_before_the_copy_is_moved(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "x")
    assert meanwhile(router, before=lambda: client.rename(OLD, NEW)) == Outcome(Fate.DONE)
    assert client.get(NEW) == "x"


def test_a_new_key_that_appears_meanwhile_gets_no_time_to_live(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "old")
    one = rename(ttl=600_000, sets_ttl=True)
    outcome = meanwhile(router, before=lambda: client.set(NEW, "new"), one=one)
    assert outcome == Outcome(Fate.LEFT, "the new key exists already")
    assert client.ttl(NEW) == -1


class Killed(Exception):
    """The end of the program, between two steps."""


def killed() -> None:
    raise Killed


def test_an_interruption_leaves_no_copy_without_its_time_to_live(client: redis.Redis, router: Router) -> None:
    client.set(OLD, "x")
    one = rename(ttl=600_000, sets_ttl=True)
    with pytest.raises(Killed):
        meanwhile(router, after=killed, one=one)
    assert client.exists(OLD, NEW) == 2
    assert 500_000 < client.pttl(NEW) <= 600_000
    assert Mover(router, apply=True).move(one) == Outcome(Fate.MOVED)
    assert client.keys() == [NEW]


def test_a_copy_that_only_lacks_its_time_to_live_gets_it(client: redis.Redis, router: Router) -> None:
    client.mset({OLD: "x", NEW: "x"})
    one = rename(ttl=600_000, sets_ttl=True)
    assert Mover(router, apply=False).move(one) == Outcome(Fate.MOVABLE)
    assert client.ttl(NEW) == -1
    assert Mover(router, apply=True).move(one) == Outcome(Fate.MOVED)
    assert client.keys() == [NEW]
    assert 500_000 < client.pttl(NEW) <= 600_000


@pytest.mark.parametrize("right", ["copy", "pexpire", "dump"])
def test_a_user_who_may_not_make_the_whole_copy_makes_none(
    start_redis: Callable[..., RedisServer], right: str
) -> None:
    server = start_redis(acl=[f"mover on >secret ~* +@all -{right}"])
    with server.client(decode_responses=True) as client:
        client.set(OLD, "x")
        router = Router(Topology(Endpoint(parse_upstream(f"unix://mover:secret@{server.socket_path}"))))
        outcome = Mover(router, apply=True).move(rename(ttl=600_000, sets_ttl=True))
        router.close()
        assert outcome.fate is Fate.LEFT
        assert f"'{right}'" in outcome.why
        assert client.keys() == [OLD]


def test_a_server_without_copy_restores_a_dump(
    client: redis.Redis, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = router.link(b"", 0, guard=True)
    ask = link.ask
    renamed = {b"COPY": b"KOPY"}
    monkeypatch.setattr(
        link, "ask", lambda asked: ask([(renamed.get(one[0], one[0]), *one[1:]) for one in asked])
    )
    client.mset({OLD: "x", "order-8": "x"})
    mover = Mover(router, apply=True)
    assert mover.move(rename(ttl=600_000, sets_ttl=True)) == Outcome(Fate.MOVED)
    assert 500_000 < client.pttl(NEW) <= 600_000
    assert mover.move(rename("order-8", "shop:main:order:8")) == Outcome(Fate.MOVED)
    assert client.ttl("shop:main:order:8") == -1


def test_a_user_who_may_not_remove_keys_copies_none(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(acl=["mover on >secret ~* +@all -unlink -del"])
    with server.client(decode_responses=True) as client:
        client.set(OLD, "x")
        address = parse_upstream(f"unix://mover:secret@{server.socket_path}")
        router = Router(Topology(Endpoint(address)))
        outcome = Mover(router, apply=True).move(rename())
        router.close()
        assert outcome.fate is Fate.LEFT
        assert "unlink" in outcome.why
        assert client.keys() == [OLD]


# -- clusters


@pytest.fixture
def many(cluster: Cluster) -> Iterator[redis.RedisCluster]:
    client = cluster.client()
    yield client
    client.close()


@pytest.fixture
def cluster_mover(cluster: Cluster) -> Iterator[Mover]:
    router = Router(Topology(Endpoint(parse_upstream(cluster.url))))
    yield Mover(router, apply=True)
    router.close()


def test_keys_of_one_slot_move_by_copy(
    many: redis.RedisCluster, cluster: Cluster, cluster_mover: Mover
) -> None:
    many.set("{a}old", "x")
    for server in cluster.masters:
        with server.client() as client:
            client.config_resetstat()
    assert cluster_mover.move(rename("{a}old", "{a}new")) == Outcome(Fate.MOVED)
    assert (many.get("{a}old"), many.get("{a}new")) == (None, b"x")
    copies = 0
    for server in cluster.masters:
        with server.client() as client:
            copies += client.info("commandstats").get("cmdstat_copy", {}).get("calls", 0)
    assert copies == 1


def test_keys_of_different_slots_move_by_dump_and_restore(
    many: redis.RedisCluster, cluster: Cluster, cluster_mover: Mover
) -> None:
    pairs = [(f"order-{number}", f"shop:main:order:{number}") for number in range(60)]
    for old, _ in pairs:
        many.hset(old, mapping={"state": "paid", "total": "7"})
    many.expire("order-3", 600)
    ports = {
        (cluster.port_of(hash_slot(a.encode())), cluster.port_of(hash_slot(b.encode()))) for a, b in pairs
    }
    assert any(one != other for one, other in ports)  # some go to another server
    for old, new in pairs:
        ttl = 600_000 if old == "order-3" else None
        assert cluster_mover.move(rename(old, new, "hash", ttl=ttl)) == Outcome(Fate.MOVED), old
    assert all(many.hgetall(new) == {b"state": b"paid", b"total": b"7"} for _, new in pairs)
    assert not any(many.exists(old) for old, _ in pairs)
    assert 500 < many.ttl("shop:main:order:3") <= 600
    assert many.ttl("shop:main:order:4") == -1


def test_a_missing_time_to_live_is_set_in_another_slot_too(
    many: redis.RedisCluster, cluster_mover: Mover
) -> None:
    many.set(OLD, "x")
    assert cluster_mover.move(rename(ttl=600_000, sets_ttl=True)).fate is Fate.MOVED
    assert 500 < many.ttl(NEW) <= 600


def test_a_write_to_a_copy_in_another_slot_survives(many: redis.RedisCluster, cluster: Cluster) -> None:
    router = Router(Topology(Endpoint(parse_upstream(cluster.url))))
    many.set(OLD, "first")
    own = meanwhile(router, after=lambda: many.set(OLD, "second"))
    assert (own, many.exists(NEW)) == (Outcome(Fate.LEFT, AGAIN), 0)
    theirs = meanwhile(router, after=lambda: (many.set(NEW, "theirs"), many.set(OLD, "third")))
    assert theirs == Outcome(Fate.LEFT, BOTH)
    assert (many.get(OLD), many.get(NEW)) == (b"third", b"theirs")
    router.close()


def test_a_key_whose_slot_has_moved_is_left(
    many: redis.RedisCluster, cluster: Cluster, cluster_mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    many.set("{a}old", "x")
    other = next(
        server
        for server in cluster.masters
        if server.port not in (cluster.port_of(hash_slot(b"a")), cluster.masters[0].port)
    )
    topology = cluster_mover._router._topology
    master = next(one.id for one in topology.cluster.owners() if one.address[1] == other.port)
    monkeypatch.setattr(topology, "master_of", lambda _key: master)
    outcome = cluster_mover.move(rename("{a}old", "{a}new"))
    assert outcome == Outcome(Fate.LEFT, "its hash slot has moved; run it again")


def test_an_old_key_stays_until_a_replica_has_its_copy_at_another_master(
    many: redis.RedisCluster, cluster: Cluster, cluster_mover: Mover, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyfence.audit.moving.CONFIRM_MILLISECONDS", 50)
    followed = cluster.masters[0].port

    def master_of(number: int, *, is_followed: bool) -> bool:
        return (cluster.port_of(hash_slot(b"%d" % number)) == followed) is is_followed

    old = next(f"{one}" for one in range(99) if master_of(one, is_followed=False))
    new, beside = [f"{one}" for one in range(99) if master_of(one, is_followed=True)][:2]
    many.mset_nonatomic({old: "x", beside: "y"})
    cluster.replicas[0].pause()
    try:
        outcome = cluster_mover.move(rename(old, new))
        assert outcome.why.startswith("no replica has confirmed the copy")
        assert (many.get(old), many.get(new)) == (b"x", b"x")
        many.delete(new)
        assert cluster_mover.move(rename(beside, new)).fate is Fate.MOVED, "one stream has both changes"
    finally:
        cluster.replicas[0].resume()
    many.delete(new)
    assert cluster_mover.move(rename(old, new)).fate is Fate.MOVED


@pytest.mark.skipif(cluster_binary() is None, reason=NO_CLUSTER)
def test_a_move_that_was_interrupted_waits_for_a_replica_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """WAIT of Redis 8 says nothing of what another connection has written."""
    monkeypatch.setattr("keyfence.audit.moving.CONFIRM_MILLISECONDS", 50)
    with running_cluster(replicas=1, binary=all_server_binaries()[-1]) as cluster, cluster.client() as many:

        def moved() -> Outcome:
            router = Router(Topology(Endpoint(parse_upstream(cluster.url))))
            try:
                return Mover(router, apply=True).move(rename(old, new))
            finally:
                router.close()

        ports = {f"{one}": cluster.port_of(hash_slot(b"%d" % one)) for one in range(99)}
        new = next(one for one, port in ports.items() if port == cluster.masters[0].port)
        old = next(one for one, port in ports.items() if port != ports[new])
        many.set(old, "x")
        cluster.replicas[0].pause()
        try:
            for _ in range(2):
                assert moved().why.startswith("no replica has confirmed the copy")
            assert many.get(old) == b"x"
        finally:
            cluster.replicas[0].resume()
        monkeypatch.undo()
        assert (moved().fate, many.get(old), many.get(new)) == (Fate.MOVED, None, b"x")


def test_an_existing_key_in_another_slot_is_never_overwritten(
    many: redis.RedisCluster, cluster_mover: Mover
) -> None:
    many.set(OLD, "old")
    many.set(NEW, "new")
    assert cluster_mover.move(rename()).why == "the new key exists already"
    assert (many.get(OLD), many.get(NEW)) == (b"old", b"new")
