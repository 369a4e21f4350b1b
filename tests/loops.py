"""An event loop such as keyfence's own, for tests that run parts of it.

When a loop is closed, uvloop closes what is still open in it, and warns of each. In tests a warning is an
error, so such a handle would stay open, and uvloop would wait for it for ever, where no signal and no time
limit reaches it. So the loop is closed first, and then the warnings are errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvloop

from tests.servers import PATIENCE_SECONDS


@contextlib.contextmanager
def own_loop(
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
) -> Iterator[asyncio.Runner]:
    """Raises the warning of what the block left open, unless the block itself has failed."""
    runner = asyncio.Runner(loop_factory=factory)
    try:
        yield runner
    finally:
        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always")
            runner.close()
    for one in left:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine in such a loop, with patience. Its parameters are fixtures."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        with own_loop() as runner:
            runner.run(asyncio.wait_for(test(**fixtures), PATIENCE_SECONDS))

    return run
