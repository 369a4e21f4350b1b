"""The pages that lead a newcomer: every command on them prints what the page says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from keyfence.policy.loading.load import load_policy
from tests.pages import HOUR, README, WEEK, Effort, Walk, effort_of, walked
from tests.servers import NO_SERVER, server_binaries
from tests.test_shop import KINDS, MODULES

HAS_IOREDIS = bool(shutil.which("node")) and (MODULES / "ioredis").is_dir()

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _has_a_redis() -> None:
    if not server_binaries():
        pytest.exit(NO_SERVER, returncode=3)


def columns(text: str) -> str:
    """A text without what differs between machines: the width of columns, and how much memory a key takes."""
    return re.sub(r" {2,}", "  ", re.sub(r" [\d.]+ k?B\b", " 1 kB", text))


def goes_as_it_says(page: Path, folder: Path) -> None:
    written = page.read_text()
    assert columns(walked(written, folder)) == columns(written), f"python -m tests.pages {page.stem}"


def test_the_readme_goes_as_it_says(tmp_path: Path) -> None:
    goes_as_it_says(README, tmp_path)


def test_the_first_week_goes_as_the_document_says(tmp_path: Path) -> None:
    goes_as_it_says(WEEK, tmp_path)


@pytest.mark.skipif(not HAS_IOREDIS, reason="no node here, or `npm ci` was not run in tests/node")
def test_the_first_hour_goes_as_the_document_says(tmp_path: Path) -> None:
    goes_as_it_says(HOUR, tmp_path)
    policy = load_policy(tmp_path / "policy.yaml")
    entries = {target.name for target in policy.targets if target.kind == "entry"}
    assert len(entries) == KINDS
    assert entries_used(tmp_path / "commands.log", tmp_path / "policy.yaml") == entries


def entries_used(log: Path, policy_file: Path) -> set[str]:
    """The entries of which a command log has keys."""
    policy = load_policy(policy_file)
    lines = map(json.loads, log.read_text().splitlines())
    keys = {access["key"] for line in lines for access in line.get("accesses", [])}
    found = (policy.classifier.first(key.encode()) for key in keys)
    targets = (policy.targets[index] for index in found if index >= 0)
    return {target.name for target in targets if target.kind == "entry"}


def test_an_edit_must_fit_one_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a: 1\nb: 2\nb: 2\nc: 3\n")
    walk = Walk(tmp_path)
    walk.edit("file", " a: 1\n+aa: 1\n@@\n-c: 3\n+c: 4\n")
    assert (tmp_path / "file").read_text() == "a: 1\naa: 1\nb: 2\nb: 2\nc: 4\n"
    with pytest.raises(AssertionError, match="stands 2 times in file"):
        walk.edit("file", "-b: 2\n")


def test_the_effort_of_a_section_is_counted(tmp_path: Path) -> None:
    (tmp_path / "draft.yaml").write_text("a: 1  # guess: one\nb: 2  # guess: two\n")
    console = "```console\n$ run it\nthe output\n```\n"
    section = f"## One\n\n<!-- read: draft.yaml -->\n{console}\n```diff x\n-a\n@@\n-b\n```\n"
    assert effort_of(section, tmp_path) == Effort(words=15, commands=1, edits=2, guesses=2)
    assert Effort(words=400, commands=3, edits=2, guesses=6).minutes == 7
