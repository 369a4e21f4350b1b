"""Many objects at once stop no client for long."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from keyfence.process.serving.garbage import FullCollections, release_slowly

MIB = 12_500  # blocks of memory, about


@pytest.fixture(name="patch")
def _patch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


@pytest.fixture(name="thresholds", autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def collections(patch: pytest.MonkeyPatch, *blocks: int) -> list[int]:
    """Returns at which of these numbers of blocks all objects are looked at; that frees everything but the
    first number."""
    now, begun = blocks[0], []

    def collect() -> None:
        nonlocal now
        begun.append(now)
        now = blocks[0]

    patch.setattr(sys, "getallocatedblocks", lambda: now)
    one = FullCollections()
    patch.setattr(gc, "collect", collect)
    for number in blocks[1:]:
        now = number
        one.tick()
    return begun


def test_all_objects_are_looked_at_once_their_number_has_grown(patch: pytest.MonkeyPatch) -> None:
    sizes = [20 * MIB, 40 * MIB, 59 * MIB, 61 * MIB, 59 * MIB, 61 * MIB]
    assert collections(patch, *sizes) == [61 * MIB, 61 * MIB]


def test_a_large_process_has_room_in_proportion(patch: pytest.MonkeyPatch) -> None:
    assert collections(patch, 400 * MIB, 495 * MIB, 505 * MIB) == [505 * MIB]


def test_objects_that_come_in_place_of_others_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """As in a reload: the new policy, and then the old one is freed."""
    assert collections(patch, 40 * MIB, *[50 * MIB, 40 * MIB] * 100) == []


def test_growth_is_counted_from_the_smallest_size(patch: pytest.MonkeyPatch) -> None:
    assert collections(patch, 100 * MIB, 40 * MIB, 79 * MIB, 81 * MIB) == [81 * MIB]


def test_later_collections_skip_the_objects_that_exist_when_serving_begins() -> None:
    early: list[object] = []
    early.append(early)
    FullCollections()
    assert all(one is not early for one in gc.get_objects())


def test_python_itself_begins_no_collection_of_all_objects() -> None:
    FullCollections()
    before = gc.get_stats()[2]["collections"]
    kept = [[] for _ in range(200_000)]
    assert gc.get_stats()[2]["collections"] == before
    assert kept


class Freed:
    pass


def test_objects_are_released_a_few_in_each_turn_of_the_loop() -> None:
    async def released() -> list[int]:
        objects: list[object] = [Freed() for _ in range(1_050)]
        alive = weakref.WeakSet(objects)
        release_slowly(objects)
        seen = [len(alive)]
        while alive:
            await asyncio.sleep(0)
            if len(alive) != seen[-1]:
                seen.append(len(alive))
        return seen

    assert asyncio.run(released()) == [*range(950, 0, -100), 0]
