"""Celery with Redis as broker and as result backend: tasks, retries, chains, groups, remote control."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable

import pytest

from tests.applications.application import Fence, python, run, running

pytestmark = pytest.mark.skipif(importlib.util.find_spec("celery") is None, reason="celery is not installed")

POLICY = r"""
policy: celery
owner: {team: tests, contact: "#tests"}
claims: [""]     # the keys of remote control begin with a UUID
services: [app]
placeholders:
  uuid: uuid
  name: '[A-Za-z0-9][A-Za-z0-9_.@-]*'
  binding: binding|binding_permanent
  priority: '(\x06\x16[369])?'
keys:
  tasks: {key: "celery<priority>", type: list, writers: [app]}
  control: {key: "<name>.celery.pidbox<priority>", type: list, writers: [app]}
  events: {key: "celeryev.<uuid><priority>", type: list, writers: [app]}
  bindings: {key: "_kombu.<binding>.<name>", type: set, writers: [app]}
  deadlines: {key: "_kombu.binding_deadlines", type: zset, writers: [app]}
  unacked: {key: "unacked", type: hash, writers: [app]}
  unacked-index: {key: "unacked_index", type: zset, writers: [app]}
  unacked-mutex: {key: "unacked_mutex", type: string, writers: [app], ttl: {max: 10m, at: write}}
  result: {key: "celery-task-meta-<uuid>", type: string, writers: [app], ttl: {max: 1h, at: write}}
channels:
  results: {channel: "celery-task-meta-<uuid>", publishers: [app], subscribers: [app]}
  control: {channel: "/0.celery.pidbox", publishers: [app], subscribers: [app]}
  events: {channel: "/0.celeryev/<name>", publishers: [app], subscribers: [app]}
unregistered_scripts: declared   # kombu's and redis-py's locks, other ones with each version
"""


def test_tasks_run_and_their_results_come_back(fence: Callable[[str], Fence]) -> None:
    one = fence(POLICY)
    worker = ("-m", "celery", "-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "WARNING")
    with running(sys.executable, *worker, REDIS_URL=one.url):
        seen = json.loads(run(*python("celery_client.py"), REDIS_URL=one.url))
    assert seen == {
        "one": 3,
        "later": 7,
        "chain": 12,
        "group": [2 * n for n in range(10)],
        "again": "done",
        "failed": "as it should",
        "pong": [{"ok": "pong"}],
    }
    one.found_nothing()
    assert one.forwarded("BRPOP") > 0
