"""Bull (Node), BullMQ's predecessor: a worker, delays, priorities, repetition, retries and events."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.applications.application import Fence, run, shipped
from tests.applications.test_bullmq import NODE

pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (NODE / "node_modules" / "bull").is_dir(), reason="`npm ci` was not run"),
]


def test_jobs_run_immediately_delayed_retried_and_repeated(fence: Callable[[Path], Fence]) -> None:
    one = fence(shipped("bull"))
    host, port = one.address
    seen = json.loads(run("node", "bull.js", f"{host}:{port}", cwd=NODE))
    assert seen == {
        "one": 42,
        "later": 8,
        "waited": True,
        "bulk": [2, 4, 6],
        "again": 10,
        "repeated": 1,
        "paused": True,
        "counts": {"completed": True, "failed": 0},
        "workers": 1,
        "heard": True,
    }
    one.found_nothing()
    one.refuses("SET", "elsewhere", "1")
