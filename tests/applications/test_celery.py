"""Celery with Redis as broker and as result backend: tasks, retries, chains, groups, remote control."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.applications.application import Fence, python, run, running, shipped

pytestmark = pytest.mark.skipif(importlib.util.find_spec("celery") is None, reason="celery is not installed")


def test_tasks_run_and_return_their_results(fence: Callable[[Path], Fence]) -> None:
    one = fence(shipped("celery"))
    worker = ("-m", "celery", "-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "WARNING")
    with running(sys.executable, *worker, REDIS_URL=one.url):
        seen = json.loads(run(*python("celery_client.py"), REDIS_URL=one.url))
    assert seen == {
        "one": 3,
        "later": 7,
        "chain": 12,
        "group": [2 * n for n in range(10)],
        "chord": 12,
        "again": "done",
        "failed": "as it should",
        "pong": [{"ok": "pong"}],
    }
    one.found_nothing()
    assert one.forwarded("BRPOP") > 0
    one.refuses("SET", "elsewhere", "1")
