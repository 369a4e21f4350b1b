"""Starts Celery tasks of all kinds, and prints their results."""

from __future__ import annotations

import json

from celery import chain, chord, group
from celery_app import add, add_all, app, fails, second_time


def main() -> None:
    seen = {
        "one": add.delay(1, 2).get(timeout=25),
        "later": add.apply_async((3, 4), countdown=0.2).get(timeout=25),
        "chain": chain(add.s(1, 1), add.s(10))().get(timeout=25),
        "group": group(add.s(n, n) for n in range(10))().get(timeout=25),
        "chord": chord((add.s(n, n) for n in range(4)), add_all.s())().get(timeout=25),
        "again": second_time.delay().get(timeout=25),
        "failed": str(fails.delay().get(timeout=25, propagate=False)),
        "pong": [next(iter(answer.values())) for answer in app.control.ping(timeout=25, limit=1)],
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
