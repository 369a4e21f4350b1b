"""Many objects at once: modules, and the tables of a policy.

Rule: no client waits until all of them are made or freed. A garbage collection looks at every object, and all
clients wait meanwhile. So none begins here. It would find nothing: reference counts free a policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator

_SMALL = 500, 3  # collections look at 500 new objects, or at 2,000
_NEVER = 1_000_000_000  # this many small collections run before one looks at all objects
_GROWN = 500_000  # blocks of memory; about 40 MiB
_RELEASED = 100  # objects that are freed in one turn of the loop …
_PAUSE = 0.002  # … and the seconds until the next turn


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No collection begins in the body."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def with_small_collections() -> Iterator[None]:
    """Only collections of few new objects begin in the body. For a process that serves clients: after a body
    without collections, the first one would look at all new objects at once."""
    before = gc.get_threshold()
    gc.set_threshold(*_SMALL, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """The same, and later collections skip the objects that exist now: those of the modules."""
    with without_collections():
        yield
        gc.freeze()


class FullCollections:
    """Has all objects looked at when their number has grown.

    Python itself counts the objects that come, but not those that go. So it would begin such a collection
    after each reload, although as many objects have been freed.
    """

    def __init__(self) -> None:
        """From now on, Python begins none by itself, and later collections skip the objects that exist now.
        The first one would otherwise look at all of them, for 50 ms, while clients wait."""
        gc.collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        self._after_last = sys.getallocatedblocks()

    def tick(self) -> None:
        """Call this about once a second."""
        now = sys.getallocatedblocks()
        self._after_last = min(self._after_last, now)
        if now - self._after_last > max(_GROWN, self._after_last // 4):
            gc.collect()
            self._after_last = sys.getallocatedblocks()


def release_slowly(objects: list[object]) -> None:
    """Empties the list, a few objects in each turn of the loop, because to free all at once takes long."""
    del objects[-_RELEASED:]
    if objects:
        asyncio.get_running_loop().call_later(_PAUSE, release_slowly, objects)
