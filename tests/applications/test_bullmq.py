"""BullMQ (Node): a worker, delayed jobs, retries and a flow; nearly all of it is Lua scripts and streams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.applications.application import Fence, run, shipped
from tests.servers import PROJECT

NODE = PROJECT / "tests" / "node"
pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (NODE / "node_modules" / "bullmq").is_dir(), reason="`npm ci` was not run"),
]


def test_jobs_run_immediately_delayed_retried_and_as_a_flow(fence: Callable[[Path], Fence]) -> None:
    one = fence(shipped("bullmq"))
    host, port = one.address
    seen = json.loads(run("node", "bullmq.js", f"{host}:{port}", cwd=NODE))
    assert seen == {
        "one": 42,
        "later": 8,
        "waited": True,
        "bulk": [2, 4, 6, 8, 10],
        "again": 10,
        "parent": [2, 4],
        "counts": {"completed": 11, "failed": 0, "delayed": 0},
    }
    one.found_nothing()
    one.refuses("SET", "elsewhere", "1")
