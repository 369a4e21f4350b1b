"""Sends dramatiq messages of all kinds, runs them, and prints the results. Its argument is Redis' URL."""

from __future__ import annotations

import json
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends.redis import RedisBackend


def main(url: str) -> None:
    results = RedisBackend(url=url, use_namespace_prefix_keys=True)
    broker = RedisBroker(url=url)
    broker.add_middleware(Results(backend=results))
    broker.maintenance_chance = 1_000_000  # at each step, not in one of a thousand
    dramatiq.set_broker(broker)
    attempts: list[int] = []

    @dramatiq.actor(store_results=True)
    def add(x: int, y: int) -> int:
        return x + y

    @dramatiq.actor(store_results=True, max_retries=1, min_backoff=1, max_backoff=1)
    def second_time() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("as it should")
        return "done"

    @dramatiq.actor(max_retries=0)
    def fails() -> None:
        raise ValueError("as it should")

    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    wait = {"block": True, "timeout": 9_000}
    seen = {
        "one": add.send(1, 2).get_result(**wait),
        "later": add.send_with_options(args=(3, 4), delay=200).get_result(**wait),
        "group": list(dramatiq.group(add.message(n, n) for n in range(3)).run().get_results(**wait)),
        "pipeline": (add.message(1, 1) | add.message(10)).run().get_result(**wait),
        "again": second_time.send().get_result(**wait),
    }
    fails.send()
    broker.join("default", timeout=25_000)
    worker.stop()
    seen["dead"] = broker.client.zcard("dramatiq:default.XQ")
    add.send(0, 0)
    broker.flush_all()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
