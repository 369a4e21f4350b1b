"""BullMQ (Node): a worker, delayed jobs, retries and a flow; nearly all of it is Lua scripts and streams."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keyfence.policy.source import libraries
from tests.applications.application import Fence, run, shipped
from tests.servers import PROJECT
from tools.library_scripts import only_reads, scripts_of

NODE = PROJECT / "tests" / "node"
pytestmark = [
    pytest.mark.skipif(not shutil.which("node"), reason="no node here"),
    pytest.mark.skipif(not (NODE / "node_modules" / "bullmq6").is_dir(), reason="`npm ci` was not run"),
]


SEEN = {
    "one": 42,
    "later": 8,
    "waited": True,
    "bulk": [2, 4, 6, 8, 10],
    "again": 10,
    "parent": [2, 4],
    "counts": {"completed": 11, "failed": 0, "delayed": 0},
}
PACKAGES = ("bullmq", "bullmq6")


def work(one: Fence, package: str) -> dict[str, object]:
    """Runs jobs through keyfence with this package, and returns what became of them."""
    host, port = one.address
    seen: dict[str, object] = json.loads(run("node", "bullmq.js", f"{host}:{port}", package, cwd=NODE))
    return seen


@pytest.mark.parametrize("package", PACKAGES)
def test_jobs_run_immediately_delayed_retried_and_as_a_flow(
    package: str, fence: Callable[[Path], Fence]
) -> None:
    one = fence(shipped("bullmq"))
    assert work(one, package) == SEEN
    one.found_nothing()
    one.refuses("SET", "elsewhere", "1")


def test_a_version_that_keyfence_does_not_know_is_a_finding_and_no_outage(
    fence: Callable[[Path], Fence], tmp_path: Path
) -> None:
    text = shipped("bullmq").read_text()
    known = text.replace("library: bullmq,", 'library: bullmq, versions: ["5"],')
    assert known != text
    policy = tmp_path / "bullmq.yaml"
    policy.write_text(known)
    one = fence(policy)
    assert work(one, "bullmq6") == SEEN
    found = {(line["rule"], line["severity"], line["action"]) for line in one.found()}
    assert found == {("script.unregistered", "should", "observed")}
    script = "return redis.call('SET', KEYS[1], 'x')"
    one.refuses("EVAL", script, "1", "elsewhere")
    one.refuses("EVAL", script, "2", "bull:jobs:1", "elsewhere")
    one.refuses("EVAL", "return redis.call('SET', 'elsewhere', 'x')", "0")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_script_of_an_installed_package_is_known(package: str) -> None:
    folder = NODE / "node_modules" / package
    version = json.loads((folder / "package.json").read_text())["version"]
    known = {one.sha1.decode(): one for one in libraries.scripts_of("bullmq", [version])}
    found = {hashlib.sha1(text.encode()).hexdigest(): (keys, text) for _, keys, text in scripts_of(folder)}
    assert known.keys() == found.keys()
    for sha1, (keys, text) in found.items():
        assert (known[sha1].keys, known[sha1].writes) == (keys, not only_reads(text))
