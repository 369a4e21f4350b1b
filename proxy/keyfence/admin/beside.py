"""Work for operators' answers, in threads beside the event loop.

Rule: of one kind, one piece of work at a time. Every thread that works takes turns with the loop, so with
several of them the clients of Redis wait for each.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Beside:
    """A thread for one kind of work."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)

    async def do(self, work: Callable[_P, _T], *given: _P.args, **named: _P.kwargs) -> _T:
        """Do this when its turn comes. Raises what it raises."""
        doing = functools.partial(work, *given, **named)
        return await asyncio.get_running_loop().run_in_executor(self._thread, doing)


answers = Beside("answers")
metrics = Beside("metrics")  # a scraper waits for no reader
