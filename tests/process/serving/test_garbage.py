"""Many objects at once stop no client for long."""

from __future__ import annotations

import asyncio
import weakref

from keyfence.process.serving.garbage import release_slowly


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
