"""RQ with Redis as its queue: jobs, a dependency, a retry, a job for later."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable

import pytest

from tests.applications.application import Fence, python, run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("rq") is None, reason="rq is not installed")

POLICY = """
policy: rq
owner: {team: tests, contact: "#tests"}
claims: ["rq:"]
services: [app]
placeholders:
  uuid: uuid
  name: "[A-Za-z0-9_.-]{1,128}"
  execution: "[A-Za-z0-9_.-]{1,200}"
keys:
  queues: {key: "rq:queues", type: set, writers: [app]}
  any: {key: "rq:<name...>", writers: [app]}
  dependencies: {key: "rq:job::<uuid>:dependencies", type: set, writers: [app]}
commands: {allow: [CLIENT LIST]}   # to learn its own address
channels:
  commands: {channel: "rq:pubsub:<name>", publishers: [app], subscribers: [app]}
"""


def test_jobs_run_and_their_results_are_kept(fence: Callable[[str], Fence]) -> None:
    one = fence(POLICY)
    seen = json.loads(run(*python("rq_client.py"), one.url).splitlines()[-1])
    assert seen == {"first": 3, "second": 30, "failed": "failed", "queued": 0, "later": 1, "workers": 0}
    one.found_nothing()
