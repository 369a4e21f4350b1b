"""Enqueues arq jobs of all kinds, runs them, and prints the results. Its argument is Redis' URL."""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
from typing import Any

from arq import Retry, Worker, create_pool, cron
from arq.connections import RedisSettings


async def add(_context: dict[Any, Any], x: int, y: int) -> int:
    return x + y


async def second_time(context: dict[Any, Any]) -> str:
    if context["job_try"] == 1:
        raise Retry(defer=0.1)
    return "done"


async def endless(_context: dict[Any, Any]) -> None:
    await asyncio.sleep(600)


async def tick(_context: dict[Any, Any]) -> str:
    return "tick"


async def main(url: str) -> None:
    pool = await create_pool(RedisSettings.from_dsn(url))
    worker = Worker(
        functions=[add, second_time, endless],
        cron_jobs=[cron(tick, second=set(range(60)))],
        redis_pool=await create_pool(RedisSettings.from_dsn(url)),
        allow_abort_jobs=True,
        handle_signals=False,
        poll_delay=0.05,
        health_check_interval=1,
    )
    working = asyncio.create_task(worker.async_run())
    one = await pool.enqueue_job("add", 1, 2)
    twice = await pool.enqueue_job("add", 1, 2, _job_id=one.job_id)
    later = await pool.enqueue_job("add", 3, 4, _defer_by=datetime.timedelta(seconds=0.2))
    again = await pool.enqueue_job("second_time")
    long = await pool.enqueue_job("endless")
    seen = {
        "one": await one.result(timeout=20),
        "twice": twice is None,
        "later": await later.result(timeout=20),
        "again": await again.result(timeout=20),
        "status": str(await one.status()),
        "aborted": await long.abort(timeout=20),
        "queued": len(await pool.queued_jobs()) < 3,
    }
    async with asyncio.timeout(20):
        while worker.jobs_complete < 4:  # the three and a tick
            await asyncio.sleep(0.05)
    await worker.close()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await pool.aclose()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
