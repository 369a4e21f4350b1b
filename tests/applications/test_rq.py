"""RQ with Redis as its queue: jobs, a dependency, a retry, a group, a unique job, a job for later."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.applications.application import Fence, python, run, shipped

pytestmark = pytest.mark.skipif(importlib.util.find_spec("rq") is None, reason="rq is not installed")


def test_jobs_run_and_their_results_are_kept(fence: Callable[[Path], Fence]) -> None:
    one = fence(shipped("rq"))
    seen = json.loads(run(*python("rq_client.py"), one.url).splitlines()[-1])
    assert seen == {
        "first": 3,
        "second": 30,
        "group": ["0", "2", "4"],
        "only": 14,
        "emptied": 1,
        "failed": "failed",
        "queued": 0,
        "later": 1,
        "workers": 0,
    }
    one.found_nothing()
    one.refuses("SET", "elsewhere", "1")
