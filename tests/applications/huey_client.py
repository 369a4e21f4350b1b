"""Enqueues huey tasks of all kinds, runs them, and prints the results. Its argument is Redis' URL."""

from __future__ import annotations

import json
import sys
import time

from huey import PriorityRedisExpireHuey, RedisHuey
from huey.api import Result
from huey.consumer import Consumer
from huey.exceptions import TaskException


def last_result(result: Result) -> object:
    """Returns the result of a retried task. The result of its first attempt may appear before."""
    end = time.monotonic() + 25
    while True:
        try:
            return result.get(blocking=True, timeout=25)
        except TaskException:
            if time.monotonic() > end:
                raise
            result.reset()
            time.sleep(0.05)


def used(huey: RedisHuey) -> dict[str, object]:
    attempts: list[int] = []

    @huey.task()
    def add(x: int, y: int) -> int:
        return x + y

    @huey.task(retries=1, retry_delay=0)
    def second_time() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("as it should")
        return "done"

    @huey.task()
    @huey.lock_task("only-one")
    def alone() -> str:
        return "alone"

    consumer = Consumer(
        huey, workers=2, periodic=False, initial_delay=0.01, max_delay=0.05, scheduler_interval=1
    )
    consumer.start()
    try:
        later = add.schedule((3, 4), delay=1)
        revoked = add.schedule((0, 0), delay=3600)
        revoked.revoke()
        seen = {
            "one": add(1, 2).get(blocking=True, timeout=25),
            "chain": huey.enqueue(add.s(1, 1).then(add, 10)).get(blocking=True, timeout=25),
            "group": [add.map([(n, n) for n in range(3)]).get(blocking=True, timeout=25)],
            "again": last_result(second_time()),
            "alone": alone().get(blocking=True, timeout=25),
            "later": later.get(blocking=True, timeout=25),
            "revoked": revoked.is_revoked(),
            "scheduled": len(huey.scheduled()),
        }
    finally:
        consumer.stop(graceful=True)
    huey.flush()
    return seen


def main(url: str) -> None:
    kinds = (RedisHuey, PriorityRedisExpireHuey)
    print(json.dumps({kind.__name__: used(kind("jobs", url=url)) for kind in kinds}))


if __name__ == "__main__":
    main(sys.argv[1])
