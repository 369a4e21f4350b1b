"""A Celery application: its settings and tasks. The worker and the client import it."""

from __future__ import annotations

import os

from celery import Celery

URL = os.environ["REDIS_URL"]
app = Celery("tests", broker=URL, backend=URL)
app.conf.update(
    task_track_started=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
    result_expires=3600,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def add_all(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=3, acks_late=True)
def second_time(self) -> str:
    """Fails on the first attempt and succeeds on the retry."""
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return "done"


@app.task
def fails() -> None:
    raise ValueError("as it should")
