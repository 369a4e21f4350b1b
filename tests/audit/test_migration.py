from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from keyfence.audit.checkpoint import Checkpoint
from keyfence.audit.migration import MAX_REASONS, Migration, Moves
from keyfence.audit.moving import Fate, Mover, Outcome
from keyfence.audit.plan import Header, Plan, PlanError, PlanWriter
from keyfence.audit.renames import Rename
from keyfence.audit.scan import Interrupted
from keyfence.audit.servers.links import LinkError
from keyfence.audit.servers.nodes import Topology
from keyfence.audit.servers.router import Router
from tests.audit.shop import endpoint
from tests.servers import RedisServer

NOTHING = Checkpoint("", "migrate", {})


def rename(number: int, *, why: str = "") -> Rename:
    new = None if why else b"shop:main:order:%d" % number
    return Rename(b"order-%d" % number, f"order-{number}", 0, "order", "string", new, None, why=why)


def planned(path: Path, *renames: Rename) -> Plan:
    writer = PlanWriter(Header("shop", "r1", "here"), str(path))
    for one in renames:
        writer.add(one)
    writer.close()
    return Plan(str(path))


def test_a_plan_is_carried_out_line_by_line(client: redis.Redis, router: Router, tmp_path: Path) -> None:
    client.mset({"order-1": "x", "order-2": "x", "shop:main:order:2": "y", "order-4": "x"})
    plan = planned(tmp_path / "plan", *map(rename, (1, 2, 3)), rename(4, why="nobody knows"))
    log = tmp_path / "log"
    seen: list[tuple[int, int]] = []
    moves = Migration(
        plan, [Mover(router, apply=True)], 0, NOTHING, str(log), lambda *one: seen.append(one)
    ).run()
    assert {name: number for name, number in moves.fates.items() if number} == {
        "moved": 1,
        "left": 2,
        "gone": 1,
    }
    assert {why: one.examples for why, one in moves.reasons.items()} == {
        "the new key exists already": ["order-2"],
        "nobody knows": ["order-4"],
    }
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0] == {"old": "order-1", "new": "shop:main:order:1", "database": 0, "outcome": "moved"}
    assert lines[3] == {"old": "order-4", "database": 0, "outcome": "left", "why": "nobody knows"}
    assert sorted(client.keys()) == ["order-2", "order-4", "shop:main:order:1", "shop:main:order:2"]


def test_an_interrupted_migration_goes_on(client: redis.Redis, router: Router, tmp_path: Path) -> None:
    client.mset({f"order-{number}": "x" for number in range(10)})
    plan = planned(tmp_path / "plan", *map(rename, range(10)))
    log = str(tmp_path / "log")
    fates: list[int] = []
    while True:
        checkpoint = Checkpoint(str(tmp_path / "state"), "migrate", {"plan": plan.digest})
        one = Migration(plan, [Mover(router, apply=True)], 0, checkpoint, log)

        def watch(done: int, _all: int, one: Migration = one) -> None:
            if done % 4 == 0:
                one.stop()

        one._watch = watch
        try:
            moves = one.run()
            break
        except Interrupted:
            fates.append(one.moves.fates["moved"])
    assert fates == [4, 8]
    assert (moves.lines, moves.fates["moved"]) == (10, 10)
    assert len(Path(log).read_text().splitlines()) == 10
    assert not (tmp_path / "state").exists()


@pytest.fixture
def movers(redis_server: RedisServer) -> Iterator[list[Mover]]:
    """Movers that work at the same time."""
    routers = [Router(Topology(endpoint(redis_server))) for _ in range(4)]
    yield [Mover(router, apply=True) for router in routers]
    for router in routers:
        router.close()


def test_several_movers_have_one_order_of_outcomes(
    client: redis.Redis, movers: list[Mover], tmp_path: Path
) -> None:
    client.mset({f"order-{number}": "x" for number in range(100) if number % 3})
    plan = planned(tmp_path / "plan", *map(rename, range(100)))
    log = tmp_path / "log"
    checkpoint = Checkpoint(str(tmp_path / "state"), "migrate", {})
    moves = Moves()
    while moves.lines < 100:
        one = Migration(plan, movers, 0, checkpoint, str(log))
        one._watch = lambda done, _all, one=one: one.stop() if done % 30 == 0 else None  # type: ignore[misc]
        with contextlib.suppress(Interrupted):
            moves = one.run()
    assert (moves.fates["moved"], moves.fates["gone"]) == (66, 34)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["old"] for line in lines] == [f"order-{number}" for number in range(100)]
    assert len(client.keys("shop:main:order:*")) == len(client.keys()) == 66


def test_two_lines_with_one_new_key_wait_for_each_other(
    client: redis.Redis, movers: list[Mover], tmp_path: Path
) -> None:
    client.mset({f"order-{number}": number for number in range(40)})
    lines = [rename(number)._replace(new=b"shop:main:order:%d" % (number // 2)) for number in range(40)]
    moves = Migration(planned(tmp_path / "plan", *lines), movers, 0, NOTHING).run()
    assert (moves.fates["moved"], moves.fates["left"]) == (20, 20)
    moved = {f"shop:main:order:{number}": str(2 * number) for number in range(20)}  # always the first of two
    assert {key: client.get(key) for key in client.keys("shop:*")} == moved


def test_a_lost_connection_ends_it_and_keeps_the_progress(fresh_redis: RedisServer, tmp_path: Path) -> None:
    with fresh_redis.client() as client:
        client.mset({f"order-{number}": "x" for number in range(4)})
    router = Router(Topology(endpoint(fresh_redis)))
    plan = planned(tmp_path / "plan", *map(rename, range(4)))
    state = Checkpoint(str(tmp_path / "state"), "migrate", {})
    one = Migration(
        plan,
        [Mover(router, apply=True)],
        0,
        state,
        watch=lambda done, _: fresh_redis.kill() if done == 2 else None,
    )
    with pytest.raises(LinkError, match="does not answer any more"):
        one.run()
    kept = state.load()
    assert kept is not None
    assert kept["lines"] == 2
    router.close()


def test_a_full_disk_ends_it_and_keeps_the_progress(
    client: redis.Redis, router: Router, tmp_path: Path
) -> None:
    client.mset({f"order-{number}": "x" for number in range(4)})
    plan = planned(tmp_path / "plan", *map(rename, range(4)))
    log, state = tmp_path / "log", Checkpoint(str(tmp_path / "state"), "migrate", {})
    log.symlink_to("/dev/full")
    with pytest.raises(PlanError, match="log cannot be written: no space left on device"):
        Migration(plan, [Mover(router, apply=True)], 0, state, str(log)).run()
    kept = state.load()
    assert kept is not None
    assert kept["lines"] == 0  # the log does not have it
    log.unlink()
    moves = Migration(plan, [Mover(router, apply=True)], 0, state, str(log)).run()
    assert (moves.fates["done"], moves.fates["moved"]) == (1, 3)
    assert len(log.read_text().splitlines()) == 4
    assert not (tmp_path / "state").exists()


def test_reasons_are_bounded() -> None:
    moves = Moves()
    for number in range(MAX_REASONS + 50):
        moves.add(rename(number), Outcome(Fate.LEFT, f"reason {number}"))
    assert len(moves.reasons) == MAX_REASONS + 1
    assert moves.reasons["other reasons"].keys == 50
