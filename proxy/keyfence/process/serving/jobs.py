"""The event loop of a process, and the jobs that run in it beside the clients.

Rule: a job that ends by a fault is reported, and one that must not end goes on. What the system refuses for
want of something is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from keyfence.telemetry.operator_log import notice, report_fault

_T = TypeVar("_T")
# After this time a thread that works (loading a policy, reading findings) lets the event loop go on. Python's
# own 5 ms would be a delay for all clients, again and again.
SWITCH_SECONDS = 0.0005


def _report_end(task: asyncio.Future[None]) -> None:
    """Report a job that ends by a fault: nothing else notices."""
    if not task.cancelled() and isinstance(fault := task.exception(), Exception):
        report_fault(fault)


@contextlib.contextmanager
def going_on() -> Iterator[None]:
    """Report a fault of the body. For one turn of a job that must not end."""
    try:
        yield
    except Exception as exc:
        report_fault(exc)


async def until_it_works(work: Callable[[], _T]) -> _T:
    """Run this in a thread, and again after a second if the system refuses it, as when file descriptors run
    out."""
    while True:
        try:
            return await asyncio.to_thread(work)
        except OSError as exc:
            notice("late start", f"not everything is open yet: {exc.strerror or exc}; trying again")
            await asyncio.sleep(1)


@contextlib.asynccontextmanager
async def background(*jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these jobs during the body, and end them with it."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    for task in tasks:
        task.add_done_callback(_report_end)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on uvloop, or on asyncio's own loop if uvloop is not installed."""
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
