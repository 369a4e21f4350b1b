"""Enqueues RQ jobs, runs them until none is left, and prints the results. Its argument is Redis' URL."""

from __future__ import annotations

import datetime
import json
import sys

from redis import Redis
from rq import Queue, Retry, SimpleWorker
from rq.exceptions import DuplicateJobError
from rq.group import Group

from tests.applications.rq_tasks import add, fail


def main(url: str) -> None:
    connection = Redis.from_url(url)
    queue = Queue("jobs", connection=connection)
    first = queue.enqueue(add, 1, 2)
    second = queue.enqueue(add, 10, 20, depends_on=first)
    failing = queue.enqueue(fail, retry=Retry(max=1))
    queue.enqueue_in(datetime.timedelta(hours=1), add, 5, 5)
    group = Group.create(connection)
    group.enqueue_many(queue, [Queue.prepare_data(add, (n, n)) for n in range(3)])
    only = queue.enqueue(add, 7, 7, job_id="only-once", unique=True)
    try:
        queue.enqueue(add, 7, 7, job_id="only-once", unique=True)
        raise AssertionError("enqueued twice")
    except DuplicateJobError:
        pass
    worker = SimpleWorker([queue], connection=connection)
    worker.work(burst=True, with_scheduler=True, logging_level="ERROR")
    unwanted = Queue("unwanted", connection=connection)
    unwanted.enqueue(add, 0, 0)
    emptied = unwanted.empty()
    print(
        json.dumps(
            {
                "first": first.return_value(),
                "second": second.return_value(),
                "group": sorted(str(job.return_value()) for job in group.get_jobs()),
                "only": only.return_value(),
                "emptied": emptied,
                "failed": failing.get_status(refresh=True),
                "queued": len(queue),
                "later": queue.scheduled_job_registry.count,
                "workers": SimpleWorker.count(connection=connection),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
