"""Asks RQ for jobs, works until none is left, and prints what came of them. Its argument is Redis' URL."""

from __future__ import annotations

import datetime
import json
import sys

from redis import Redis
from rq import Queue, Retry, SimpleWorker

from tests.applications.rq_tasks import add, fail


def main(url: str) -> None:
    connection = Redis.from_url(url)
    queue = Queue("jobs", connection=connection)
    first = queue.enqueue(add, 1, 2)
    second = queue.enqueue(add, 10, 20, depends_on=first)
    failing = queue.enqueue(fail, retry=Retry(max=1))
    queue.enqueue_in(datetime.timedelta(hours=1), add, 5, 5)
    worker = SimpleWorker([queue], connection=connection)
    worker.work(burst=True, with_scheduler=False, logging_level="ERROR")
    print(
        json.dumps(
            {
                "first": first.return_value(),
                "second": second.return_value(),
                "failed": failing.get_status(refresh=True),
                "queued": len(queue),
                "later": queue.scheduled_job_registry.count,
                "workers": SimpleWorker.count(connection=connection),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
